"""Random histories: whatever agents, people and crashes did, memory is what a plain model says it is."""

from __future__ import annotations

import os
import re
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from file_systems import HookedFiles, killed_before
from history_model import KINDS, Entry, Model, Refused, shown
from tomldiary import Conflict, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import InvalidValue
from tomldiary.history.record import Record, render_record
from tomldiary.history.timeline import Timeline
from tomldiary.history.verify import verify
from tomldiary.toml.block_edit import split_tail
from tomldiary.toml.lexer import split_blocks
from tomldiary.toml.values import render_path

SESSIONS = ["s1", "s2", "s3"]
TEXTS = [
    "tea",
    "green tea",
    "two\nlines",
    'a "quote" \\ and é',
    "[not.a.header]",
    "# no comment",
    "x" * 300,
]
LOVED = ["jazz", "opera", "maps", "chess"]
CATEGORIES = ["likes", "goals"]

sessions = st.sampled_from(SESSIONS)
contexts = st.lists(st.sampled_from(["at home", "é", "[x]"]), max_size=2, unique=True)


class Stop(Exception):
    """An exception of the caller, which ends a transaction."""


def stop():
    raise Stop


def name(key):
    return "/".join(key[1:] if key[0] == "preferences" else key)


def bookless(text):
    """Return a document without its own bookkeeping (the last transaction, ids given out).

    Between tables one blank line is as good as two: whose is the one that a table removed by hand left?
    """
    return re.sub(
        r"\n{3,}", "\n\n", re.sub(r"^(seq|next_ids) = .*\n", "", text, flags=re.MULTILINE)
    )


