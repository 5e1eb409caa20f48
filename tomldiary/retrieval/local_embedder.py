"""A small embedder that works offline: wordllama's static vectors, from the files in its own package."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.errors import MissingExtra

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["LOCAL_DIMS", "local_embedder"]

LOCAL_DIMS = 256
"""Numbers in a vector of `local_embedder`."""


def local_embedder() -> Callable[[Sequence[str]], list[list[float]]]:
    """Return a function that embeds texts without network, in well under a millisecond each.

    Raises:
        MissingExtra: wordllama is not installed; names the command that installs it.
    """
    try:
        module: Any = import_module("wordllama")
    except ImportError:
        raise MissingExtra("The local embedder", "embeddings") from None
    # Told where its files are, it asks nobody else for them.
    folder = Path(module.__file__).parent
    model = module.WordLlama.load(cache_dir=folder, disable_download=True)

    def embed(texts: Sequence[str]) -> list[list[float]]:
        return model.embed(list(texts)).tolist()

    return embed
