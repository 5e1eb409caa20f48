"""The 27 rollback and constraint cases in which MemState fails, each with the right answer.

The cases and their numbers are those of a table measured on MemState 0.5.1. It tells others about a
write by hooks that can fail; here the storage fails instead, and the search index follows by itself. With
hooks and drafts the cases are in `tests/hooks/test_memstate_hooks.py`.
"""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from tomldiary import Conflict, Constraint, Diary
from tomldiary.backends import MemoryBackend
from tomldiary.errors import BackendError, ImmutableEntry, InvalidValue, SchemaError


class DietFact(BaseModel):
    role: str
    food: str
    note: str | None = None


class Birth(BaseModel):
    who: str
    year: int


class Stamp(BaseModel):
    text: str


class Failing(MemoryBackend):
    """Storage that fails when it is told to, after everything has been prepared."""

    is_broken = False

    def commit(self, user, commit):
        if self.is_broken:
            raise BackendError("the disk is full.")
        return super().commit(user, commit)


def opened(backend):
    diary = Diary(backend, agent="rules")
    diary.register_schema("diet", DietFact, constraint=Constraint(singleton_key="role"))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    diary.register_schema("stamp", Stamp, Constraint(immutable=True))
    return diary


@pytest.fixture
def diary(tmp_path):
    return opened(tmp_path)


@pytest.fixture
def alice(diary):
    return diary.user("alice")


@pytest.fixture
def failing():
    return Failing()


def diet(food, role="user", note=None):
    return DietFact(role=role, food=food, note=note)


def foods(user):
    return [fact.data.food for fact in user.query("diet")]


def log(user):
    return [entry.type for entry in user.history()][::-1]


def found(user, query):
    return [hit.key for hit in user.recall(query, kinds=["facts"])]


def test_case_01_undoing_a_session_that_was_overwritten_since_is_refused(alice):
    alice.commit(diet("vegan"), session_id="a")
    alice.commit(diet("fish"), session_id="b")
    with pytest.raises(Conflict) as caught:
        alice.rollback(session_id="a")
    assert caught.value.keys == ["facts/diet/user"]
    assert foods(alice) == ["fish"]
    alice.rollback(session_id="b")
    assert foods(alice) == ["vegan"]


def test_case_02_a_fact_keeps_the_session_that_committed_it_first(alice):
    alice.commit(diet("vegan"), session_id="a")
    alice.commit(diet("fish"), session_id="b")
    fact = alice.get("diet/user")
    assert (fact.created_by, fact.updated_by) == ("a", "b")
    for session in ("a", "b"):
        assert [one.id for one in alice.query("diet", session_id=session)] == ["diet/user"]
    assert alice.query("diet", session_id="c") == []


def test_case_03_a_singleton_is_one_per_user(diary):
    diary.user("alice").commit(diet("vegan", role="diet"))
    diary.user("bob").commit(diet("fish", role="diet"))
    assert foods(diary.user("alice")) == ["vegan"]
    assert foods(diary.user("bob")) == ["fish"]


def test_case_04_an_update_cannot_give_two_facts_one_key(alice):
    alice.commit(diet("vegan", role="user"))
    other = alice.commit(diet("fish", role="dog"))
    with pytest.raises(InvalidValue, match="singleton key"):
        alice.update(other, {"role": "user"})
    assert {fact.id: fact.data.role for fact in alice.query("diet")} == {
        "diet/user": "user",
        "diet/dog": "dog",
    }


def test_case_05_undoing_a_removal_does_not_double_a_recommitted_fact(alice):
    fact = alice.commit(diet("vegan"), session_id="a")
    alice.delete(fact, session_id="a")
    alice.commit(diet("fish"), session_id="b")
    with pytest.raises(Conflict):
        alice.rollback(session_id="a")
    assert foods(alice) == ["fish"]
    alice.rollback(session_id="a", force=True)
    assert foods(alice) == ["vegan"]


@pytest.mark.parametrize("fact", [Birth(who="user", year=1980), Stamp(text="signed")], ids=type)
def test_case_06_nothing_changes_or_removes_an_immutable_fact(alice, fact):
    key = alice.commit(fact, session_id="a")
    changes = {"year": 1999} if isinstance(fact, Birth) else {"text": "not signed"}
    for change in (
        lambda: alice.update(key, changes),
        lambda: alice.delete(key),
    ):
        with pytest.raises(ImmutableEntry, match="never changed"):
            change()
    for force in (False, True):
        with pytest.raises(Conflict, match="a constraint forbids it") as caught:
            alice.rollback(force=force)
        assert caught.value.keys == [f"facts/{key}"]
    assert alice.rollback(dry_run=True).forbidden == [f"facts/{key}"]
    assert alice.get(key).data == fact
    assert alice.commit(fact) == key


def test_case_06_committing_another_value_over_an_immutable_one_is_refused(alice):
    alice.commit(Birth(who="user", year=1980))
    with pytest.raises(ImmutableEntry):
        alice.commit(Birth(who="user", year=1999))
    assert [fact.data.year for fact in alice.query("birth")] == [1980]


