"""Random histories of facts: at any valid time and any transaction, the memory holds what a plain table says."""

from __future__ import annotations

import os
import random
import re
from contextlib import suppress
from copy import deepcopy
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pydantic import BaseModel

from tomldiary import Conflict, Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.errors import DiaryError

FIRST = datetime(2024, 1, 1, tzinfo=UTC)
ZONES = [UTC, timezone(timedelta(hours=-7)), timezone(timedelta(hours=13))]


class Home(BaseModel):
    who: str
    city: str


class Offer(BaseModel):
    code: str
    text: str


class Stop(Exception):
    """Ends a transaction."""


class History:
    """A memory beside its model.

    `now` has the city and the given end of each home by person and start, and the text of each offer by code.
    `log` has it after each transaction, with the session of the transaction.
    """

    def __init__(self, root, seed):
        self.root, self.choose = root, random.Random(seed)
        self.diaries = [self.opened(), self.opened()]
        self.now = {}
        self.log = [({}, "")]
        self.kept = self.words = 0
        self.forgotten = []

    def opened(self):
        diary = Diary(LocalBackend(self.root, durability="none"), agent="rules")
        diary.register_schema("home", Home, Constraint("who", temporal=True))
        diary.register_schema("offer", Offer, Constraint("code", ttl=timedelta(days=1)))
        return diary

    @property
    def alice(self):
        return self.choose.choice(self.diaries).user("alice")

    def word(self):
        self.words += 1
        return f"w{self.words:04}x"

    def day(self, last=30):
        return FIRST + timedelta(days=self.choose.randrange(last))

    def spelled(self, time):
        zone = self.choose.choice([None, *ZONES])
        return time.replace(tzinfo=None) if zone is None else time.astimezone(zone)

    def logged(self, session=""):
        self.log.append((deepcopy(self.now), session))

    def logged_if_stored(self, alice, session=""):
        if alice.last_transaction() == len(self.log):
            self.logged(session)
        else:
            assert self.now == self.log[-1][0]

    @staticmethod
    def holder(state, who, at):
        """Return the start of the home that a person has at a time, or None."""
        begun = [key[1] for key in state if key[0] == who and key[1] <= at]
        if not begun:
            return None
        end = state[who, max(begun)][1]
        return None if end is not None and end <= at else max(begun)

    # Changes

    def commit(self, alice, session):
        who, start, city = self.choose.choice("ab"), self.day(), self.word()
        end = self.choose.choice([None, None, start + timedelta(days=self.choose.randint(1, 9))])
        alice.facts.commit(
            Home(who=who, city=city), session_id=session, valid_from=self.spelled(start),
            valid_to=end and self.spelled(end),
        )  # fmt: skip
        known = self.now.get((who, start), (None, None))[1]
        self.now[who, start] = (city, known if end is None else end)

    def commits(self, session):
        self.commit(self.alice, session)
        self.logged(session)

    def updates(self, session):
        who, at, city = self.choose.choice("ab"), self.day(35), self.word()
        start, alice = self.holder(self.now, who, at), self.alice
        end = self.choose.choice([None, at + timedelta(days=3)])
        change = {"city": city} if end is None else {}
        if start is None:
            with pytest.raises(DiaryError):
                alice.facts.update(f"home/{who}", change, valid_to=end, now=at)
            return
        alice.facts.update(f"home/{who}", change, valid_to=end, now=at, session_id=session)
        if end is None:
            self.now[who, at] = (city, self.now.get((who, at), (None, None))[1])
        else:
            self.now[who, start] = (self.now[who, start][0], end)
        self.logged_if_stored(alice, session)

    def deletes(self, session):
        homes = [key for key in self.now if isinstance(key, tuple)]
        if homes:
            who, start = self.choose.choice(homes)
            self.alice.facts.delete(f"home/{who}@{start:%Y-%m-%d}", session_id=session)
            del self.now[who, start]
            self.logged(session)

    def offers(self, session):
        code, text, age = self.choose.choice("xy"), self.word(), self.choose.choice([0, 2])
        when = datetime.now(UTC) - timedelta(days=age)
        self.alice.facts.commit(Offer(code=code, text=text), now=when, session_id=session)
        if code in self.now or not age:  # else it has expired
            self.now[code] = text
        self.logged(session)

    def transacts(self, session):
        alice, before = self.alice, deepcopy(self.now)
        with suppress(Stop), alice.transaction(session_id=session):
            self.commit(alice, session)
            within = deepcopy(self.now)
            with suppress(Stop), alice.transaction():
                self.commit(alice, session)
                raise Stop
            self.now = within
            self.check(alice, within)
            if self.choose.random() < 0.5:
                self.now = before
                raise Stop
            self.logged(session)

    def drafts(self, session):
        alice, key, city = self.alice, ("a", self.day()), self.word()
        home = Home(who="a", city=city)
        alice.discard_session(session)  # what a rollback restored
        self.logged_if_stored(alice, session)
        alice.facts.commit(home, valid_from=key[1], session_id=session, ephemeral=True)
        self.logged(session)
        assert alice.draft(session).facts.get("home/a", valid_at=key[1]).data == home
        self.check(alice, self.now)
        alice.promote_session(session)
        self.now[key] = (city, self.now.get(key, (None, None))[1])
        self.logged(session)

    def edits_by_hand(self, session):
        file, key, city = self.root / "alice/facts.toml", ("b", self.day()), self.word()
        if not file.exists() or key in self.now:
            return
        table = f'[facts.home."b@{key[1]:%Y-%m-%d}"]\nwho = "b"\ncity = "{city}"\n_valid_from = {key[1]:%Y-%m-%d}\n'
        file.write_text(f"{file.read_text().rstrip()}\n\n{table}")
        os.utime(file, (1, 1))
        self.now[key] = (city, None)
        self.check(self.alice, self.now)
        self.logged()
        self.commits(session)

    def rolls_back(self, session):
        alice, steps = self.alice, self.choose.randint(1, 4)
        first = len(self.log) - steps
        if first <= self.kept:
            with pytest.raises(DiaryError):
                alice.rollback(steps)
            return
        expected = alice.rollback(steps, dry_run=True).undone
        assert alice.rollback(steps).undone == expected == list(range(first, len(self.log)))[::-1]
        self.now = deepcopy(self.log[first - 1][0])
        self.logged_if_stored(alice)

    def rolls_a_session_back(self, session):
        alice = self.alice
        last = max(
            (number for number, each in enumerate(self.log) if each[1] == session), default=0
        )
        if last <= self.kept:
            return
        before, after = self.log[last - 1][0], self.log[last][0]
        keys = {key for key in before | after if before.get(key) != after.get(key)}
        if any(self.now.get(key) != after.get(key) for key in keys):
            with pytest.raises(Conflict):
                alice.rollback(session_id=session)
            return
        assert alice.rollback(session_id=session).undone == [last]
        self.now = {key: self.now[key] for key in self.now if key not in keys}
        self.now |= {key: before[key] for key in keys if key in before}
        self.logged_if_stored(alice, session)

    def forgets(self, session):
        homes = [key for key in self.now if isinstance(key, tuple)]
        if not homes or self.choose.random() < 0.7:
            return
        key, alice = self.choose.choice(homes), self.alice
        alice.forget(key=f"facts/home/{key[0]}@{key[1]:%Y-%m-%d}")
        self.forgotten += {state[key][0] for state, _ in self.log if key in state}
        del self.now[key]
        for state, _ in self.log:
            state.pop(key, None)
        assert alice.last_transaction() == len(self.log)
        self.kept = len(self.log)
        self.logged()
        for word in self.forgotten:
            assert alice.traces(word) == []

    # Reads

    def check(self, alice, state):
        homes = {key: state[key] for key in state if isinstance(key, tuple)}
        facts = alice.facts.query("home", include_ended=True)
        assert {(each.data.who, each.valid_from): each.data.city for each in facts} == {
            key: city for key, (city, _) in homes.items()
        }
        for each in facts:
            later = [
                start for who, start in homes if who == each.data.who and start > each.valid_from
            ]
            end = homes[each.data.who, each.valid_from][1]
            assert each.valid_to == min((*later, *([end] if end else [])), default=None)
        at = self.day(40) + timedelta(hours=self.choose.choice([-1, 0, 1]))
        holding = {(who, self.holder(homes, who, at)) for who in "ab"} & homes.keys()
        found = alice.facts.query("home", valid_at=self.spelled(at))
        assert {(each.data.who, each.valid_from) for each in found} == holding
        words = " ".join(city for city, _ in homes.values())
        hits = alice.recall(words, limit=99, valid_at=at) if words else []
        assert {re.search("w....x", each.text)[0] for each in hits if "city" in each.text} == {
            homes[key][0] for key in holding
        }
        assert {each.data.code: each.data.text for each in alice.facts.query("offer")} == {
            key: state[key] for key in state if key not in homes
        }

    def play(self, count):
        verbs = [
            *[self.commits] * 4, self.updates, self.updates, self.deletes, self.offers, self.transacts,
            self.drafts, self.edits_by_hand, self.rolls_back, self.rolls_a_session_back, self.forgets,
        ]  # fmt: skip
        for _ in range(count):
            self.choose.choice(verbs)(self.choose.choice(["s1", "s2"]))
            alice, seq = self.alice, self.choose.randrange(len(self.log))
            assert alice.last_transaction() == len(self.log) - 1
            self.check(alice, self.now)
            self.check(alice.as_of(seq), self.log[seq][0])


@pytest.mark.parametrize("seed", range(2))
def test_random_facts_hold_as_in_a_plain_table_at_any_time(tmp_path, seed):
    History(tmp_path, seed).play(30)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_100_random_histories_of_facts_hold_as_in_a_plain_table_at_any_time(tmp_path):
    for seed in range(100):
        History(tmp_path / str(seed), seed).play(60)
