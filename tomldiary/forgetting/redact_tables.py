"""Redacts one document: rebuilds its versions from history, and selects the states of its entries that are removed.

Equal parts of a text are split and parsed once and shared by all versions. So a history of thousands of versions
costs little more than its changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tomldiary.entries.fields import author, sessions
from tomldiary.entries.kinds import entry_key, entry_kind, entry_path, home_of
from tomldiary.errors import DocumentError, InvalidTOML, InvalidValue
from tomldiary.forgetting.selection import Selection, content, created_in, statement
from tomldiary.history.timeline import EMPTY, redo, undo
from tomldiary.toml.block_edit import edit_block
from tomldiary.toml.document import (
    Path,
    digest,
    find_table,
    keep_comments,
    rendered_again,
    split_tail,
)
from tomldiary.toml.lexer import Block, may_span_lines, split_blocks
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import render_block, render_path, same_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime

    from tomldiary.history.record import Record


# The versions of a document


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
        kind, records = self._kind, [self.records[number] for number in chain]
        text = ""
        if records[0].bases[kind] != EMPTY:
            # Retention may have removed the oldest segments: then the chain is undone from the current text.
            if newest is None:
                return None
            text = newest
            for record in reversed(records):
                text = undo(text, record, kind)
        after = text
        try:
            for record in records:
                after = redo(after, record, kind)
                if digest(after) != record.results[kind]:
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
    """The blocks of each entry that has its own headers; none if a parent table has some of its values."""
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
            if len(version.states) < sum([len(part.states) for part in parts]):
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
        for other in others:
            if other not in known:
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
        holders: dict[Path, Block] = {}
        for block in version.blocks:
            if (path := self.path(block)) is None:
                inline = self.inline(block)
                version.states |= inline
                holders |= dict.fromkeys(inline, block)
            else:
                version.groups.setdefault(path, []).append(block)
        for path, group in version.groups.items():
            whole = [holders[path], *group] if path in holders else group
            version.states[path] = self._state(path, whole)
            if path in holders:
                group.clear()
        return version

    def paths(self, text: str) -> set[Path]:
        """Return the paths of the entries in a text of whole blocks; their values are not parsed.

        Raises:
            InvalidTOML: A table above the entries cannot be read.
        """
        found: set[Path] = set()
        for block in split_blocks(text):
            path = self.path(block)
            found |= {path} if path is not None else self.inline(block).keys()
        return found

    def path(self, block: Block) -> Path | None:
        """Return the path of the entry that a block belongs to, or None."""
        return entry_path(self.kind, block.path)

    def same(self, block: Block) -> Block:
        """Return the shared block with this text."""
        return self._blocks.setdefault(block.text, block)

    def _state(self, path: Path, group: list[Block]) -> State:
        # Without the tail, because a rollback may restore an entry at another place of the document.
        whole = split_tail(joined(group))[0].rstrip("\r\n")
        known = self._states.get((path, whole))
        if known is None:
            try:
                values = values_at(whole, path)
            except InvalidTOML:
                # Each table of a list may have an inner table with the same header.
                values = {"items": [values_at(block.text, path) for block in group]}
            known = self._states[path, whole] = State(values, content(values))
        return known

    def inline(self, block: Block) -> dict[Path, State]:
        """Return the entries that are written as inline values of a parent table."""
        if block.path[:1] == ("_meta",):
            return {}
        known = self._inline.get(block.text)
        if known is None:
            known = dict[Path, State]()
            if block.text.strip() and not block.is_array:
                self._walk(values_at(block.text, block.path), block.path, known)
            # Kept only now, so that a block that cannot be read fails each time.
            self._inline[block.text] = known
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


# Redaction


class Tables:
    """The entries of one document in all its versions, and the states to redact.

    Args:
        versions: The versions of the document.
        selection: The data to redact.
        part: Another part of the same kind; its statements are shared, because they count in all parts.
    """

    def __init__(
        self, versions: Versions, selection: Selection, part: Tables | None = None
    ) -> None:
        self.kind = versions.kind
        self.affected: set[Path] = set()
        self._selection = selection
        self._versions = versions
        self.kept: dict[Path, dict[str, State]] = {} if part is None else part.kept
        """The content that stays, with a state that has it, and names a session if any does."""
        self.selected: dict[Path, set[str]] = {} if part is None else part.selected
        self._seen: dict[State, Path] = {}
        self._earlier: dict[State, set[State]] = {}
        """The states of the same entry before a change, also under another id."""
        self._changed: dict[tuple[str, State | None], Block] = {}
        self._last: dict[Path, str | None] = {}  # the text of the latest state that stays
        # By redacted state: its replacement at its first occurrence.
        self._instead: dict[State, str | None] = {}

    # First pass: collect the states

    def study(self, text: str, when: datetime) -> None:
        """Collect the states of a version, and whether the selection covers each."""
        for path, state in self._versions.cut(text).states.items():
            if state in self._seen:
                continue
            self._seen[state] = path
            if self._selection.covers(self.kind, path, state.values, when):
                self.selected.setdefault(path, set()).add(state.content)
            else:
                known = self.kept.setdefault(path, {})
                if not author(known.setdefault(state.content, state).values):
                    known[state.content] = state

    def study_change(self, before: str, after: str) -> None:
        """Collect the earlier states of the entries that a change of the document edits, or gives another id."""
        old, new = self._versions.cut(before).states, self._versions.cut(after).states
        gone = {_identity(state): state for _, state in old.items() - new.items()}
        changed = new.items() - old.items() if gone else set[tuple["Path", State]]()
        renamed = {gone.get(_identity(state)) for _, state in changed}
        for path, state in changed:
            was = old.get(path)
            if was is None or _identity(was) != _identity(state):
                is_edited = was not in renamed and _created(was) == _created(state)
                was = gone.get(_identity(state), was if is_edited else None)
            if was is not None:
                self._earlier.setdefault(state, set()).add(was)

    def _history(self, states: Iterable[State]) -> set[State]:
        """Return states with all earlier states of their entries."""
        found: set[State] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state not in found:
                found.add(state)
                waiting += self._earlier.get(state, ())
        return found

    def statements(self) -> set[tuple[str, ...]]:
        """Return what the entry that the selection names by its key said in any version."""
        home, is_named = home_of(self.kind), self._selection.is_named
        named = (one for one in self._seen.items() if is_named(entry_key(one[1], home)))
        return {statement(self.kind, path, state.values) for state, path in named} - {()}

    def decide(self) -> None:
        """Choose the entries to redact: those with content that only the selection stated."""
        if self._selection.key and entry_kind(self.kind).is_private:
            # What a pending change said before an edit is a version of the entry too.
            for state, path in self._seen.items():
                if self._selection.is_copy(state.values):
                    self.selected[path] |= self.kept.pop(path, {}).keys()
        self.affected = {
            path for path, said in self.selected.items() if said - self.kept.get(path, {}).keys()
        }

    def select_former_ids(self, current: str) -> set[tuple[str, str]]:
        """Select what the entry that the selection names by its key said under ids that it no longer has.

        Returns:
            The keys with these ids, each with the time at which the entry was created.
        """
        home, is_named = home_of(self.kind), self._selection.is_named
        named = [one for one, path in self._seen.items() if is_named(entry_key(path, home))]
        former = self._history(named).difference(named)
        if former:
            # The entry may have the id again, or an entry that stays may have had the id `key`.
            stored = self._versions.cut(current).states.values()
            former -= self._history(set(stored).difference(named))
        stays = {(path, one.content) for one, path in self._seen.items() if one not in former}
        for state in former:
            path = self._seen[state]
            if (path, state.content) not in stays:
                self.selected.setdefault(path, set()).add(state.content)
                self.kept.get(path, {}).pop(state.content, None)
        return {(entry_key(self._seen[state], home), _created(state)) for state in former}

    def gone(self) -> list[Path]:
        """Return the entries of the document that are erased completely."""
        mine = set(self._seen.values())
        return [path for path in self.selected if path in mine and not self.kept.get(path)]

    def is_all_gone(self) -> bool:
        """Return whether the selection covered an entry, and no version keeps any entry."""
        return bool(self.selected) and not any(self.kept.values())

    def sessions(self) -> set[str]:
        """Return the sessions of the redacted states."""
        chosen = self._selection.source
        if chosen or self._selection.session_id:
            return {self._selection.session_id, chosen, chosen.rpartition("#")[0]} - {""}
        return {
            name
            for state, path in self._seen.items()
            if self._is_redacted(path, state)
            for name in sessions(entry_kind(self.kind), path, state.values)
        }

    def operations(self, replay: Replay) -> set[str]:
        """Return the operations of an adapter that wrote or replaced the redacted states; its receipts name them."""
        if not any("_operation" in state.values for state in self._seen):
            return set()
        states = [state for state, path in self._seen.items() if self._is_redacted(path, state)]
        for _, before, after in replay.steps():
            old, new = self._versions.cut(before).states, self._versions.cut(after).states
            # The request that replaced a text may have quoted it.
            replaced = [path for path in self.affected if self._is_redacted(path, old.get(path))]
            states += [new[path] for path in replaced if path in new]
        return {str(state.values["_operation"]) for state in states if "_operation" in state.values}

    def is_touched(self, before: str, after: str) -> bool:
        """Return whether a redacted state was created, changed or removed between two versions."""
        old, new = self._versions.cut(before).states, self._versions.cut(after).states
        for path in self.affected:
            was, became = old.get(path), new.get(path)
            if was is became or not (
                self._is_redacted(path, was) or self._is_redacted(path, became)
            ):
                continue
            if was is None or became is None or not same_value(was.values, became.values):
                return True
        return False

    def _is_redacted(self, path: Path, state: State | None) -> bool:
        return (
            state is not None
            and path in self.affected
            and state.content not in self.kept.get(path, {})
        )

    # Second pass: redact the versions, oldest first

    def blocks(self, text: str) -> list[Block]:
        """Return the blocks of a redacted version; it must be called for the versions in order, oldest first."""
        version = self._versions.cut(text)
        if not self.affected and not self._selection.session_id:
            return version.blocks
        self._return_to_restored(version)
        made: list[Block] = []
        back: set[Path] = set()
        for block in version.blocks:
            self._add(made, version, block, back)
        self._remember(version)
        return made

    def _add(self, made: list[Block], version: Version, block: Block, back: set[Path]) -> None:
        """Add a redacted block; `back` holds the entries already restored to an earlier state."""
        path = self._versions.path(block)
        if path is None:
            made.append(self._without_inline(version, block))
            return
        state = version.states[path]
        if not self._is_redacted(path, state):
            made.append(self._without_name(block, path, state))
            return
        last = self._last.get(path)
        if last is not None and path not in back:
            back.add(path)
            made.append(self._versions.same(Block(path, last + split_tail(block.text)[1])))
        else:
            is_last = block is version.blocks[-1]
            kept = keep_comments(made[-1], block, is_last=is_last)
            made[-1] = self._versions.same(kept)

    def prove(self, text: str, made: str) -> list[Path]:
        """Return the entries that differ between a version and its redacted text.

        Raises:
            InvalidValue: A selected state is still present, or another state changed.
        """
        old = new = self._versions.cut(text).states
        if made != text:
            parse_toml(made)
            new = self._versions.cut(made).states
        changed: list[Path] = []
        for path, state in old.items():
            found = new.get(path)
            if self._is_redacted(path, state) == (
                found is not None and found.content == state.content
            ):
                raise InvalidValue(
                    "this entry cannot be removed because of its TOML form. Write it as one table with its own"
                    " header. Nothing was forgotten.",
                    where=render_path(path),
                )
            if found is None or not same_value(found.values, state.values):
                changed.append(path)
        return changed

    def _return_to_restored(self, version: Version) -> None:
        """Give a redacted state that a rollback restored the same replacement as at its first occurrence.

        Otherwise the rolled-back text would be the latest one that stays, and would be current again.
        """
        for path in self.affected:
            state = version.states.get(path)
            if state is None or not self._is_redacted(path, state):
                continue
            self._last[path] = self._instead.setdefault(state, self._last.get(path))

    def _remember(self, version: Version) -> None:
        for path in self.affected:
            state = version.states.get(path)
            if state is None:
                self._last.pop(path, None)
            elif not self._is_redacted(path, state):
                if blocks := version.groups.get(path):
                    whole = joined([self._without_name(block, path, state) for block in blocks])
                else:
                    whole = render_block(path, self._unnamed(path, state.values, state.content))
                body = split_tail(whole)[0]
                self._last[path] = body if body.endswith("\n") else f"{body}\n"

    def _without_name(self, block: Block, path: Path, state: State) -> Block:
        session = self._selection.session_id
        if not session or block.is_array or block.path != path:
            return block
        witness = self.kept.get(path, {}).get(state.content)
        key = (block.text, witness)
        if key not in self._changed:
            own = values_at(block.text, path)
            self._changed[key] = self._edited(block, own, self._unnamed(path, own, state.content))
        return self._changed[key]

    def _without_inline(self, version: Version, block: Block) -> Block:
        """Redact entries that are written as inline values of a parent table."""
        if not self._versions.inline(block):
            return block
        own = values_at(block.text, block.path)
        return self._edited(block, own, self._walked(version, own, block.path))

    def _walked(self, version: Version, table: dict[str, Any], path: Path) -> dict[str, Any]:
        want: dict[str, Any] = {}
        for key, value in table.items():
            inner = (*path, key)
            entry = entry_path(self.kind, inner)
            if not isinstance(value, dict) or inner[0] == "_meta":
                want[key] = value
            elif entry is None:
                want[key] = self._walked(version, cast("dict[str, Any]", value), inner)
            else:
                state, last = version.states[inner], self._last.get(inner)
                if not self._is_redacted(inner, state):
                    want[key] = self._unnamed(inner, cast("dict[str, Any]", value), state.content)
                elif last is not None and inner not in version.groups:
                    want[key] = values_at(last, inner)
        return want

    def _unnamed(self, path: Path, values: dict[str, Any], said: str) -> dict[str, Any]:
        """Return the values of an entry without the name of a selected session."""
        if not self._selection.session_id:
            return values
        witness = self.kept.get(path, {}).get(said)
        return self._selection.without_name(values, witness.values if witness else {})

    def _edited(self, block: Block, own: dict[str, Any], want: dict[str, Any]) -> Block:
        if same_value(own, want):
            return block
        try:
            changed = rendered_again(block, own, want) or edit_block(block, own, want)
        except InvalidValue:
            tail = split_tail(block.text)[1]
            changed = Block(block.path, render_block(block.path, want) + tail)
        return self._versions.same(Block(changed.path, changed.text))


def _created(state: State | None) -> str:
    """Return when an entry was created; "" without a state."""
    return created_in(state.values) if state is not None else ""


def _identity(state: State) -> tuple[str, str]:
    """Return what an entry keeps if a person gives it another id."""
    return _created(state), state.content
