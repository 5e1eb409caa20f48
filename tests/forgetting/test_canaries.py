"""Random texts are told in all the ways there are, and forgotten: no byte of them is left or comes back."""

from __future__ import annotations

import json
import os
import random
import re
from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import pytest

from tomldiary import Conflict, Diary
from tomldiary.backends import LocalBackend
from tomldiary.engine.transaction import Source
from tomldiary.errors import Forgotten
from tomldiary.ingest import ingest
from tomldiary.toml.lexer import split_blocks

CANARY = re.compile(rb"canary\d+x\d+")
DAY = datetime(2024, 5, 1, tzinfo=UTC)


class Teller:
    """Tells canaries, each under one group: what is going to be forgotten together."""

    def __init__(self, root, seed, segment_bytes):
        self.root = root
        self.segment_bytes = segment_bytes
        self.choose = random.Random(seed)
        self.diary = self.opened()
        self.said = {}

    def opened(self):
        backend = LocalBackend(self.root, durability="process", segment_bytes=self.segment_bytes)
        return Diary(backend, agent="rules", max_prefs_per_category=10**5)

    def new(self, group):
        canary = f"canary{len(self.said)}x{self.choose.randrange(10**9)}"
        self.said[canary.encode()] = group
        return canary

    def of(self, *groups):
        return {canary for canary, group in self.said.items() if group in groups}

    def left(self):
        """Return all canaries in any byte, or in the name of any file, below the root."""
        found = set()
        for path in self.root.rglob("*"):
            found |= set(CANARY.findall(path.name.encode()))
            if path.is_file():
                found |= set(CANARY.findall(path.read_bytes()))
        return found

    def tell(self, name, group, session, now=None):
        """Tell one to three canaries in one of seven ways."""
        user = self.diary.user(name)
        mine = [
            key for key, item in user.preferences("likes").items() if item.updated_by == session
        ]
        said = {"session_id": session, "now": now}
        match self.choose.randrange(7):
            case 0 if mine:  # older words are in history only
                user.upsert_preference(
                    "likes", self.new(group), id=self.choose.choice(mine), **said
                )
            case 1:
                key, _ = user.upsert_preference("likes", self.new(group), **said)
                user.forget_preference("likes", key, session_id=session, reason=self.new(group))
            case 2:
                user.add_turn(f"I love {self.new(group)}.", "ok", session, now=now)
            case 3:
                user.upsert_preference("likes", self.new(group), **said)
                user.rollback(1, actor=self.new(group), reason=self.new(group))
            case 4 if mine:
                self.save(name, self.choose.choice(mine), self.new(group), self.new(group))
                user.upsert_preference("goals", f"seen {len(self.said)}", session_id="kept")
            case 5:
                with user.transaction(operation_id=self.new(group), session_id=session):
                    user.upsert_preference("likes", self.new(group), **said)
            case _:
                user.upsert_preference(
                    "likes", self.new(group), contexts=[self.new(group)], reason=self.new(group), **said,
                )  # fmt: skip

    def save(self, name, key, text, note):
        """Change an entry with an editor."""
        file = self.root / f"{name}/preferences.toml"
        header = f"[preferences.likes.{key}]"
        before, _, after = file.read_text().partition(header)
        changed = re.sub(r"^text = .*$", f'text = "{text}"', after, count=1, flags=re.MULTILINE)
        file.write_text(f"{before}# {note}\n{header}{changed}")
        os.utime(file, (1, 1))


def tell_all(teller, count):
    """Tell `count` canaries to three users."""
    choose = teller.choose
    while len(teller.said) < count:
        dice = choose.random()
        if dice < 0.45:
            session = f"gone-{choose.randrange(3)}"
            teller.tell("alice", session, session)
        elif dice < 0.55:
            teller.diary.user("alice").add_turn(f"I love {teller.new('source')}.", "ok", "told")
        elif dice < 0.65:
            teller.tell("alice", "kept", "kept")
        elif dice < 0.75:
            teller.tell("bob", "kept", "kept", now=DAY + timedelta(days=99))
        elif dice < 0.9:
            teller.tell("bob", "before", "old", now=DAY)
        else:
            teller.tell("carol", "everything", "hers")


