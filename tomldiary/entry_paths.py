"""How entries are named: by their path in a document, and by the key that people use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.errors import UnknownEntry

if TYPE_CHECKING:
    from collections.abc import Collection

    from tomldiary.toml.document import Path

__all__ = ["entry_depth", "entry_key", "entry_path", "path_of"]

_DEPTHS = {"preferences": 3, "conversations": 2, "facts": 3}
_USUAL_DEPTH = 2


def entry_depth(kind: str) -> int:
    """Return how long the paths of a document's entries are, in the layout with the kind in front."""
    return _DEPTHS.get(kind.partition("/")[0], _USUAL_DEPTH)


def entry_path(kind: str, path: Path) -> Path | None:
    """Return the entry that the table at `path` is, or is part of; None if it is above all entries."""
    if not path or path[0] == "_meta":
        return None
    root = kind.partition("/")[0]
    depth = entry_depth(kind)
    if path[0] != root:
        depth -= 1  # the layout without the kind in front
    return path[:depth] if len(path) >= depth else None


def entry_key(path: Path) -> str:
    """Return the key of the entry at a path; a preference goes without its document."""
    return "/".join(path[1:] if path[0] == "preferences" else path)


def path_of(key: str, categories: Collection[str]) -> Path:
    """Return the path of the entry that a key names; `categories` may stand in front of an id alone.

    Raises:
        UnknownEntry: It is no key.
    """
    first, _, rest = key.partition("/")
    if first == "preferences" and "/" in rest:
        category, _, name = rest.partition("/")
        return ("preferences", category, name)
    if first == "conversations" and rest:
        return ("conversations", rest)
    if first in categories and rest:
        return ("preferences", first, rest)
    if first in {"blocks", "episodes"} and rest:
        return (first, rest)
    if first == "facts" and "/" in rest:
        name, _, entry = rest.partition("/")
        return (first, name, entry)
    raise UnknownEntry(
        key,
        "A key is category/id, conversations/session, facts/type/key, blocks/name or episodes/id.",
    )
