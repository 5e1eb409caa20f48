"""Splits the versions of one document into blocks and entries.

Equal texts are parsed once and shared by all versions. So a history of thousands of versions costs little more
than its changes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.kinds import entry_path
from tomldiary.forgetting.selection import content
from tomldiary.toml.block_edit import split_tail
from tomldiary.toml.document import find_any
from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import parse_toml

if TYPE_CHECKING:
    from tomldiary.toml.document import Path

__all__ = ["State", "Version", "Versions", "joined", "values_at"]


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of an entry in one version."""

    values: dict[str, Any]
    content: str


@dataclass(slots=True)
class Version:
    """A document split into blocks, with the entries that it holds."""

    blocks: list[Block]
    ends: list[int]
    """The end of each block, in characters."""
    groups: dict[Path, list[Block]]
    """The blocks of each entry that has its own headers."""
    states: dict[Path, State]
    fresh: list[Path]
    """The entries that are new or changed since the previous version."""


class Versions:
    """Splits the versions of one document; parses only the difference to the previous version."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._blocks: dict[str, Block] = {}
        self._paths: dict[Block, Path | None] = {}
        self._states: dict[tuple[Path, str], State] = {}
        self._inline: dict[str, dict[Path, State]] = {}
        self._tails: dict[Block, tuple[str, str]] = {}
        self._cuts: list[tuple[str, Version]] = []  # the two latest

    def is_last(self, text: str) -> bool:
        """Return whether a text is the same object as the latest one that was split."""
        return bool(self._cuts) and self._cuts[-1][0] is text

    def cut(self, text: str) -> Version:
        """Return a text split into blocks and entries."""
        for known, version in self._cuts:
            if known is text:
                return version
        version = self._stepped(*self._cuts[-1], text) if self._cuts else None
        version = version or self._cut_whole(text)
        self._cuts = [*self._cuts[-1:], (text, version)]
        return version

    def _stepped(self, old_text: str, old: Version, text: str) -> Version | None:
        """Split a version in two steps: every transaction changes `_meta`, and one other place."""
        between = text[: _end_of_meta(text)] + old_text[_end_of_meta(old_text) :]
        first = self._made_from(old_text, old, between)
        if first is None:
            return None
        version = self._made_from(between, first, text)
        if version is not None:
            version.fresh[:0] = first.fresh
        return version

    def _cut_whole(self, text: str) -> Version:
        """Split a version without the previous one."""
        blocks = [self.same(block) for block in split_blocks(text)]
        version = Version(blocks, list(accumulate(len(block.text) for block in blocks)), {}, {}, [])
        self._fill(version, [], blocks)
        return version

    def _made_from(self, old_text: str, old: Version, text: str) -> Version | None:
        """Split a version by parsing only its difference to another one; None if that is not possible."""
        begin = _common_start(old_text, text)
        rest = _common_end(old_text, text, begin)
        # The neighbouring blocks may have new lines, or new comments above them.
        low = bisect_right(old.ends, begin) - 1
        low = low if low > 1 else 0
        high = bisect_left([0, *old.ends], len(old_text) - rest)
        start = old.ends[low - 1] if low else 0
        last = old.blocks[high] if high < len(old.blocks) else None
        end = len(text) - (len(old_text) - old.ends[high]) if last is not None else len(text)
        changed = text[start:end]
        head, *made = split_blocks(changed)
        if (
            '"""' in changed
            or "'''" in changed
            or (start and (head.text or not made))
            or (last is not None and ([head, *made][-1].path != last.path))
        ):
            return None
        fresh = [self.same(block) for block in (made if start else [head, *made])]
        blocks = [*old.blocks[:low], *fresh, *old.blocks[high + 1 :]]
        shift = len(text) - len(old_text)
        behind = old.ends[high + 1 :]
        ends = [
            *old.ends[:low],
            *accumulate(
                [len(block.text) for block in fresh[1:]], initial=start + len(fresh[0].text)
            ),
            *([place + shift for place in behind] if shift else behind),
        ]
        version = Version(blocks, ends, dict(old.groups), dict(old.states), [])
        self._fill(version, old.blocks[low : high + 1], fresh)
        return version

    def _fill(self, version: Version, gone: list[Block], fresh: list[Block]) -> None:
        """Update the entries of a version after the blocks `gone` were replaced by `fresh`."""
        for block in gone:
            if self.path(block) is None:
                for path in self.inline(block):
                    version.states.pop(path, None)
        paths: dict[Path, None] = {}
        for block in [*gone, *fresh]:
            if (path := self.path(block)) is not None:
                paths[path] = None
        left = Counter(self.path(block) for block in gone)
        came: dict[Path, list[Block]] = {}
        for block in fresh:
            path = self.path(block)
            if path is not None:
                came.setdefault(path, []).append(block)
            else:
                states = self.inline(block)
                version.states.update(states)
                version.fresh += states
        for path in paths:
            group = came.get(path, [])
            if len(version.groups.get(path, [])) != left[path]:
                group = [block for block in version.blocks if self.path(block) == path]
            if not group:
                version.groups.pop(path, None)
                version.states.pop(path, None)
                continue
            version.groups[path] = group
            state = self._state(path, joined(group))
            if version.states.get(path) is not state:
                version.states[path] = state
                version.fresh.append(path)

    def split(self, block: Block) -> tuple[str, str]:
        """Return a block's own text, and the comments behind it that belong to no entry."""
        known = self._tails.get(block)
        if known is None:
            known = self._tails[block] = split_tail(block.text)
        return known

    def is_one_block(self, path: Path, block: Block, state: State) -> bool:
        """Return whether the state of an entry is written in this one block."""
        return self._states.get((path, block.text)) is state

    def path(self, block: Block) -> Path | None:
        """Return the entry that a block belongs to; None if it belongs to none."""
        if block not in self._paths:
            self._paths[block] = entry_path(self.kind, block.path)
        return self._paths[block]

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
    found: Any = find_any(parse_toml(text), path)
    # A list of tables is an entry too, but it has no fields that name a session.
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"items": found}


def joined(blocks: list[Block]) -> str:
    """Return the joined text of blocks."""
    return "".join([block.text for block in blocks])


def _end_of_meta(text: str) -> int:
    at = text.find("\n[", text.find("[_meta]"))
    while text.startswith("\n[_meta", at):
        at = text.find("\n[", at + 1)
    return at if at >= 0 else len(text)


def _common_start(one: str, two: str) -> int:
    """Return the length of the common prefix of two texts, by bisection."""
    low, high = 0, min(len(one), len(two)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_end(one: str, two: str, start: int) -> int:
    """Return the length of the common suffix of two texts, excluding their first `start` characters."""
    low, high = 0, min(len(one), len(two)) - start + 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[len(one) - middle : len(one) - low] == two[len(two) - middle : len(two) - low]:
            low = middle
        else:
            high = middle
    return low
