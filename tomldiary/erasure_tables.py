"""One document in all its versions, cut into entries, and put together without some of them.

Texts that come up again are looked at once and are the same object in every version, so a history of
thousands of versions costs little more than the changes in it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, cast

from tomldiary.errors import InvalidValue
from tomldiary.forgetting import author, content, sessions
from tomldiary.toml.blockedit import edit_block, render_block, split_tail
from tomldiary.toml.document import find_any
from tomldiary.toml.lexer import Block, split_blocks
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_path, same_value

if TYPE_CHECKING:
    from datetime import datetime

    from tomldiary.forgetting import Selection
    from tomldiary.toml.document import Path

__all__ = ["Tables", "entry_path", "joined"]

_DEPTHS = {"preferences": 3, "conversations": 2, "facts": 3}
_USUAL_DEPTH = 2


def entry_path(kind: str, path: Path) -> Path | None:
    """Return the entry that the table at `path` is, or is part of; None if it is above all entries."""
    if not path or path[0] == "_meta":
        return None
    root = kind.partition("/")[0]
    depth = _DEPTHS.get(root, _USUAL_DEPTH)
    if path[0] != root:
        depth -= 1  # the layout without the kind in front
    return path[:depth] if len(path) >= depth else None


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """An entry in one version."""

    values: dict[str, Any]
    content: str


@dataclass(slots=True)
class _Version:
    """A document cut into blocks, and the entries it holds."""

    blocks: list[Block]
    ends: list[int]
    """Where each block ends, in characters."""
    groups: dict[Path, list[Block]]
    """The blocks of each entry that has headers of its own."""
    states: dict[Path, _State]
    fresh: list[Path]
    """The entries that the version before did not have like this."""


class Tables:
    """The entries of one document in all its versions, and which of their states go.

    Texts that come up again are looked at once, and are the same object in every version.
    """

    def __init__(self, kind: str, selection: Selection) -> None:
        self.kind = kind
        self.affected: set[Path] = set()
        self._selection = selection
        self._kept: dict[Path, dict[str, str]] = {}  # what stays, and a session that said it
        self._selected: dict[Path, set[str]] = {}
        self._blocks: dict[str, Block] = {}
        self._paths: dict[Block, Path | None] = {}
        self._states: dict[tuple[Path, str], _State] = {}
        self._inline: dict[str, dict[Path, _State]] = {}
        self._seen: dict[int, tuple[Path, _State]] = {}
        self._changed: dict[tuple[str, str], Block] = {}
        self._last: dict[Path, str] = {}  # the text of the last state that stays
        self._remembered: dict[Path, _State] = {}
        self._tails: dict[Block, tuple[str, str]] = {}
        self._same: dict[Block, Block] = {}  # what becomes of a block wherever it stands
        self._cuts: list[tuple[str, _Version]] = []  # the two looked at last

    # First pass: which states there are

    def study(self, text: str, when: datetime) -> None:
        """Note which entries a version has, and whether the selection covers what they say."""
        if self._cuts and self._cuts[-1][0] is text:
            return
        version = self._version(text)
        for path in version.fresh:
            state = version.states.get(path)
            if state is None or id(state) in self._seen:
                continue
            self._seen[id(state)] = (path, state)
            if self._selection.covers(self.kind, path, state.values, when):
                self._selected.setdefault(path, set()).add(state.content)
            else:
                known = self._kept.setdefault(path, {})
                if not known.get(state.content):
                    known[state.content] = author(state.values)

    def decide(self) -> None:
        """Settle what goes: what the selection said and nobody else."""
        self.affected = {
            path for path, said in self._selected.items() if said - self._kept.get(path, {}).keys()
        }

    def gone(self) -> list[Path]:
        """Return the entries that nothing is left of."""
        return [path for path in self._selected if not self._kept.get(path)]

    def sessions(self) -> set[str]:
        """Return the sessions that had to do with what goes."""
        chosen = self._selection.session_id or self._selection.source
        found: set[str] = set()
        for path, state in self._seen.values():
            if self._goes(path, state):
                found |= sessions(self.kind, path, state.values)
        if not chosen:
            return found
        return {name for name in (chosen, chosen.rpartition("#")[0]) if name}

    def is_touched(self, before: str, after: str) -> bool:
        """Tell whether an entry that goes, or goes back, changed between two versions."""
        if not self.affected:
            return False
        old, new = self._version(before).states, self._version(after).states
        for path in self.affected:
            was, became = old.get(path), new.get(path)
            if was is became or not (self._goes(path, was) or self._goes(path, became)):
                continue
            if was is None or became is None or not same_value(was.values, became.values):
                return True
        return False

    def _goes(self, path: Path, state: _State | None) -> bool:
        return (
            state is not None
            and path in self.affected
            and state.content not in self._kept.get(path, {})
        )

    # Second pass, from the oldest version on: what they are without

    def transform(self, text: str) -> str:
        """Return a version without what goes."""
        return joined(self.blocks(text))

    def blocks(self, text: str) -> list[Block]:
        """Return the blocks of a version without what goes; versions are asked for in their order."""
        version = self._version(text)
        if not self.affected and not self._selection.session_id:
            return version.blocks
        ready = list(map(self._same.get, version.blocks))
        made: list[Block] = []
        back: set[Path] = set()
        at = 0
        while None in ready[at:]:
            number = ready.index(None, at)
            made += cast("list[Block]", ready[at:number])
            self._add(made, version, version.blocks[number], back)
            at = number + 1
        made += cast("list[Block]", ready[at:])
        self._remember(version)
        return made

    def _add(self, made: list[Block], version: _Version, block: Block, back: set[Path]) -> None:
        """Add what becomes of a block; `back` are the entries that went back to what they were."""
        path = self._path(block)
        if path is None:
            self._same[block] = changed = self._without_inline(block)
            made.append(changed)
            return
        state = version.states[path]
        if not self._goes(path, state):
            changed = self._without_name(block, path, state)
            if len(version.groups[path]) == 1:
                self._same[block] = changed
            made.append(changed)
            return
        last = self._last.get(path)
        if last is not None and path not in back:
            back.add(path)
            made.append(self._block(Block(path, last + self._split(block)[1])))
        else:
            self._leave_out(made, block)

    def prove(self, text: str, made: str) -> list[Path]:
        """Return the entries that differ between a version and what was made of it.

        Raises:
            InvalidValue: What goes is still there, or something else changed.
        """
        parse_toml(made)
        old, new = self._version(text).states, self._version(made).states
        changed: list[Path] = []
        for path, state in old.items():
            found = new.get(path)
            if self._goes(path, state) == (found is not None and found.content == state.content):
                raise _unwieldy(path)
            if found is None or not same_value(found.values, state.values):
                changed.append(path)
        return changed

    def _remember(self, version: _Version) -> None:
        for path in self.affected:
            state = version.states.get(path)
            if state is None:
                self._last.pop(path, None)
                self._remembered.pop(path, None)
            elif state is self._remembered.get(path):
                continue
            elif path in version.groups and not self._goes(path, state):
                self._remembered[path] = state
                blocks = version.groups[path]
                whole = joined([self._without_name(block, path, state) for block in blocks])
                body = split_tail(whole)[0]
                self._last[path] = body if body.endswith("\n") else f"{body}\n"

    def _leave_out(self, made: list[Block], block: Block) -> None:
        """Leave out a block; comments that a blank line separates from it belong to nobody and stay."""
        tail = self._split(block)[1]
        before = made[-1]
        kept, gap = self._split(before)
        if gap.strip():
            tail = gap + tail.lstrip("\r\n") if tail.strip() else gap
        made[-1] = self._block(Block(before.path, kept + tail, before.is_array))

    def _without_name(self, block: Block, path: Path, state: _State) -> Block:
        session = self._selection.session_id
        if not session or block.is_array or block.path != path:
            return block
        witness = self._kept.get(path, {}).get(state.content, "")
        key = (block.text, witness)
        if key not in self._changed:
            # Most entries are one block, which was read already.
            is_whole = self._states.get((path, block.text)) is state
            own = state.values if is_whole else _values_at(block.text, path)
            self._changed[key] = self._edited(
                block, own, self._selection.without_name(own, witness)
            )
        return self._changed[key]

    def _without_inline(self, block: Block) -> Block:
        """Take entries out that are written inside the table above them."""
        if not self._inline_states(block):
            return block
        key = (block.text, "")
        if key not in self._changed:
            own = _values_at(block.text, block.path)
            want = self._walked(own, block.path)
            self._changed[key] = self._edited(block, own, want)
        return self._changed[key]

    def _walked(self, table: dict[str, Any], path: Path) -> dict[str, Any]:
        want: dict[str, Any] = {}
        for key, value in table.items():
            inner = (*path, key)
            entry = entry_path(self.kind, inner)
            if not isinstance(value, dict) or inner[0] == "_meta":
                want[key] = value
            elif entry is None:
                want[key] = self._walked(cast("dict[str, Any]", value), inner)
            else:
                values = cast("dict[str, Any]", value)
                said = content(values)
                if inner in self.affected and said not in self._kept.get(inner, {}):
                    continue
                witness = self._kept.get(inner, {}).get(said, "")
                session = self._selection.session_id
                want[key] = self._selection.without_name(values, witness) if session else values
        return want

    def _edited(self, block: Block, own: dict[str, Any], want: dict[str, Any]) -> Block:
        if same_value(own, want):
            return block
        try:
            changed = edit_block(block, own, want)
        except InvalidValue:
            tail = split_tail(block.text)[1]
            changed = Block(block.path, render_block(block.path, want) + tail)
        return self._block(Block(changed.path, changed.text))

    # Cutting

    def _version(self, text: str) -> _Version:
        for known, version in self._cuts:
            if known is text:
                return version
        version = self._stepped(*self._cuts[-1], text) if self._cuts else None
        version = version or self._cut(text)
        self._cuts = [*self._cuts[-1:], (text, version)]
        return version

    def _stepped(self, old_text: str, old: _Version, text: str) -> _Version | None:
        """Cut a version like the one before; every transaction changes `_meta`, and something elsewhere."""
        between = text[: _end_of_meta(text)] + old_text[_end_of_meta(old_text) :]
        first = self._made_from(old_text, old, between)
        if first is None:
            return None
        version = self._made_from(between, first, text)
        if version is not None:
            version.fresh[:0] = first.fresh
        return version

    def _cut(self, text: str) -> _Version:
        """Cut a version from scratch."""
        blocks = [self._block(block) for block in split_blocks(text)]
        version = _Version(
            blocks, list(accumulate(len(block.text) for block in blocks)), {}, {}, []
        )
        self._fill(version, [], blocks)
        return version

    def _made_from(self, old_text: str, old: _Version, text: str) -> _Version | None:
        """Cut a version looking only at what differs from another one; None if that cannot be done."""
        begin = _common_start(old_text, text)
        rest = _common_end(old_text, text, begin)
        # The blocks on both sides may have got lines, or comments above them.
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
        fresh = [self._block(block) for block in (made if start else [head, *made])]
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
        version = _Version(blocks, ends, dict(old.groups), dict(old.states), [])
        self._fill(version, old.blocks[low : high + 1], fresh)
        return version

    def _fill(self, version: _Version, gone: list[Block], fresh: list[Block]) -> None:
        """Note the entries of a version in which some blocks have taken the place of others."""
        for block in gone:
            if self._path(block) is None:
                for path in self._inline_states(block):
                    version.states.pop(path, None)
        paths: dict[Path, None] = {}
        for block in [*gone, *fresh]:
            if (path := self._path(block)) is not None:
                paths[path] = None
        left = Counter(self._path(block) for block in gone)
        came: dict[Path, list[Block]] = {}
        for block in fresh:
            path = self._path(block)
            if path is not None:
                came.setdefault(path, []).append(block)
            else:
                states = self._inline_states(block)
                version.states.update(states)
                version.fresh += states
        for path in paths:
            group = came.get(path, [])
            if len(version.groups.get(path, [])) != left[path]:
                group = [block for block in version.blocks if self._path(block) == path]
            if not group:
                version.groups.pop(path, None)
                version.states.pop(path, None)
                continue
            version.groups[path] = group
            state = self._state(path, joined(group))
            if version.states.get(path) is not state:
                version.states[path] = state
                version.fresh.append(path)

    def _split(self, block: Block) -> tuple[str, str]:
        known = self._tails.get(block)
        if known is None:
            known = self._tails[block] = split_tail(block.text)
        return known

    def _path(self, block: Block) -> Path | None:
        if block not in self._paths:
            self._paths[block] = entry_path(self.kind, block.path)
        return self._paths[block]

    def _block(self, block: Block) -> Block:
        return self._blocks.setdefault(block.text, block)

    def _state(self, path: Path, whole: str) -> _State:
        known = self._states.get((path, whole))
        if known is None:
            values = _values_at(whole, path)
            known = self._states[path, whole] = _State(values, content(values))
        return known

    def _inline_states(self, block: Block) -> dict[Path, _State]:
        if block.path[:1] == ("_meta",):
            return {}
        known = self._inline.get(block.text)
        if known is None:
            known = self._inline[block.text] = {}
            if block.text.strip() and not block.is_array:
                self._walk(_values_at(block.text, block.path), block.path, known)
        return known

    def _walk(self, table: dict[str, Any], path: Path, found: dict[Path, _State]) -> None:
        for key, value in table.items():
            inner = (*path, key)
            if not isinstance(value, dict) or inner[0] == "_meta":
                continue
            values = cast("dict[str, Any]", value)
            if entry_path(self.kind, inner) is None:
                self._walk(values, inner, found)
            else:
                found[inner] = _State(values, content(values))


def _values_at(text: str, path: Path) -> dict[str, Any]:
    found: Any = find_any(parse_toml(text), path)
    # A list of tables is an entry of a kind too; it just cannot say whose it is.
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {"items": found}


def _end_of_meta(text: str) -> int:
    at = text.find("\n[", text.find("[_meta]"))
    while text.startswith("\n[_meta", at):
        at = text.find("\n[", at + 1)
    return at if at >= 0 else len(text)


def _common_start(one: str, two: str) -> int:
    """Return how many characters two texts have in common at the start, by bisection."""
    low, high = 0, min(len(one), len(two)) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[low:middle] == two[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _common_end(one: str, two: str, start: int) -> int:
    """Return how many characters two texts have in common at the end, behind their first `start`."""
    low, high = 0, min(len(one), len(two)) - start + 1
    while high - low > 1:
        middle = (low + high) // 2
        if one[len(one) - middle : len(one) - low] == two[len(two) - middle : len(two) - low]:
            low = middle
        else:
            high = middle
    return low


def joined(blocks: list[Block]) -> str:
    """Return the text that blocks make."""
    return "".join([block.text for block in blocks])


def _unwieldy(path: Path) -> InvalidValue:
    return InvalidValue(
        "this entry is written in a way that it cannot be taken out of. Write it as one table with a"
        " header of its own. Nothing was forgotten.",
        where=render_path(path),
    )