class Histories(RuleBasedStateMachine):
    """One user's memory beside its model. What blocks and facts add goes in here as further rules."""

    stride = 4
    """How many states of the past are passed over for each that is looked at in the end."""

    def __init__(self):
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="histories-"))
        self.model = Model()
        self.numbers = 0
        self.highest = dict.fromkeys(CATEGORIES, 0)
        self.operations = {}
        self.forgotten = 0
        self.buffers = []
        self.notes = {kind: set() for kind in KINDS}
        self.open()

    def open(self, files=None):
        backend = LocalBackend(self.root, durability="process", files=files)
        self.diary = Diary(backend, agent="rules")
        self.alice = self.diary.user("alice")

    def file(self, kind):
        return self.root / f"alice/{kind}.toml"

    def number(self):
        self.numbers += 1
        return self.numbers

    # What agents do

    def upserted(self, category, key, text, labels, session):
        """Call upsert and return what it should have changed."""
        before = self.model.now["preferences"]
        found, _ = self.alice.upsert_preference(
            category, text, id=key, contexts=labels, session_id=session
        )
        place = ("preferences", category, found)
        old = before.get(place)
        same = [k for k, e in before.items() if k[1] == category and e.text == text]
        if key is not None:
            assert found == key
        elif same:
            assert place in same
        else:
            assert old is None
            self.check_new(category, found)
        return {place: self.changed(old, text, labels, session)}

    def check_new(self, category, key):
        number = int(key.removeprefix("pref"))
        assert number > self.highest[category]
        self.highest[category] = number

    def changed(self, old, text, labels, session):
        if old is None:
            return Entry(text, tuple(labels), 1, session, session, self.model.stamp())
        added = tuple(label for label in labels if label not in old.contexts)
        return replace(
            old, text=text or old.text, contexts=old.contexts + added, count=old.count + 1,
            author=session, stamp=self.model.stamp(),
        )  # fmt: skip

    @rule(category=st.sampled_from(CATEGORIES), text=st.sampled_from(TEXTS), labels=contexts, session=sessions)  # fmt: skip
    def upsert(self, category, text, labels, session):
        done = self.upserted(category, None, text, labels, session)
        self.model.commit(done, "upsert", session)

    def chosen(self, data, kind="preferences"):
        known = sorted(self.model.now[kind])
        return data.draw(st.sampled_from(known)) if known else None

    @rule(data=st.data(), text=st.one_of(st.none(), st.sampled_from(TEXTS)), session=sessions)
    def change_or_confirm(self, data, text, session):
        key = self.chosen(data)
        if key is None:
            return
        now = self.model.now["preferences"]
        others = [e.text for k, e in now.items() if k[1] == key[1] and k != key]
        if text != now[key].text and text in others:
            with pytest.raises(InvalidValue, match="has the same text"):
                self.alice.upsert_preference(key[1], text, id=key[2], session_id=session)
            return
        done = self.upserted(key[1], key[2], text, ["again"], session)
        self.model.commit(done, "upsert", session)

    @rule(data=st.data(), session=sessions)
    def forget_preference(self, data, session):
        key = self.chosen(data)
        if key is not None:
            self.alice.forget_preference(*key[1:], session_id=session)
            self.model.commit({key: None}, "remove_preference", session)

    @rule(loved=st.sampled_from(LOVED), session=sessions)
    def turn(self, loved, session):
        text = f"I love {loved}."
        same = [k for k, e in self.model.now["preferences"].items() if e.text == text and k[1] == "likes"]  # fmt: skip
        named = re.findall(rf'_source = "{session}#(\d+)"', self.alice.document("preferences"))
        self.alice.add_turn(text, "ok", session)
        known = self.alice.preferences("likes")
        new = [("preferences", "likes", k) for k in known]
        new = [key for key in new if key not in self.model.now["preferences"]]
        if same:
            # Which one of two equal ones is confirmed is the library's to say.
            assert not new
            (key,) = [k for k in same if known[k[2]].count == self.model.now["preferences"][k].count + 1]  # fmt: skip
        else:
            (key,) = new
            self.check_new("likes", key[2])
        done = {key: self.changed(self.model.now["preferences"].get(key), text, [], session)}
        place = ("conversations", session)
        old = self.model.now["conversations"].get(place, Entry("", (), 0))
        count = old.count
        if not count:
            # A session whose conversation was removed goes on after the last turn that an entry names, unless a person
            # deleted the whole document.
            count = self.alice.conversations()[session].turns - 1
            assert count in {0, max(map(int, named), default=0)}
        done[place] = replace(old, count=count + 1, stamp=self.model.stamp())
        self.model.commit(done, "turn", session)

    @rule(data=st.data())
    def forget_conversation(self, data):
        key = self.chosen(data, "conversations")
        if key is not None:
            self.alice.forget_conversation(key[1])
            self.model.commit({key: None}, "remove_conversation", key[1])

    @rule(data=st.data(), texts=st.lists(st.sampled_from(TEXTS), min_size=1, max_size=3, unique=True), session=sessions, fails=st.booleans())  # fmt: skip
    def transaction(self, data, texts, session, fails):
        gone = self.chosen(data)
        talk = self.chosen(data, "conversations")
        before = [self.alice.document(kind) for kind in KINDS]
        known = dict(self.model.now["preferences"])
        highest = dict(self.highest)
        done = {}
        try:
            with self.alice.transaction(session_id=session):
                if gone is not None:
                    self.alice.forget_preference(*gone[1:])
                    done[gone] = None
                    del self.model.now["preferences"][gone]
                for text in texts:
                    made = self.upserted("goals", None, text, [], session)
                    done.update(made)
                    self.model.now["preferences"].update(made)
                if talk is not None:
                    self.alice.forget_conversation(talk[1])
                    done[talk] = None
                assert shown(self.read()["preferences"]) == shown(self.model.now["preferences"])
                if fails:
                    stop()
        except Stop:
            self.model.now["preferences"], self.highest = known, highest
            assert [self.alice.document(kind) for kind in KINDS] == before
            return
        self.model.now["preferences"] = known
        self.model.commit(done, "transaction", session)

    @rule(text=st.sampled_from(["op one", "op two"]), operation=st.sampled_from(["a", "b"]))
    def operation(self, text, operation):
        operation = f"{operation}{self.forgotten}"  # forgetting may have forgotten the old ones
        known = self.operations.get(operation)
        place = ("preferences", "goals", f"op{text[3:]}")
        before = self.alice.last_transaction()

        def do():
            with self.alice.transaction(operation_id=operation):
                self.alice.upsert_preference("goals", text, id=place[2])

        if known is None:
            do()
            old = self.model.now["preferences"].get(place)
            self.model.commit({place: self.changed(old, text, [], "")}, "transaction")
            self.operations[operation] = text
        elif known == text:
            do()
            assert self.alice.last_transaction() == before
        else:
            with pytest.raises(Conflict, match="used for different content"):
                do()
            assert self.alice.last_transaction() == before

    # What people do

    @rule(kind=st.sampled_from(KINDS))
    def open_an_editor(self, kind):
        if self.file(kind).exists() and kind not in self.model.pending:
            self.buffers.append((kind, self.file(kind).read_text(), dict(self.model.saved[kind])))
            self.buffers = self.buffers[-4:]

    @rule(data=st.data(), kind=st.sampled_from(KINDS), change=st.sampled_from(["note", "text", "delete", "add", "nothing"]), is_renamed=st.booleans(), is_old=st.booleans())  # fmt: skip
    def save(self, data, kind, change, is_renamed, is_old):
        file = self.file(kind)
        if not file.exists():
            return
        text, state = file.read_text(), dict(self.model.saved[kind])
        if is_old and self.buffers:
            kind, text, state = data.draw(st.sampled_from(self.buffers))
            file, state = self.file(kind), dict(state)
        if not file.exists():
            return
        text = self.edited(data, kind, text, state, change)
        if is_renamed:
            beside = file.with_name("editor.tmp~")
            beside.write_text(text)
            beside.replace(file)
        else:
            file.write_text(text)
        os.utime(file, (1, 1))  # long enough ago to be whole
        self.take_over(kind, text, state)

    def take_over(self, kind, text, state):
        """Let the model have what now stands in a file."""
        timeline = Timeline(self.diary.engine.backend, "alice")
        logged = timeline.text(kind)
        base = int(re.search(r"^seq = (\d+)$", text, re.MULTILINE)[1])
        if f"\nseq = {base}\n" in logged or base > self.model.newest:
            base = None
        grown_from = logged if base is None else timeline.text(kind, base)
        is_news = text not in (logged, grown_from)
        self.model.save(kind, state, base, is_news=is_news)
        notes = set(re.findall("# note .*", text if is_news else logged))
        is_known = self.model.now[kind] == self.model.log[-1].states[kind]
        if is_news and is_known and notes <= set(re.findall("# note .*", logged)):
            # All that they changed had come to pass before. Where history ends at the very bytes that are
            # read from now on there is nothing to log; else, be it for a blank line, there is.
            is_news = self.alice.document(kind) != logged
            self.model.save(kind, state, base, is_news=is_news)
        self.notes[kind] = notes

    def log_saved(self, kinds):
        """Log hand edits in the model; their files keep the number of their base version.

        An editor that opened such a file earlier is closed: two versions have the number that it would save.
        """
        self.buffers = [each for each in self.buffers if each[0] not in kinds & self.model.pending]
        self.model.log_saved(kinds)

    def edited(self, data, kind, text, state, change):
        """Return a text changed by hand, and change the entries alike."""
        number = self.number()
        keys = sorted(key for key in state if f"[{render_path(key)}]" in text)
        if change == "delete":
            # A text without what a hand edit added since may also come from an editor that was opened before.
            base = int(re.search(r"^seq = (\d+)$", text, re.MULTILINE)[1])
            opened = self.model.log[min(base, self.model.newest)]
            keys = [key for key in keys if key in opened.states[kind]]
        if change in {"text", "delete"} and keys:
            key = data.draw(st.sampled_from(keys))
            return self.edited_entry(text, state, key, change, number)
        if change == "add":
            if kind == "preferences":
                key, entry = (kind, "goals", f"mine{number}"), Entry(f"by hand {number}")
                body = f'text = "by hand {number}"'
            else:
                key, entry = (kind, f"mine{number}"), Entry(f"by hand {number}", (), 0)
                body = f'summary = "by hand {number}"'
            state[key] = replace(entry, stamp=self.model.stamp())
            return f"{text.rstrip()}\n\n# mine\n[{render_path(key)}]\n{body}  # {number}\n"
        if change == "note":
            return f"{text.rstrip()}\n\n# note {number}\n"
        return text

    def edited_entry(self, text, state, key, change, number):
        made = []
        for block in split_blocks(text):
            if block.path != key:
                made.append(block.text)
            elif change == "delete":
                made.append(split_tail(block.text)[1])
                del state[key]
                if key[0] == "preferences":
                    self.highest[key[1]] = 0  # the highest id may be given out again
            else:
                field = "text" if key[0] == "preferences" else "summary"
                new, count = re.subn(
                    rf'^{field} = "(?!"").*$', f'{field} = "by hand {number}"  # why', block.text, count=1, flags=re.MULTILINE,
                )  # fmt: skip
                made.append(new)
                if count:
                    state[key] = replace(state[key], text=f"by hand {number}")
        return "".join(made)

    @rule(kind=st.sampled_from(KINDS))
    def remove_file(self, kind):
        if not self.file(kind).exists() or self.numbers % 4:
            return
        self.file(kind).unlink()
        self.model.save(kind, {}, None, is_news=True)
        self.buffers = [buffer for buffer in self.buffers if buffer[0] != kind]
        self.notes[kind] = set()
        if kind == "preferences":
            self.highest = dict.fromkeys(CATEGORIES, 0)

    # Going back

    @rule(how=st.sampled_from(["steps", "to", "session"]), steps=st.integers(1, 4), session=sessions, force=st.booleans(), dry_run=st.booleans())  # fmt: skip
    def roll_back(self, how, steps, session, force, dry_run):
        arguments = {"steps": steps}
        if how == "to":
            arguments = {"to": max(0, self.model.newest - steps)}
        elif how == "session":
            arguments = {"steps": 1, "session_id": session}
        plan = self.planned(arguments)
        before = [bookless(self.alice.document(kind)) for kind in KINDS]
        if plan is None or (plan.conflicts and not force and not dry_run):
            with pytest.raises(Conflict) as caught:
                self.alice.rollback(**arguments, force=force, dry_run=dry_run)
            if plan is not None:
                assert set(caught.value.keys) == {name(key) for key in plan.conflicts}
        else:
            done = self.alice.rollback(**arguments, force=force, dry_run=dry_run)
            assert done.undone == plan.undone
            assert done.keys == sorted(name(key) for key in plan.before)
            assert set(done.conflicts) == {name(key) for key in plan.conflicts}
            if not dry_run:
                self.model.roll_back(plan, arguments.get("session_id"))
                self.drop_notes_since(min(done.undone, default=0) - 1)
                return
        assert [bookless(self.alice.document(kind)) for kind in KINDS] == before
        assert self.alice.last_transaction() == self.model.newest

    def drop_notes_since(self, seq):
        """Expect only older notes in a document, because those of undone hand edits may be undone too."""
        if seq >= 0:
            timeline = Timeline(self.diary.engine.backend, "alice")
            for kind in KINDS:
                older, now = timeline.text(kind, seq), self.alice.document(kind)
                self.notes[kind] &= set(re.findall("# note .*", f"{older}{now}"))

    def planned(self, arguments):
        # Hand edits are logged first, so they are the last transaction.
        self.log_saved(set(KINDS))
        try:
            return self.model.plan(arguments.get("steps", 1), arguments.get("session_id"), arguments.get("to"))  # fmt: skip
        except Refused:
            return None

    @rule(steps=st.integers(1, 5))
    def undo_and_redo(self, steps):
        plan = self.planned({"steps": steps})
        if plan is None or plan.conflicts:
            with pytest.raises(Conflict):
                self.alice.rollback(steps)
            return
        before = [bookless(self.alice.document(kind)) for kind in KINDS]
        self.alice.rollback(steps)
        if not self.model.roll_back(plan, None):
            return
        self.check_reads()
        self.alice.rollback()
        self.model.roll_back(self.planned({"steps": 1}), None)
        for kind, text in zip(KINDS, before, strict=True):
            if text:  # a file that was removed begins anew
                assert bookless(self.alice.document(kind)) == text

    # Forgetting

    @precondition(lambda self: self.numbers % 5 == 4)
    @rule(session=sessions)
    def forget(self, session):
        is_known = self.model.knows(session)
        before = self.alice.last_transaction()
        self.alice.forget(session_id=session)
        self.buffers = []
        self.number()
        if not is_known:
            assert self.alice.last_transaction() == before
            return
        self.model.forget(session, [kind for kind in KINDS if self.file(kind).exists()])
        self.forgotten += 1

    # Crashes

    @rule()
    def reopen(self):
        self.open()

    @precondition(lambda self: self.is_whole())
    @rule(data=st.data(), at=st.integers(1, 25), in_both=st.booleans())
    def kill(self, data, at, in_both):
        """A process dies by kill -9 right before its n-th file operation."""
        number = self.number()
        key = ("preferences", "goals", f"k{number}")
        talk = self.chosen(data, "conversations") if in_both else None
        self.diary.engine.backend.last_record("alice")
        child = os.fork()
        if child == 0:
            try:
                files = HookedFiles()
                self.open(files)
                self.alice.last_transaction()
                files.hook = killed_before(at)
                with self.alice.transaction():
                    self.alice.upsert_preference("goals", f"killed {number}", id=key[2])
                    if talk is not None:
                        self.alice.forget_conversation(talk[1])
                os._exit(0)
            finally:
                os._exit(3)
        status = os.waitpid(child, 0)[1]
        assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL
        before = self.model.newest
        self.open()
        found = self.alice.last_transaction()
        assert status != 0 or found > before
        kinds = {"preferences", *(["conversations"] if talk else [])}
        last = next(Timeline(self.diary.engine.backend, "alice").records(), None)
        if found > before and last.type == "hand":
            # What people had saved was logged, and nothing behind it.
            files = {kind: self.model.saved[kind] for kind in self.model.pending & kinds}
            self.log_saved(kinds)
            for kind, state in files.items():
                text = self.file(kind).read_text()
                if text != Timeline(self.diary.engine.backend, "alice").text(kind):
                    self.take_over(kind, text, state)
        elif found > before:
            entry = Entry(f"killed {number}", (), 1, "", "", self.model.stamp())
            self.model.commit({key: entry, **({talk: None} if talk else {})}, "transaction")

    def is_whole(self):
        """Return whether all changed files exist; after a crash, a missing file may have been removed before or not."""
        return all(self.file(kind).exists() for kind in self.model.pending)

    @precondition(lambda self: self.is_whole())
    @rule(share=st.floats(0, 0.99), kind=st.sampled_from(KINDS))
    def torn_append(self, share, kind):
        """A process dies while it appends to history, with its next version of a document staged."""
        segments = sorted((self.root / "alice/history").glob("*.toml"))
        if not segments or not self.file(kind).exists():
            return
        seq = self.model.newest + 1
        record = render_record(Record(seq, "upsert", [], {kind: "0" * 32}, {kind: "1" * 32}))
        with segments[-1].open("a") as opened:
            opened.write(record[: int(len(record) * share)])
        text = re.sub(r"^seq = \d+$", f"seq = {seq}", self.file(kind).read_text(), flags=re.MULTILINE)  # fmt: skip
        staged = self.root / f"alice/.staged-1-0-{kind}.tmp"
        staged.write_text(text[: int(len(text) * (1 - share))])
        self.open()
        self.alice.preferences()
        assert not staged.exists()

    # What has to hold

    def read(self, alice=None):
        alice = alice or self.alice
        return {
            "preferences": {
                ("preferences", category, key): Entry(item.text, tuple(item.contexts), item.count)
                for category, items in alice.preferences().items()
                for key, item in items.items()
            },
            "conversations": {
                ("conversations", key): Entry(item.summary, (), item.turns)
                for key, item in alice.conversations().items()
            },
        }

    def check_reads(self):
        found = self.read()
        for kind in KINDS:
            assert shown(found[kind]) == shown(self.model.now[kind])

    def check_as_of(self, seq):
        found = self.read(self.alice.as_of(seq))
        for kind in KINDS:
            assert shown(found[kind]) == shown(self.model.log[seq].states[kind])

    @invariant()
    def reads_are_those_of_the_model(self):
        self.check_reads()
        assert self.alice.last_transaction() == self.model.newest
        for kind in KINDS:
            assert self.notes[kind] <= set(re.findall("# note .*", self.alice.document(kind)))

    @invariant()
    def a_moment_of_the_past_is_as_it_was(self):
        self.check_as_of(self.model.newest * 7 // 11)

    def teardown(self):
        try:
            self.open()
            self.check_reads()
            for seq in range(0, self.model.newest + 1, self.stride):
                self.check_as_of(seq)
            self.check_history()
            assert verify(self.diary.engine.backend, "alice") is None
            assert not list((self.root / "alice").glob(".staged*"))
        finally:
            shutil.rmtree(self.root)

    def check_history(self):
        """History names every change of every entry, with what it was before and after."""
        log = list(Timeline(self.diary.engine.backend, "alice").records())[::-1]
        assert [record.seq for record in log] == list(range(1, len(self.model.log)))
        assert [record.type for record in log] == [logged.type for logged in self.model.log[1:]]
        told = {(h.seq, h.key): (h.before, h.after) for h in self.alice.history(limit=10**6)}
        for seq in range(1, len(self.model.log)):
            for key, change in self.model.changes(seq).items():
                assert tuple(map(text_of, told.pop((seq, name(key))))) == tuple(
                    entry and entry.text for entry in change
                )
        for before, after in told.values():  # what else there is are counters and names
            assert text_of(before) == text_of(after)


class EveryState(Histories):
    """Looks at all of them."""

    stride = 1


def text_of(values):
    return values and values.get("text", values.get("summary"))


# What fails takes long to shrink, and tells as it is what was done.
QUIET = settings(
    deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)  # fmt: skip


def test_random_histories_match_the_model_at_every_point():
    run_state_machine_as_test(
        Histories,
        settings=settings(QUIET, max_examples=10, stateful_step_count=20, derandomize=True),
    )


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_2000_random_histories_match_the_model_at_every_point():
    run_state_machine_as_test(
        EveryState, settings=settings(QUIET, max_examples=2_000, stateful_step_count=30)
    )
