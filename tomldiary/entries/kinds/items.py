"""Items: the values of LangGraph namespaces."""

# ruff: noqa: ARG002, D102 - overrides: `EntryKind` documents them

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from tomldiary.entries.kind import EntryKind, Rules
from tomldiary.entries.kinds.parts import part_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from datetime import datetime

    from tomldiary.entries.fields import Problem
    from tomldiary.toml.document import Document, Path

__all__ = ["ItemKind"]


class ItemKind(EntryKind):
    """`[items.key]` in `items/<namespace>`: the values of LangGraph namespaces."""

    is_recalled = is_shown = False
    shape = "items/namespace/key"

    def documents(self, listed: Iterable[str]) -> list[str]:
        return [name for name in listed if name.startswith(f"{self.name}/")]

    def home(self, document: str) -> str:
        return part_of(document)[0]

    def places(self, path: Path, listed: Iterable[str]) -> tuple[list[str], Path]:
        documents = [each for each in listed if part_of(each)[0] == path[0]]
        return documents, (self.name, *path[1:])

    def key(self, path: Path, document: str = "") -> str:
        if not document and "/" not in path[0]:
            return "/".join(path)
        base = part_of(document)[0] if document else path[0]
        return "/".join([base, *(key.replace("%", "%25").replace("/", "%2f") for key in path[1:])])

    def path(self, key: str) -> Path | None:
        base, _, name = key.rpartition("/")
        return (base, unquote(name)) if base.startswith(f"{self.name}/") else None

    def profile(self, documents: Mapping[str, Document], rules: Rules, at: datetime) -> Any:
        counts: dict[str, int] = {}
        for document, each in documents.items():
            name = part_of(document)[0].removeprefix(f"{self.name}/")
            counts[name] = counts.get(name, 0) + len(each.table((self.name,)) or {})
        return {name: count for name, count in counts.items() if count}

    def problems(self, document: Document, rules: Rules) -> Iterator[Problem]:
        yield from ()
