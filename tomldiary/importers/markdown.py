"""Markdown: `CLAUDE.md`, `MEMORY.md`, or a folder of such files. Each file is a block."""

from __future__ import annotations

from pathlib import Path

from tomldiary.errors import InvalidValue
from tomldiary.importers.records import Block, Found
from tomldiary.ingest.source import read_text

__all__ = ["read"]


def read(place: str, user: str) -> Found:  # noqa: ARG001 - a folder of notes has no users
    """Read a Markdown file, or all files of a folder. The name of a block is the path without `.md`."""
    found, root = Found(), Path(place)
    if not root.exists():
        raise InvalidValue("there is no such file. Check the path.", where=place)
    inside = sorted(path for path in root.rglob("*") if path.suffix.lower() == ".md")
    paths = inside if root.is_dir() else [root]
    for path in paths:
        inner = path.relative_to(root) if root.is_dir() else Path(path.name)
        if any(part.startswith(".") for part in inner.parts):
            found.leave_out("hidden file")
        elif path.is_symlink() or not path.is_file():
            found.leave_out("link")
        elif not (text := read_text(path)).strip():
            found.leave_out("empty file")
        else:
            found.records.append(Block(inner.with_suffix("").as_posix(), text))
    return found