def test_case_07_a_failed_change_is_neither_logged_nor_undone(failing):
    alice = opened(failing).user("alice")
    alice.commit(diet("vegan"))
    alice.update("diet/user", {"food": "fish"})
    failing.is_broken = True
    with pytest.raises(BackendError):
        alice.update("diet/user", {"food": "meat"})
    failing.is_broken = False
    assert foods(alice) == ["fish"]
    assert log(alice) == ["commit", "update"]
    assert alice.rollback().keys == ["facts/diet/user"]
    assert foods(alice) == ["vegan"]


def test_case_08_a_failed_change_cannot_overwrite_a_later_one(failing):
    alice = opened(failing).user("alice")
    alice.commit(diet("vegan"), session_id="a")
    failing.is_broken = True
    with pytest.raises(BackendError):
        alice.update("diet/user", {"food": "meat"}, session_id="a")
    failing.is_broken = False
    alice.update("diet/user", {"food": "fish"}, session_id="b")
    with pytest.raises(Conflict):
        alice.rollback(session_id="a")
    assert foods(alice) == ["fish"]


def test_case_09_a_removal_that_fails_leaves_fact_and_index_as_they_were(failing):
    alice = opened(failing).user("alice")
    key = alice.commit(diet("lentils"))
    failing.is_broken = True
    with pytest.raises(BackendError):
        alice.delete(key)
    failing.is_broken = False
    assert (foods(alice), found(alice, "lentils")) == (["lentils"], [key])
    alice.delete(key)
    assert (foods(alice), found(alice, "lentils")) == ([], [])


def test_case_10_no_document_is_written_if_one_cannot_be(failing):
    alice = opened(failing).user("alice")
    failing.is_broken = True

    def both():
        with alice.transaction():
            alice.commit(diet("lentils"))
            alice.upsert_preference("likes", "lentils")

    with pytest.raises(BackendError):
        both()
    failing.is_broken = False
    assert (alice.query("diet"), alice.preferences("likes"), alice.history()) == ([], {}, [])
    assert alice.recall("lentils") == []


def test_case_11_a_failed_rollback_can_be_repeated(failing):
    alice = opened(failing).user("alice")
    alice.commit(diet("vegan"))
    alice.commit(diet("lentils"))
    failing.is_broken = True
    with pytest.raises(BackendError):
        alice.rollback()
    failing.is_broken = False
    assert (foods(alice), found(alice, "lentils")) == (["lentils"], ["diet/user"])
    assert log(alice) == ["commit", "commit"]
    alice.rollback()
    assert (foods(alice), found(alice, "lentils")) == (["vegan"], [])


@pytest.mark.parametrize("remover", ["", "b"])
def test_case_12_undoing_a_session_with_a_removed_fact_is_refused(alice, remover):
    fact = alice.commit(diet("vegan"), session_id="a")
    alice.delete(fact, session_id=remover)
    with pytest.raises(Conflict) as caught:
        alice.rollback(session_id="a")
    assert caught.value.keys == ["facts/diet/user"]
    alice.rollback()  # the removal itself is undone by the one step that it was
    assert foods(alice) == ["vegan"]


def test_case_13_undoing_a_session_can_be_undone_and_search_follows(alice):
    alice.commit(diet("lentils"), session_id="a")
    alice.commit(diet("beans", role="dog"), session_id="a")
    done = alice.rollback(to=0, session_id="a")
    assert done.undone == [2, 1]
    assert (foods(alice), found(alice, "lentils beans")) == ([], [])
    alice.rollback()
    assert sorted(foods(alice)) == ["beans", "lentils"]
    assert sorted(found(alice, "lentils beans")) == ["diet/dog", "diet/user"]


def test_case_14_a_confirmed_fact_survives_forgetting_its_first_session(alice):
    alice.commit(diet("vegan"), session_id="a")
    alice.commit(diet("fish", role="dog"), session_id="a")
    alice.commit(diet("vegan"), session_id="b")
    alice.forget(session_id="a")
    assert [(fact.id, fact.data.food) for fact in alice.query("diet")] == [("diet/user", "vegan")]
    assert alice.get("diet/user").updated_by == "b"


def test_case_15_a_restart_does_not_change_what_the_last_step_was(tmp_path):
    alice = opened(tmp_path).user("alice")
    alice.commit(diet("1"), session_id="s")
    alice.update("diet/user", {"food": "2"}, session_id="s")
    alice.update("diet/user", {"food": "3"}, session_id="s")
    alice = opened(tmp_path).user("alice")
    alice.update("diet/user", {"food": "4"}, session_id="s")
    alice.rollback(1, session_id="s")
    assert foods(alice) == ["3"]


