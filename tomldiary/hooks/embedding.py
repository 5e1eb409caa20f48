"""What the hooks of vector databases share: what is embedded of an entry, and what is kept beside the vector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.hooks.change import Change

__all__ = ["EmbeddingHook"]


class EmbeddingHook:
    """Says which entries a vector database keeps, and as what.

    Args:
        embed: Returns a vector for each text; None if the database embeds.
        text: Returns what is embedded of a change, "" to leave the entry out; None is the entry's text.
        metadata: Returns further fields: text, numbers, true or false.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Sequence[Sequence[float]]] | None,
        text: Callable[[Change], str] | None,
        metadata: Callable[[Change], Mapping[str, Any]] | None,
    ) -> None:
        self._embed = embed
        self._text = text
        self._metadata = metadata

    def wants(self, change: Change) -> bool:
        """Return whether the entry has a text to embed."""
        return bool(self.text_of(change))

    def text_of(self, change: Change) -> str:
        """Return what is embedded of an entry; "" if it was removed or is left out."""
        if change.after is None:
            return ""
        return (change.text if self._text is None else self._text(change)).strip()

    def fields_of(self, change: Change) -> dict[str, Any]:
        """Return what is kept beside the vector."""
        more = {} if self._metadata is None else dict(self._metadata(change))
        return {
            **more, "user": change.user, "key": change.key, "session": change.session,
            "epoch": change.epoch, "seq": change.seq, "digest": change.digest,
        }  # fmt: skip

    def vectors_of(self, texts: list[str]) -> list[list[float]] | None:
        """Return the vectors of texts; None if the database embeds them."""
        if self._embed is None:
            return None
        return [[float(number) for number in vector] for vector in self._embed(texts)]
