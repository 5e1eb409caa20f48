"""What one user's memory should be: entries as plain values, and every state there ever was.

It knows nothing of files, text or transactions' records; `test_histories` holds the library against it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

KINDS = ("preferences", "conversations")


@dataclass(frozen=True)
class Entry:
    """A preference, or a conversation: then `text` is its summary and `count` its turns."""

    text: str
    contexts: tuple[str, ...] = ()
    count: int = 1
    author: str = ""
    creator: str = ""
    stamp: int = 0
    """Differs where two that look the same are not: they were written at different times."""


def shown(state):
    """Return what a reader sees of a state."""
    return {key: (entry.text, entry.contexts, entry.count) for key, entry in state.items()}


@dataclass
class Logged:
    """One transaction, and all entries by document right after it."""

    type: str
    session: str
    states: dict[str, dict]


@dataclass
class Plan:
    """What a rollback should do."""

    undone: list[int]
    before: dict
    conflicts: set


class Refused(Exception):
    """There is nothing to undo, or something was forgotten since."""


def empty():
    return {kind: {} for kind in KINDS}


@dataclass
class Model:
    log: list[Logged] = field(default_factory=lambda: [Logged("", "", empty())])
    now: dict[str, dict] = field(default_factory=empty)
    """As a reader should see it, what people saved since included."""
    saved: dict[str, dict] = field(default_factory=empty)
    """What stands in the files."""
    pending: set[str] = field(default_factory=set)
    """Documents that somebody saved and that nobody has logged yet."""
    stamps: int = 0

    @property
    def newest(self):
        return len(self.log) - 1

    def stamp(self):
        self.stamps += 1
        return self.stamps

    def merged(self):
        """Return all entries of all documents."""
        return {key: entry for kind in KINDS for key, entry in self.now[kind].items()}

    # What agents do

    def commit(self, changes, type_, session="", *, also=()):
        """Log changes of entries (None: removed), after the hand edits of the same documents."""
        kinds = {key[0] for key in changes} | set(also)
        self.log_saved(kinds)
        for key, entry in changes.items():
            self.now[key[0]] = {k: e for k, e in self.now[key[0]].items() if k != key}
            if entry is not None:
                self.now[key[0]][key] = entry
        self._log(type_, session, kinds)

    def log_saved(self, kinds):
        """Log the hand edits of some documents."""
        if kinds & self.pending:
            self._log("hand", "", kinds & self.pending)

    def _log(self, type_, session, kinds):
        states = {**self.log[-1].states, **{kind: dict(self.now[kind]) for kind in kinds}}
        self.log.append(Logged(type_, session, states))
        self.pending -= set(kinds)
        for kind in kinds:
            self.saved[kind] = dict(self.now[kind])

    # What people do

    def save(self, kind, state, base, *, is_news):
        """Apply a hand edit that began from the transaction `base` (None: the newest)."""
        ours = self.log[-1].states[kind]
        old = ours if base is None else self.log[base].states[kind]
        self.saved[kind] = dict(state)
        self.pending.discard(kind)
        self.now[kind] = dict(ours)
        if not is_news:
            return
        self.pending.add(kind)
        for key in {**old, **state}:
            if state.get(key) != old.get(key) and not self._said(kind, key, state.get(key), base):
                self.now[kind].pop(key, None)
                if key in state:
                    self.now[kind][key] = state[key]

    def _said(self, kind, key, entry, base):
        """Tell whether a save since `base` brought this about: an editor that goes on from it says it again."""
        return base is not None and any(
            logged.type == "hand"
            and before.states[kind].get(key) != entry == logged.states[kind].get(key)
            for before, logged in itertools.pairwise(self.log[base:])
        )

    # Looking back, going back

    def changes(self, seq):
        """Return what a transaction changed: the entry before and after, by key."""
        found = {}
        for kind in KINDS:
            old, new = self.log[seq - 1].states[kind], self.log[seq].states[kind]
            for key in {**old, **new}:
                if old.get(key) != new.get(key):
                    found[key] = (old.get(key), new.get(key))
        return found

    def plan(self, steps, session, to):
        found = []
        forgotten = False
        for seq in range(self.newest, 0 if to is None else to, -1):
            forgotten = forgotten or self.log[seq].type == "forget"
            if session is not None and self.log[seq].session != session:
                continue
            if forgotten:
                raise Refused
            if to is None and self.log[seq].type == "hand" and not self.changes(seq):
                continue
            found.append(seq)
            if to is None and len(found) >= steps:
                break
        if not found or (to is None and len(found) < steps):
            raise Refused
        before, expected = {}, {}
        for seq in found:
            for key, (was, became) in self.changes(seq).items():
                expected.setdefault(key, became)
                before[key] = was
        known = self.merged()
        return Plan(found, before, {key for key in before if known.get(key) != expected[key]})

    def roll_back(self, plan, session):
        """Log a rollback; False if there is nothing left to change."""
        known = self.merged()
        also = {key[0] for key, was in plan.before.items() if was is not None or key in known}
        if also:
            done = {key: was for key, was in plan.before.items() if key[0] in also}
            self.commit(done, "rollback", session or "", also=also)
        return bool(also)

    # Forgetting

    def knows(self, session):
        """Tell whether anything in memory names a session."""
        states = [*(logged.states for logged in self.log), self.now]
        return any(logged.session == session for logged in self.log) or any(
            session in (entry.author, entry.creator) or key == ("conversations", session)
            for state in states
            for kind in KINDS
            for key, entry in state[kind].items()
        )

    def forget(self, session, kinds):
        """Make every state one in which the session never said anything; `kinds` are those with a file."""
        self.log_saved(set(kinds))
        states = [logged.states for logged in self.log]
        touched = set()
        for kind in KINDS:
            versions = [dict(state[kind]) for state in states]
            for key in {key for version in versions for key in version}:
                touched |= self._forget_entry(session, key, versions)
            for state, version in zip(states, versions, strict=True):
                state[kind] = version
            if kind in kinds:
                self.now[kind] = dict(versions[-1])
        for seq, logged in enumerate(self.log):
            if logged.session == session or seq in touched:
                logged.session = ""
        self._log("forget", "", kinds)

    @staticmethod
    def _forget_entry(session, key, versions):
        """Take an entry out of all versions, and return the transactions that changed what went."""
        said, kept = set(), {}
        for version in versions:
            entry = version.get(key)
            if entry is None:
                continue
            content = (entry.text, entry.contexts)
            if key == ("conversations", session) or entry.author == session:
                said.add(content)
            elif not kept.get(content):
                kept[content] = entry.author
        entries = [version.get(key) for version in versions]
        goes = [
            entry is not None and (entry.text, entry.contexts) in said.difference(kept)
            for entry in entries
        ]
        touched = {
            seq for seq in range(1, len(entries))
            if entries[seq - 1] != entries[seq] and (goes[seq - 1] or goes[seq])
        }  # fmt: skip
        last = None
        instead = {}
        for version, entry, is_gone in zip(versions, entries, goes, strict=True):
            if entry is None:
                last = None
            elif is_gone:
                # One that a rollback brings back is treated as before what was rolled back.
                last = instead.setdefault(entry, last)
                if last is None:
                    del version[key]
                else:
                    version[key] = last
            else:
                witness = kept.get((entry.text, entry.contexts), "")
                creator = witness if entry.creator == session else entry.creator
                author = entry.author
                if author == session:
                    author = witness or creator
                last = version[key] = replace(entry, author=author, creator=creator)
        return touched