def test_case_16_a_rollback_reports_its_steps(alice):
    alice.commit(diet("vegan"))
    with pytest.raises(Conflict, match="only 1"):
        alice.rollback(99)
    done = alice.rollback(1)
    assert (done.undone, done.keys) == ([1], ["facts/diet/user"])
    with pytest.raises(Conflict, match="no transaction"):
        alice.rollback(99, session_id="nobody")


def test_case_17_a_rollback_erases_no_history_and_can_be_undone(alice):
    alice.commit(diet("vegan"))
    before = alice.document("facts")
    alice.rollback()
    assert log(alice) == ["commit", "rollback"]
    alice.rollback()
    after = alice.document("facts")
    assert after.replace("seq = 3", "seq = 1") == before
    assert [change.after and change.after["food"] for change in alice.why("facts/diet/user").changes] == [
        "vegan",
        None,
        "vegan",
    ]  # fmt: skip


def test_case_18_reads_return_copies(alice):
    alice.commit(diet("vegan"))
    alice.get("diet/user").data.food = "changed"
    alice.query("diet")[0].data.food = "changed"
    alice.delete("diet/user")["food"] = "changed"
    alice.rollback()
    assert foods(alice) == ["vegan"]


def test_case_19_the_fact_of_the_caller_is_not_changed(alice):
    fact = diet("vegan")
    before = fact.model_copy(deep=True)
    alice.commit(fact, session_id="a")
    assert fact == before
    fact.food = "changed"
    assert foods(alice) == ["vegan"]


def test_case_20_a_type_that_is_not_registered_is_refused(alice):
    class Other(BaseModel):
        text: str

    for ask in (
        lambda: alice.commit(Other(text="x")),
        lambda: alice.query("other"),
        lambda: alice.get("other/x"),
        lambda: alice.delete("other/x"),
        lambda: alice.update("other/x", {}),
    ):
        with pytest.raises(SchemaError, match="not registered"):
            ask()
    assert alice.history() == []


@pytest.mark.parametrize("changes", [{"payload": {"food": "fish"}}, {"content": "fish"}])
def test_case_21_an_update_of_an_unknown_field_is_an_error(alice, changes):
    alice.commit(diet("vegan"))
    with pytest.raises(
        InvalidValue, match=f"diet.{next(iter(changes))}: DietFact has no such field"
    ):
        alice.update("diet/user", changes)
    assert foods(alice) == ["vegan"]


def test_case_22_none_in_a_query_matches_an_empty_field(alice):
    alice.commit(diet("vegan"))
    alice.commit(diet("fish", role="dog", note="picky"))
    assert [fact.id for fact in alice.query("diet", {"note": None})] == ["diet/user"]
    assert [fact.id for fact in alice.query("diet", {"note": "picky"})] == ["diet/dog"]
    with pytest.raises(InvalidValue, match=r"diet.nope: DietFact has no such field"):
        alice.query("diet", {"nope": None})


@pytest.mark.parametrize(
    "role", ["a:b", "a/b", "a%2fb", "a.b", "a b", '"', "日", "../x", "@", "null"]
)
def test_case_23_any_text_is_a_key_and_keys_never_collide(alice, role):
    fact = alice.commit(diet("vegan", role=role))
    alice.commit(diet("fish", role=f"{role}."))
    assert alice.get(fact).data.role == role
    assert [one.id for one in alice.query("diet", {"role": role})] == [fact]
    assert len(alice.query("diet")) == 2


def test_case_24_a_forgotten_fact_is_erased_everywhere(alice, diary, tmp_path):
    alice.commit(diet("canary-one", note="canary-two"), session_id="a")
    alice.delete("diet/user", session_id="a")
    alice.forget(session_id="a")
    backend = diary.engine.backend
    stored = [backend.read("alice", kind).text for kind in backend.kinds("alice")]
    everything = "\n".join([*stored, *backend.records("alice")]).encode()
    everything += b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"canary" not in everything
    assert b"forget" in everything  # this did look at the history


def test_case_25_an_emptied_field_is_not_found(alice):
    alice.commit(diet("vegan", note="lentils"))
    assert found(alice, "lentils") == ["diet/user"]
    alice.update("diet/user", {"note": ""})
    assert found(alice, "lentils") == []
    alice.update("diet/user", {"note": None})
    assert alice.get("diet/user").data.note is None


def test_case_26_hits_of_all_documents_are_sorted_and_limited(alice):
    alice.commit(diet("lentils and beans"))
    alice.commit(diet("lentils", role="dog", note="no " * 30))
    alice.upsert_preference("likes", "lentils, beans and rice")
    hits = alice.recall("lentils beans", limit=10)
    assert {hit.kind for hit in hits} == {"facts", "preferences"}
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[-1].key == "diet/dog"
    assert len(alice.recall("lentils beans", limit=2)) == 2


def test_case_27_a_commit_without_a_session_can_be_undone(alice):
    alice.commit(diet("vegan"))
    alice.commit(diet("fish"))
    assert alice.rollback(1).undone == [2]
    assert foods(alice) == ["vegan"]
    assert json.dumps(alice.history()[0].after)  # plain values, all of it
