"""The base of hooks for vector databases: the text to embed, and the fields to store with the vector."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue, wrong_type, wrong_value
from tomldiary.runtime.callables import is_async
from tomldiary.runtime.views import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tomldiary.hooks.change import Change


def checked_index(given: Any, expected: str, where: str) -> Any:
    """Return the object that a hook writes to, unchanged.

    Raises:
        InvalidValue: It has no `upsert`, or it is a class or an async client.
    """
    upsert = getattr(given, "upsert", None)
    if isinstance(given, type) or not callable(upsert) or is_async(upsert):
        raise wrong_type(given, expected, where)
    return given


class EmbeddingHook:
    """Selects the entries for a vector database, and returns their texts, fields and vectors.

    Args:
        embed: Returns a vector for each text; None if the database computes the vectors.
        text: Returns the text to embed for a change, or "" to leave the entry out; None embeds the entry's text.
        metadata: Returns additional fields, whose values are text, numbers or bools.

    Raises:
        InvalidValue: `embed` is no plain function.
    """

    def __init__(
        self,
        embed: Callable[[list[str]], Sequence[Sequence[float]]] | None,
        text: Callable[[Change], str] | None,
        metadata: Callable[[Change], Mapping[str, Any]] | None,
    ) -> None:
        if embed is not None and (not callable(embed) or is_async(embed)):
            raise wrong_value(embed, "a plain function of a list of texts", "embed")
        self._embed = embed
        self._text = text
        self._metadata = metadata

    def wants(self, change: Change) -> bool:
        """Return whether the entry has a text to embed."""
        return bool(self.text_of(change))

    def stored(self, user: str) -> dict[str, str]:
        """Return the digest of each entry of a user by key."""
        return {each["key"]: each["digest"] for each in self._read(user)}

    def users(self) -> set[str]:
        """Return the ids of all users with entries."""
        return {each["user"] for each in self._read(None)}

    def _read(self, user: str | None) -> list[dict[str, Any]]:
        """Return the stored fields of the entries of a user, or of all users."""
        raise NotImplementedError

    def text_of(self, change: Change) -> str:
        """Return the text to embed for an entry; "" if it was removed or is left out."""
        if change.after is None:
            return ""
        return (change.text if self._text is None else self._text(change)).strip()

    def fields_of(self, change: Change) -> dict[str, Any]:
        """Return the fields to store with the vector."""
        more = {} if self._metadata is None else dict(self._metadata(change))
        return {
            **more, "user": change.user, "key": change.key, "session": change.session,
            "epoch": change.epoch, "seq": change.seq, "digest": change.digest,
        }  # fmt: skip

    def vectors_of(self, texts: list[str]) -> list[list[float]] | None:
        """Return the vectors of texts, or None if the database computes them.

        Raises:
            InvalidValue: `embed` returned something other than a vector of finite numbers for each text.
        """
        if self._embed is None:
            return None
        found = self._embed(texts)
        try:
            vectors = [[float(number) for number in vector] for vector in found]
        except (TypeError, ValueError):
            vectors = []
        is_finite = all(isfinite(number) for vector in vectors for number in vector)
        if len(vectors) != len(texts) or not is_finite:
            raise InvalidValue(
                f"expected {counted(len(texts), 'vector')} of finite numbers. Check the embedder.",
                where="embed",
            )
        return vectors
