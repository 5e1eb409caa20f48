"""Traces: the places in the storage that still contain a text, to verify an erasure."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING
from unicodedata import normalize

from tomldiary.forgetting.selection import folded
from tomldiary.runtime.sources import hidden_kinds
from tomldiary.storage.local.layout import SYSTEM
from tomldiary.storage.protocol import KeepsHidden, LocalFolder
from tomldiary.toml.values import render_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.storage.protocol import Backend

__all__ = ["traces"]


def traces(backend: Backend, user: str, text: str) -> list[str]:
    """Return the places of a user that contain a text, ignoring case; in a folder also system files of all users.

    Args:
        backend: The storage.
        user: The user.
        text: The text to find, as written or as escaped by TOML or JSON, also inside a document that history quotes.

    Returns:
        Paths of files below the folder; names of documents, "history" and hidden documents in a database.
    """
    forms = {text, *(normalize(form, text) for form in ("NFC", "NFD"))}
    for _ in range(2):  # twice, because history quotes documents whose texts are quoted already
        forms |= {quote(each)[1:-1] for each in forms for quote in (render_text, json.dumps)}
    wanted = {folded(form) for form in forms}
    found: set[str] = set()
    for name, content in _contents(backend, user):
        stored = folded(content.decode("utf-8", "replace"))
        if any(each in stored for each in wanted):
            found.add(name)
    return sorted(found)


def _contents(backend: Backend, user: str) -> Iterator[tuple[str, bytes]]:
    if isinstance(backend, LocalFolder):
        top = backend.base_path
        own = Path(backend.place(user, "preferences")).parent.name
        folders = [top / SYSTEM, top / own]
        for place, _, names in (step for folder in folders for step in os.walk(folder)):
            for name in names:
                path = Path(place) / name
                if path.is_file() and not path.is_symlink():
                    yield path.relative_to(top).as_posix(), path.read_bytes()
        return
    for kind in backend.kinds(user):
        stored = backend.read(user, kind)
        yield kind, (stored.text if stored is not None else "").encode()
    for record in backend.records(user):
        yield "history", record.encode()
    if isinstance(backend, KeepsHidden):
        for kind in hidden_kinds():
            yield kind, backend.hidden(user, kind)[0].encode()
