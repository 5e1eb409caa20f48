"""One document in all its versions, cut into entries, and put together without some of them.

Texts that come up again are looked at once and are the same object in every version, so a history of
thousands of versions costs little more than the changes in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
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
    groups: dict[Path, list[int]] = field(default_factory=dict["Path", list[int]])
    """The blocks of each entry that has headers of its own."""
    states: dict[Path, _State] = field(default_factory=dict["Path", _State])


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
        self._cuts: list[tuple[str, _Version]] = []  # the two looked at last

    # First pass: which states there are

    def study(self, text: str, when: datetime) -> None:
        """Note which entries a version has, and whether the selection covers what they say."""
        if self._cuts and self._cuts[-1][0] is text:
            return
        for path, state in self._version(text).states.items():
            if id(state) in self._seen:
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
        made: list[Block] = []
        for number, block in enumerate(version.blocks):
            path = self._path(block)
            if path is None:
                made.append(self._without_inline(block))
                continue
            state = version.states[path]
            if not self._goes(path, state):
                made.append(self._without_name(block, path, state))
                continue
            last = self._last.get(path)
            if last is not None and version.groups[path][0] == number:
                made.append(self._block(Block(path, last + split_tail(block.text)[1])))
            else:
                self._leave_out(made, block)
        self._remember(version)
        return made

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
            elif path in version.groups and not self._goes(path, state):
                blocks = [version.blocks[number] for number in version.groups[path]]
                whole = joined([self._without_name(block, path, state) for block in blocks])
                body = split_tail(whole)[0]
                self._last[path] = body if body.endswith("\n") else f"{body}\n"

    def _leave_out(self, made: list[Block], block: Block) -> None:
        """Leave out a block; comments that a blank line separates from it belong to nobody and stay."""
        tail = split_tail(block.text)[1]
        before = made[-1]
        kept, gap = split_tail(before.text)
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
            own = _values_at(block.text, path)
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
        version = _Version(self._split(text))
        for number, block in enumerate(version.blocks):
            path = self._path(block)
            if path is not None:
                version.groups.setdefault(path, []).append(number)
            elif block.path[:1] != ("_meta",):
                version.states.update(self._inline_states(block))
        for path, numbers in version.groups.items():
            whole = "".join([version.blocks[number].text for number in numbers])
            version.states[path] = self._state(path, whole)
        self._cuts = [*self._cuts[-1:], (text, version)]
        return version

    def _split(self, text: str) -> list[Block]:
        """Cut a version; blocks of the version before that are found again are not looked at again."""
        known = self._cuts[-1][1].blocks if self._cuts else []
        made: list[Block] = []
        at = number = 0
        while at < len(text) or not made:
            if number < len(known) and text.startswith(known[number].text, at):
                made.append(known[number])
                at += len(known[number].text)
                number += 1
                continue
            # The blocks on both sides may have got lines, or comments above them.
            begin = at - len(made.pop().text) if made else 0
            begin -= len(made.pop().text) if len(made) == 1 else 0
            at, number = self._found_again(text, at, known, number)
            changed = text[begin:at]
            first, *rest = split_blocks(changed)
            if '"""' in changed or "'''" in changed or (begin and first.text):
                return [self._block(block) for block in split_blocks(text)]
            made += map(self._block, rest if begin else [first, *rest])
        return made

    @staticmethod
    def _found_again(text: str, at: int, known: list[Block], number: int) -> tuple[int, int]:
        """Return the place behind the next block that was there before, and that block's follower."""
        for following in range(max(number, 1), min(number + 4, len(known))):
            found = text.find(known[following].text, at)
            if found >= 0:
                return found + len(known[following].text), following + 1
        return len(text), len(known)

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


def joined(blocks: list[Block]) -> str:
    """Return the text that blocks make."""
    return "".join([block.text for block in blocks])


def _unwieldy(path: Path) -> InvalidValue:
    return InvalidValue(
        "this entry is written in a way that it cannot be taken out of. Write it as one table with a"
        " header of its own. Nothing was forgotten.",
        where=render_path(path),
    )
