"""Rebuilds the versions of one document from its history, and splits them into blocks and entries.

Equal parts of a text are split and parsed once and shared by all versions. So a history of thousands of versions
costs little more than its changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.kinds import entry_path
from tomldiary.errors import DocumentError
from tomldiary.forgetting.selection import content
from tomldiary.history.timeline import EMPTY, redo, undo
from tomldiary.toml.document import Path, digest, find_table
from tomldiary.toml.lexer import Block, may_span_lines, split_blocks
from tomldiary.toml.parse import parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tomldiary.history.record import Record


class Replay:
    """The versions of one document that history can rebuild."""

    def __init__(self, records: Sequence[Record], kind: str, newest: str | None) -> None:
        self.records = records
        self._kind = kind
        self._chains: list[list[int]] = []
        for number, record in enumerate(records):
            if kind in record.results:
                if not self._chains or record.bases[kind] == EMPTY:
                    self._chains.append([])
                self._chains[-1].append(number)
        self._starts: dict[int, str] = {}
        for chain in self._chains:
            start = self._start(chain, newest if chain is self._chains[-1] else None)
            if start is not None:
                self._starts[chain[0]] = start

    def _start(self, chain: list[int], newest: str | None) -> str | None:
        """Return the text before a chain of records; None if the chain is inconsistent."""
        kind = self._kind
        text: str | None = "" if self.records[chain[0]].bases[kind] == EMPTY else None
        try:
            if text is None:
                # Retention may have removed the oldest segments: then the chain is undone from the current text.
                if newest is None:
                    return None
                text = newest
                for number in reversed(chain):
                    if digest(text) != self.records[number].results[kind]:
                        return None
                    text = undo(text, self.records[number], kind)
            after = text
            for number in chain:
                after = redo(after, self.records[number], kind)
                if digest(after) != self.records[number].results[kind]:
                    return None
        except DocumentError:
            return None
        return text

    def steps(self) -> Iterator[tuple[int, str, str]]:
        """Yield each record's number with the text before and after it."""
        for chain in self._chains:
            after = self._starts.get(chain[0])
            for number in chain:
                if after is None or chain[0] not in self._starts:
                    break
                before, after = after, redo(after, self.records[number], self._kind)
                yield number, before, after

    def lose(self, number: int) -> None:
        """Drop the chain of versions that a record belongs to."""
        self._starts.pop(next(chain[0] for chain in self._chains if number in chain), None)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of an entry in one version."""

    values: dict[str, Any]
    content: str


@dataclass(slots=True)
class Version:
    """A document split into blocks, with the entries that it holds."""

    blocks: list[Block]
    groups: dict[Path, list[Block]]
    """The blocks of each entry that has its own headers."""
    states: dict[Path, State]


class Versions:
    """Splits the versions of one document; parses only the parts that no earlier version has."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._blocks: dict[str, Block] = {}
        self._parts: dict[str, Version | None] = {}
        self._states: dict[tuple[Path, str], State] = {}
        self._inline: dict[str, dict[Path, State]] = {}  # an equal state is the same object
        self._cuts: list[tuple[str, Version]] = []  # the two latest

    def cut(self, text: str) -> Version:
        """Return a text split into blocks and entries."""
        for known, version in self._cuts:
            if known is text:
                return version
        parts = self._parts_of(text)
        if parts is None:
            version = self._version(split_blocks(text))
        else:
            version = Version([], {}, {})
            for part in parts:
                version.blocks += part.blocks
                version.groups.update(part.groups)
                version.states.update(part.states)
            if len(version.groups) < sum([len(part.groups) for part in parts]):
                version = self._version(version.blocks)  # an entry spans several parts
        self._cuts = [*self._cuts[-1:], (text, version)]
        return version

    def _parts_of(self, text: str) -> list[Version] | None:
        """Return the parts of a text, split at headers after a blank line; None if a value may span parts."""
        first, *others = text.split("\n\n[")
        if not others:
            return None
        last = others.pop()
        parts = [self._part(f"{first}\n\n", is_first=True), self._part(f"[{last}")]
        known = self._parts
        for other in set(others) - known.keys():
            known[other] = self._part(f"[{other}\n\n")
        parts[1:1] = [known[other] for other in others]
        return None if None in parts else cast("list[Version]", parts)

    def _part(self, text: str, *, is_first: bool = False) -> Version | None:
        head, *blocks = split_blocks(text)
        if may_span_lines(text) or (head.text and not is_first):
            return None
        return self._version([head, *blocks] if is_first else blocks)

    def _version(self, blocks: list[Block]) -> Version:
        """Return blocks with their entries."""
        version = Version(list(map(self.same, blocks)), {}, {})
        for block in version.blocks:
            if (path := self.path(block)) is None:
                version.states |= self.inline(block)
            else:
                version.groups.setdefault(path, []).append(block)
        for path, group in version.groups.items():
            version.states[path] = self._state(path, joined(group))
        return version

    def path(self, block: Block) -> Path | None:
        """Return the path of the entry that a block belongs to, or None."""
        return entry_path(self.kind, block.path)

    def same(self, block: Block) -> Block:
        """Return the shared block with this text."""
        return self._blocks.setdefault(block.text, block)

    def _state(self, path: Path, whole: str) -> State:
        known = self._states.get((path, whole))
        if known is None:
            values = values_at(whole, path)
            known = self._states[path, whole] = State(values, content(values))
        return known

    def inline(self, block: Block) -> dict[Path, State]:
        """Return the entries that are written as inline values of a parent table."""
        if block.path[:1] == ("_meta",):
            return {}
        known = self._inline.get(block.text)
        if known is None:
            known = self._inline[block.text] = {}
            if block.text.strip() and not block.is_array:
                self._walk(values_at(block.text, block.path), block.path, known)
        return known

    def _walk(self, table: dict[str, Any], path: Path, found: dict[Path, State]) -> None:
        for key, value in table.items():
            inner = (*path, key)
            if not isinstance(value, dict) or inner[0] == "_meta":
                continue
            values = cast("dict[str, Any]", value)
            if entry_path(self.kind, inner) is None:
                self._walk(values, inner, found)
            else:
                found[inner] = State(values, content(values))


def values_at(text: str, path: Path) -> dict[str, Any]:
    """Return the fields of the table at `path` in the text of one or more blocks."""
    data = parse_toml(text)
    found = find_table(data, path)
    if found is None:  # a list of tables is an entry too, but it has no fields that name a session
        found = {"items": (find_table(data, path[:-1]) or {}).get(path[-1])}
    return found


def joined(blocks: list[Block]) -> str:
    """Return the joined text of blocks."""
    return "".join([block.text for block in blocks])