def read_log(teller):
    """Read a chat log in, which leaves marks of its turns."""
    log = teller.root.parent / "log.json"
    turns = [{"role": "user", "content": f"I love {teller.new('gone-0')}."}]
    log.write_text(json.dumps([{"id": "gone-0", "messages": turns}]))
    ingest(teller.diary, log, "alice")


def leave_staged(teller):
    """Leave what a process that was killed leaves."""
    for name in ("alice", "bob", "carol"):
        folder = teller.root / name
        for kind in ("preferences", "conversations"):
            (folder / f".staged-1-0-{kind}.tmp").write_bytes((folder / f"{kind}.toml").read_bytes())


STEPS = [
    ("alice", "gone-0", {"session_id": "gone-0"}),
    ("alice", "gone-1", {"session_id": "gone-1"}),
    ("alice", "gone-2", {"session_id": "gone-2"}),
    ("alice", "source", {"source": "told"}),
    ("bob", "before", {"before": DAY + timedelta(days=1)}),
    ("carol", "everything", {"everything": True}),
]


def forget_all(root, count, seed):
    teller = Teller(root, seed, min(60_000, 200 * count))
    tell_all(teller, count)
    read_log(teller)
    assert len(list((root / "alice/history").iterdir())) > 2
    other = teller.opened()  # knows the old texts, like another process
    epochs = {}
    for name in ("alice", "bob", "carol"):
        other.user(name).preferences()
        other.user(name).recall("canary")
        epochs[name] = other.engine.backend.epoch(name)
    leave_staged(teller)
    gone = set()
    # What was rolled back is in no file any more, but everything said is in some byte now.
    assert teller.left() == set(teller.said)
    for name, group, selector in STEPS:
        gone |= teller.of(group)
        beside, kept = kept_bytes(root, name)
        teller.opened().user(name).forget(**selector)
        found = teller.left()
        assert not found & gone, selector
        assert found == set(teller.said) - gone
        assert kept_bytes(root, name) == (beside, [] if "everything" in selector else kept)
    check_nothing_comes_back(teller, other, epochs, gone)


def kept_bytes(root, name):
    """Return the files of the other users, and the entries of a user that nothing is forgotten of."""
    files = [path for path in root.glob("*/**/*.toml") if path.is_file()]
    beside = {path: path.read_bytes() for path in files if name not in path.parts}
    file = root / name / "preferences.toml"
    blocks = split_blocks(file.read_text()) if file.exists() else []
    return beside, [block.text.rstrip("\n") for block in blocks if '"kept"' in block.text]


def check_nothing_comes_back(teller, other, epochs, gone):
    for name in ("alice", "bob"):
        user = teller.opened().user(name)
        for seq in range(0, user.last_transaction() + 1, 9):
            past = user.as_of(seq)
            told = f"{past.preferences()}{past.conversations()}".encode()
            assert not set(CANARY.findall(told)) & gone
        assert (
            not set(
                CANARY.findall(
                    repr([asdict(entry) for entry in user.history(limit=10**6)]).encode()
                )
            )
            & gone
        )
        for crossing in ({"to": 0}, {"steps": 10**6}):
            with pytest.raises(Conflict, match="data was forgotten"):
                user.rollback(**crossing, force=True)
    for name in ("alice", "bob", "carol"):
        # Who had read it before writes on, and finishes what it began before.
        user = other.user(name)
        with pytest.raises(Forgotten):
            other.engine.write(
                name,
                lambda tx: tx.edit("preferences").put(("preferences", "likes", "x"), {"text": "canary1x1"}),
                Source("turn"),
                epoch=epochs[name],
            )  # fmt: skip
        user.upsert_preference("goals", "go on")
        user.rollback()
        user.rollback()
        assert not set(CANARY.findall(user.render().encode())) & gone
    assert not teller.left() & gone


def test_150_canaries_leave_no_byte_and_never_return(tmp_path):
    forget_all(tmp_path / "m", 150, 5)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_1000_canaries_leave_no_byte_and_never_return(tmp_path):
    forget_all(tmp_path / "m", 1_000, random.randrange(10**9))
