"""What other programs remember is carried over whole, once, and with a report of what was left out.

The files in `peers/` were made by those programs; `peers/make_fixtures.py` says how.
"""

from __future__ import annotations

import json
import re
import sqlite3
import traceback
from contextlib import closing
from datetime import datetime  # noqa: TC003 - read by pydantic
from pathlib import Path
from time import process_time

import pytest
from pydantic import BaseModel, Field
from typer.main import get_command

from tomldiary import Constraint, Diary
from tomldiary.cli.app import app
from tomldiary.entries.preferences import MAX_TEXT
from tomldiary.errors import ImmutableEntry, InvalidValue, LimitReached, UnknownCategory
from tomldiary.evaluation import load_questions
from tomldiary.importers import SOURCES, carry_over
from tomldiary.store.operations import Get, Search
from tomldiary.store.store import ItemStore

PEERS = Path(__file__).parent / "peers"
FILES = {
    "mem0": "mem0.json",
    "letta": "letta.af",
    "mcp-memory": "mcp-memory.jsonl",
    "memory-md": "harness",
    "claude-md": "harness/MEMORY.md",
    "langgraph-store": "langgraph_sqlite.sql",
    "langmem": "langmem.json",
    "memstate": "memstate.sql",
    "loomflow": "loomflow.json",
    "chatgpt": "chatgpt.json",
}
FOUND = {
    "mem0": {"note": 4},
    "letta": {"block": 2},
    "mcp-memory": {"item": 3},
    "memory-md": {"block": 2},
    "claude-md": {"block": 1},
    "langgraph-store": {"item": 2},
    "langmem": {"item": 3},
    "memstate": {"fact": 3},
    "loomflow": {"block": 2, "episode": 2, "fact": 3},
    "chatgpt": {"note": 2},
}


@pytest.fixture
def alice(tmp_path):
    return Diary(tmp_path / "m", agent="rules", durability="process").user("alice")


@pytest.fixture
def file(tmp_path):
    """Return the file of a peer; databases are made from their SQL."""

    def found(source):
        path = PEERS / FILES[source]
        if path.suffix != ".sql":
            return str(path)
        place = tmp_path / f"{path.stem}.db"
        with closing(sqlite3.connect(place)) as database:
            database.executescript(path.read_text("utf-8"))
        return str(place)

    return found


def contents(alice):
    """The bytes of all documents and of history."""
    root = Path(alice.diary.engine.backend.base_path) / "alice"
    return {path: path.read_bytes() for path in root.rglob("*.toml")}


def test_every_source_has_a_file_of_its_program():
    assert {*FILES, "tomldiary-firestore"} == {*SOURCES}


def test_the_command_and_the_page_name_every_source():
    import_memory = get_command(app).get_command(None, "import")
    (option,) = (each for each in import_memory.params if each.name == "source")
    named = re.split("[ ,.:]+", option.help)
    page = (Path(__file__).parents[2] / "docs/importing.md").read_text("utf-8")
    assert [each for each in SOURCES if each not in named or f"| `{each}` |" not in page] == []


@pytest.mark.parametrize("source", FILES)
def test_a_second_import_changes_nothing(alice, file, source):
    place = file(source)
    planned = carry_over(alice, source, place, dry_run=True)
    assert contents(alice) == {}
    done = carry_over(alice, source, place)
    assert (planned.is_done, done.is_done) == (False, True)
    without = {key for key in {*planned.added} ^ {*done.added} if "/fact-" not in key}
    assert without == set()  # a fact without a singleton key gets a random one
    assert done.found == FOUND[source]
    assert len(done.added) == sum(FOUND[source].values())
    assert alice.last_transaction() == 1
    before = contents(alice)
    again = carry_over(alice, source, place)
    assert (again.added, again.kept, len(again.present)) == ([], [], len(done.added))
    assert contents(alice) == before


@pytest.mark.parametrize("source", FILES)
def test_the_keys_of_a_report_name_entries(alice, file, source):
    place = file(source)
    done, again = carry_over(alice, source, place), carry_over(alice, source, place)
    assert sorted(again.present) == sorted(done.added)
    for key in done.added:
        assert alice.history(key, limit=1)[0].reason == f"import from {source}"


def test_a_repeated_fact_of_one_file_is_present_under_its_stored_key(alice, tmp_path):
    facts = [{"type": "note", "payload": {"text": "tea"}, "session_id": s} for s in ("s1", "s2")]
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    done = carry_over(alice, "memstate", str(tmp_path / "facts.json"))
    (fact,) = alice.facts.query("note")
    assert (done.added, done.present) == ([f"facts/{fact.id}"], [f"facts/{fact.id}"])


def test_equal_turns_of_one_time_are_found_one_by_one(alice, tmp_path):
    turn = {"input": "Thanks", "output": "", "occurred_at": "2026-01-02T10:00:00+05:00"}
    (tmp_path / "file").write_text(json.dumps({"episodes": [turn, turn]}))
    done, again = (carry_over(alice, "loomflow", str(tmp_path / "file")) for _ in range(2))
    assert (again.added, again.present) == ([], done.added)
    assert [f"episodes/{each.id}" for each in alice.episodes.list()] == done.added


def texts(alice):
    return {item.text for items in alice.preferences().values() for item in items.values()}


@pytest.mark.parametrize("source", FILES)
def test_what_was_imported_has_the_origin_import(alice, file, source):
    done = carry_over(alice, source, file(source))
    assert {alice.why(key).origin for key in done.added} == {"import"}


def test_an_import_waits_for_a_review_if_its_actor_does(tmp_path, file):
    alice = Diary(tmp_path / "m", agent="rules", quarantine={"import"}).user("alice")
    added = carry_over(alice, "mem0", file("mem0")).added
    assert (alice.recall("likes"), [change.key for change in alice.review()]) == ([], added)


def test_memories_of_mem0_keep_text_time_and_category(alice, file):
    theirs = json.loads(Path(file("mem0")).read_text("utf-8"))["results"]
    carry_over(alice, "mem0", file("mem0"))
    mine = [each for each in theirs if each["user_id"] == "alice"]
    assert texts(alice) == {each["memory"] for each in mine}
    stored = alice.preferences("biography")
    for each in mine:
        item = stored[f"imported-{each['id']}"]
        assert (item.text, item.created[:19]) == (each["memory"], each["created_at"][:19])
    assert stored[f"imported-{mine[-1]['id']}"].contexts in ([], ["health"])
    assert {tuple(item.contexts) for item in stored.values()} == {(), ("health",)}


def test_a_category_that_is_no_text_is_listed_as_left_out(alice, tmp_path):
    memory = {"id": "m1", "memory": "Plays chess", "metadata": {"category": ["likes", "work"]}}
    (tmp_path / "mem0.json").write_text(json.dumps([memory]))
    done = carry_over(alice, "mem0", str(tmp_path / "mem0.json"))
    assert (done.added, done.left_out) == (["biography/imported-m1"], ["field of metadata: 1"])


def test_the_first_category_of_a_memory_that_the_table_has_is_used(alice, tmp_path):
    memory = {"id": "m1", "memory": "Run 5 km", "categories": ["sports", "goals", "routines"]}
    (tmp_path / "mem0.json").write_text(json.dumps([{**memory, "metadata": {"category": "x"}}]))
    assert carry_over(alice, "mem0", str(tmp_path / "mem0.json")).added == ["goals/imported-m1"]


@pytest.mark.parametrize("field", ["role", "attributed_to"])
def test_a_statement_of_the_assistant_in_mem0_is_no_preference(alice, tmp_path, field):
    said = [("m1", "user", "I play chess"), ("m2", "assistant", "You may like go")]
    records = [{"id": id_, "memory": text, field: by} for id_, by, text in said]
    (tmp_path / "mem0.json").write_text(json.dumps(records))
    done = carry_over(alice, "mem0", str(tmp_path / "mem0.json"))
    left_out = ["statement of the assistant: 1"]
    assert (done.added, done.left_out) == (["biography/imported-m1"], left_out)


def test_memories_of_other_users_are_left_out(alice, file):
    assert "records of other users: bob" in carry_over(alice, "mem0", file("mem0")).left_out
    carol = alice.diary.user("carol")
    with pytest.raises(
        InvalidValue, match="no records of 'carol' were found, but records of alice, bob"
    ):
        carry_over(carol, "mem0", file("mem0"))
    done = carry_over(carol, "mem0", file("mem0"), their_user="bob")
    assert texts(carol) == {"Bob plays chess"}
    assert len(done.added) == 1


def test_blocks_and_markdown_keep_their_text(alice, file):
    done = carry_over(alice, "letta", file("letta"))
    assert {name: block.text for name, block in alice.blocks.all().items()} == {
        "persona": "Be patient.\nBe short. 🏔",
        "human": "Is allergic to walnuts.",
    }
    assert done.left_out == ["description of a block: 1", "message: 1", "tool: 1"]
    carry_over(alice, "memory-md", file("memory-md"))
    for name in ("MEMORY", "projects/garden"):
        written = (PEERS / "harness" / f"{name}.md").read_text("utf-8")
        assert alice.blocks[name].text == written


def test_notes_of_basic_memory_are_blocks_with_all_their_text(alice):
    folder = PEERS / "basic-memory"
    theirs = {path.relative_to(folder).with_suffix("").as_posix(): path.read_text("utf-8") for path in folder.rglob("*.md")}  # fmt: skip
    done = carry_over(alice, "memory-md", str(folder))
    assert (sorted(theirs), done.found) == (["people/Alice", "projects/Garden"], {"block": 2})
    assert {name: block.text for name, block in alice.blocks.all().items()} == theirs
    assert carry_over(alice, "memory-md", str(folder)).added == []


def test_a_markdown_file_is_found_whatever_the_case_of_its_ending(alice, tmp_path):
    (tmp_path / "README.MD").write_text("Be kind.")
    assert carry_over(alice, "memory-md", str(tmp_path)).added == ["blocks/README"]


def test_items_keep_namespace_key_and_value(alice, file):
    theirs = json.loads(Path(file("langmem")).read_text("utf-8"))
    carry_over(alice, "langmem", file("langmem"))
    carry_over(alice, "langgraph-store", Path(file("langgraph-store")))
    store = ItemStore(alice.diary)
    work = store.run([Get(("alice", "notes", "work"), "n/1")])[0]
    assert work.value == {"text": "walnuts 🏔", "none": None, "deep": {"list": [1, 2.5]}}
    second = ItemStore(alice.diary, user_label=1)
    for each in theirs:
        reader = store if each["namespace"][0] == "alice" else second
        assert reader.run([Get(tuple(each["namespace"]), each["key"])])[0].value == each["value"]
    assert store.run([Get(("bob", "notes"), "n1")]) == [None]


def test_items_keep_their_time_to_live_and_expired_ones_are_left_out(alice, file):
    place = file("langgraph-store")
    with closing(sqlite3.connect(place)) as database, database:
        change = "UPDATE store SET expires_at = datetime('now', ?), ttl_minutes = 60 WHERE key = ?"
        database.execute(change, ("+30 minutes", "n/1"))
        database.execute(change, ("-1 minute", "m1"))
    done = carry_over(alice, "langgraph-store", place)
    assert any("expired item" in line for line in done.left_out)
    assert "items/memories/m1" not in str(done.added)
    (kept,) = [text for name, text in alice.export()["documents"].items() if "items" in name]
    assert "_ttl = 60" in kept


def test_items_keep_their_times(alice, file, tmp_path):
    theirs = {each["key"]: each for each in json.loads(Path(file("langmem")).read_text("utf-8"))}
    carry_over(alice, "langmem", file("langmem"))
    for namespace in {tuple(each["namespace"]) for each in theirs.values()}:
        for item in ItemStore(alice.diary, user_label=namespace.index("alice")).run(
            [Search(namespace)]
        )[0]:
            told = theirs[item.key]
            assert [item.created_at.isoformat(), item.updated_at.isoformat()] == [told["created_at"], told["updated_at"]]  # fmt: skip
    carry_over(alice, "langgraph-store", file("langgraph-store"))
    work = ItemStore(alice.diary).run([Get(("alice", "notes", "work"), "n/1")])[0]
    assert work.created_at.isoformat() == "2026-11-22T00:21:21+00:00"


def test_an_import_reports_its_progress(alice, file):
    told = []
    carry_over(alice, "loomflow", file("loomflow"), progress=lambda *each: told.append(each))
    for _ in range(2):
        carry_over(alice, "langmem", file("langmem"), progress=lambda *each: told.append(each))
    assert told == [*((done, 7) for done in range(1, 8)), (3, 3), (3, 3)]


def test_namespaces_are_renamed_with_the_user(alice, file):
    ann = alice.diary.user("ann")
    carry_over(ann, "langmem", file("langmem"), their_user="alice")
    found = ItemStore(alice.diary).run([Get(("ann", "notes", "a b"), "n/1")])[0]
    assert found.value["text"] == "walnuts"


def test_a_graph_becomes_entities_and_relations(alice, file):
    carry_over(alice, "mcp-memory", file("mcp-memory"))
    space = ("alice", "knowledge-graph")
    entity, relation = ItemStore(alice.diary).run(
        [
            Get((*space, "entities"), "Alice"),
            Get((*space, "relations"), "Alice | works at | Acme / Labs"),
        ]
    )
    assert entity.value == {
        "name": "Alice",
        "entityType": "person",
        "observations": ["Is allergic to walnuts", "Lives in Zürich 🏔"],
    }
    assert relation.value == {"from": "Alice", "relationType": "works at", "to": "Acme / Labs"}
    assert "walnuts" in alice.recall("What is Alice allergic to?")[0].text


def test_an_observation_that_is_no_text_is_listed_as_left_out(alice, tmp_path):
    entity = {"type": "entity", "name": "Alice", "observations": ["likes tea", 5, None, {"a": 1}]}
    (tmp_path / "graph.jsonl").write_text(json.dumps(entity))
    done = carry_over(alice, "mcp-memory", str(tmp_path / "graph.jsonl"))
    assert done.left_out == ["observation that is not text: 3"]
    found = ItemStore(alice.diary).run([Get(("alice", "knowledge-graph", "entities"), "Alice")])[0]
    assert found.value["observations"] == ["likes tea"]


def test_facts_of_memstate_keep_type_session_and_time(alice, file):
    done = carry_over(alice, "memstate", file("memstate"), singletons={"diet": "role"})
    assert done.left_out == ["record of the log: 3"]
    found = alice.facts.get("diet/user")
    assert (found.data.model_dump(), found.created_by) == ({"role": "user", "food": "vegan"}, "s1")
    assert found.created.startswith("2026-11-22T")
    notes = [each.data.model_dump() for each in alice.facts.query("note")]
    assert notes == [
        {"text": "walnuts grow 🏔", "tags": ["a", "b"]},
        {"text": "second note", "tags": []},
    ]


def test_a_fact_whose_type_cannot_be_a_name_is_left_out(alice, tmp_path):
    facts = [{"type": name, "payload": {"k": "v"}} for name in ("a/b", "_c", "note")]
    (tmp_path / "facts.json").write_text(json.dumps(facts))
    done = carry_over(alice, "memstate", str(tmp_path / "facts.json"))
    assert done.left_out == [
        "fact of 'a/b', which cannot name a type of facts: 1",
        "fact of '_c', which cannot name a type of facts: 1",
    ]
    assert [each.type for each in alice.facts.query()] == ["note"]


def test_facts_of_a_type_of_the_application_are_found_again(alice, tmp_path):
    class Visit(BaseModel):
        at: datetime
        guests: int = 1

    alice.diary.register_schema("visit", Visit)
    fact = {"type": "visit", "payload": {"at": "2024-05-01T12:00:00"}}
    (tmp_path / "file").write_text(json.dumps([fact]))
    done, again = (carry_over(alice, "memstate", str(tmp_path / "file")) for _ in range(2))
    assert len(done.added) == 1
    assert (again.added, again.kept) == ([], [])


def test_facts_of_loomflow_keep_their_intervals(alice, file):
    carry_over(alice, "loomflow", file("loomflow"))
    lives = {"predicate": "lives_in"}
    assert [each.data.object for each in alice.facts.query("triples", lives)] == ["Graz"]
    every = alice.facts.query("triples", lives, include_ended=True)
    assert [(each.data.object, each.valid_to and each.valid_to.year) for each in every] == [
        ("Wien", 2026),
        ("Graz", None),
    ]
    turns = [(each.input, each.output, each.session_id, each.created[:10]) for each in alice.episodes.list()]  # fmt: skip
    assert turns == [
        ("I moved to Graz", "Noted.", "s1", "2026-01-02"),
        ("I like jazz", "Nice.", "s1", "2026-01-03"),
    ]


def test_facts_of_loomflow_keep_their_episode_and_its_session(alice, tmp_path):
    turn = {"input": "I moved to Graz", "output": "Noted.", "session_id": "s1"}
    turn["occurred_at"] = "2026-01-02T00:00:00Z"
    fact = {"subject": "ann", "predicate": "lives_in", "valid_from": "2026-01-02T00:00:00Z"}
    exported = {
        "episodes": [{**turn, "id": "ep_1"}, {**turn, "input": "Hello."}],
        "facts": [
            {**fact, "object": "Graz", "sources": ["ep_gone", "ep_1"]},
            {**fact, "predicate": "likes", "object": "jazz"},
        ],
    }
    place = tmp_path / "file"
    place.write_text(json.dumps({**exported, "facts": []}))
    carry_over(alice, "loomflow", place)
    place.write_text(json.dumps(exported))  # the export grew
    assert "source of a fact: 1" in carry_over(alice, "loomflow", place).left_out
    lives, likes = sorted(alice.facts.query("triples"), key=lambda each: each.data.object)
    assert alice.episodes[lives.source].input == "I moved to Graz"
    assert (lives.created_by, likes.source, likes.created_by) == ("s1", "", "")
    bob = alice.diary.user("bob")
    carry_over(bob, "loomflow", place)  # at once
    assert {each.source for each in bob.facts} == {"", f"episodes/{bob.episodes()[0].id}"}
    alice.forget(key=lives.source)
    assert alice.traces("Graz") == []
    assert [each.data.object for each in alice.facts.query("triples")] == ["jazz"]


def test_facts_of_memstate_keep_their_source(alice, tmp_path):
    fact = {"type": "diet", "payload": {"food": "vegan"}, "session_id": "s1", "source": "chat-7"}
    (tmp_path / "file").write_text(json.dumps([fact]))
    carry_over(alice, "memstate", tmp_path / "file")
    assert [each.source for each in alice.facts.query("diet")] == ["chat-7"]


def test_episodes_of_loomflow_without_text_are_left_out(alice, tmp_path):
    turns = [{"id": "e1", "input": "", "output": " "}, {"id": "e2", "input": "hi", "output": ""}]
    (tmp_path / "file").write_text(json.dumps({"episodes": turns}))
    done = carry_over(alice, "loomflow", str(tmp_path / "file"))
    assert [each.input for each in alice.episodes] == ["hi"]
    assert done.left_out == ["episode without text: 1"]


def test_facts_of_loomflow_that_never_held_are_left_out(alice, tmp_path):
    """loomflow ends a fact at its own start if another fact begins at the same time."""
    fact = {"subject": "ann", "predicate": "lives_in", "confidence": 10**400}
    first, last = ({"valid_from": f"{year}-01-01T00:00:00Z"} for year in (2024, 2025))
    facts = [
        {**fact, **first, "object": "Rome", "valid_until": first["valid_from"]},
        {**fact, **first, "object": "Oslo", "valid_until": last["valid_from"]},
        {**fact, **last, "object": "Bern", "valid_until": first["valid_from"]},
        {**fact, **last, "object": "Graz"},
        {**fact, "object": "Linz", "subject": ""},
    ]
    (tmp_path / "file").write_text(json.dumps({"facts": facts}))
    done = carry_over(alice, "loomflow", str(tmp_path / "file"))
    kept = alice.facts.query("triples", include_ended=True)
    assert [(each.data.object, each.valid_to and each.valid_to.year) for each in kept] == [
        ("Oslo", 2025),
        ("Graz", None),
    ]
    assert [line.rpartition(": ")[2] for line in done.left_out] == ["2", "1"]


def test_what_an_import_leaves_out_is_counted_by_its_reason(alice, tmp_path):
    fact = {"subject": "ann", "predicate": "lives_in", "object": "Rome"}
    first, last = ({"valid_from": f"{year}-01-01T00:00:00Z"} for year in (2024, 2025))
    turn = {"input": "Hi", "output": "Hello", "tool_calls": [{"name": "look"}]}
    exports = {
        "loomflow": {"episodes": [turn], "facts": [{**fact, **first}, {**fact, **last}]},
        "memstate": [{"type": "thread", "payload": {"checkpoint_ns": "", "x": 1}}, {"type": "x"}],
    }
    left_out = {
        "loomflow": ["tool transcript: 1", "fact in the interval of an equal one: 1"],
        "memstate": ["checkpoint of a LangGraph thread: 1", "record that is not a fact: 1"],
    }
    for source, exported in exports.items():
        (tmp_path / source).write_text(json.dumps(exported))
        assert carry_over(alice, source, str(tmp_path / source)).left_out == left_out[source]


def test_a_fact_of_loomflow_without_a_start_hides_no_earlier_one(alice, tmp_path):
    fact = {"subject": "bob", "predicate": "lives_in", "object": "Rome"}
    facts = [fact, {**fact, "valid_until": "2024-02-01"}, {**fact, "valid_from": "2024-01-01"}]
    (tmp_path / "file").write_text(json.dumps({"facts": facts}))
    carry_over(alice, "loomflow", str(tmp_path / "file"))
    (kept,) = alice.facts.query("triples", include_ended=True)
    assert kept.valid_from.year == 2024
    assert kept.valid_to is None


def test_a_fact_of_loomflow_that_is_said_again_holds_as_long(alice, tmp_path):
    fact = {"subject": "bob", "predicate": "lives_in", "object": "Rome"}
    facts = [
        {**fact, "valid_from": "2024-05-01T00:00:00Z", "valid_until": "2024-06-01T00:00:00Z"},
        {**fact, "valid_from": "2024-01-01T00:00:00Z"},
        {**fact, "valid_from": "2024-01-01T00:00:00Z"},
    ]
    (tmp_path / "file").write_text(json.dumps({"facts": facts}))
    done, again = (carry_over(alice, "loomflow", str(tmp_path / "file")) for _ in range(2))
    assert done.left_out == ["fact in the interval of an equal one: 2"]
    kept = alice.facts.query("triples", include_ended=True)
    assert [(each.valid_from.month, each.valid_to) for each in kept] == [(1, None)]
    assert (len(again.added), len(again.present)) == (0, 1)


def test_facts_of_loomflow_without_a_start_are_stored_once(alice, tmp_path):
    facts = [{"subject": "ann", "predicate": "likes", "object": each} for each in ("tea", "jazz")]
    (tmp_path / "file").write_text(json.dumps({"facts": facts}))
    done, again = (carry_over(alice, "loomflow", str(tmp_path / "file")) for _ in range(2))
    assert (len(done.added), len(done.kept)) == (2, 0)
    assert (len(again.added), len(again.present)) == (0, 2)


def test_what_a_person_changed_since_is_kept(alice, file):
    carry_over(alice, "letta", file("letta"))
    carry_over(alice, "mem0", file("mem0"))
    key = next(key for key, item in alice.preferences("biography").items() if "nurse" in item.text)
    alice.blocks.set("persona", "Be quick.")
    alice.upsert_preference("biography", "Works as a doctor", id=key)
    assert carry_over(alice, "letta", file("letta")).kept == ["blocks/persona"]
    assert carry_over(alice, "mem0", file("mem0")).kept == [f"biography/{key}"]
    assert alice.blocks["persona"].text == "Be quick."
    assert "Works as a doctor" in texts(alice)


def test_a_sentence_that_is_known_is_not_stored_twice(alice, tmp_path):
    alice.upsert_preference("likes", "Dark roast")
    (tmp_path / "m.json").write_text(
        json.dumps(
            [
                {"id": str(number), "memory": text}
                for number, text in enumerate(["dark  roast.", "Tea", "“tea”!"])
            ]
        )
    )
    done = carry_over(alice, "mem0", str(tmp_path / "m.json"))
    assert (done.added, done.present) == (["biography/imported-1"], ["likes/pref001", "biography/imported-1"])  # fmt: skip
    assert texts(alice) == {"Dark roast", "Tea"}
    assert carry_over(alice, "mem0", str(tmp_path / "m.json")).added == []
    assert {item.count for items in alice.preferences().values() for item in items.values()} == {1}


def test_memories_without_an_id_do_not_replace_each_other(alice, tmp_path):
    file = tmp_path / "m.json"
    memories = [{"memory": "Tea"}, {"id": "a/b", "memory": "Chess"}, {"id": 7, "memory": "Jazz"}]
    file.write_text(json.dumps({"results": memories, "relations": [{"source": "a"}]}))
    done = carry_over(alice, "mem0", str(file))
    assert (len({*done.added}), done.left_out) == (3, ["relation of a graph: 1"])
    assert "a/b" not in "".join(done.added)
    assert texts(alice) == {"Tea", "Chess", "Jazz"}
    assert len(carry_over(alice, "mem0", str(file)).present) == 3


@pytest.mark.parametrize("first", [True, False])
def test_a_second_import_into_a_memory_that_redacts_changes_nothing(tmp_path, first):
    said = "My mail is anna@example.org"
    files = {
        "mem0": [{"memory": said}],
        "loomflow": {
            "blocks": [{"name": "notes", "content": said}],
            "episodes": [{"input": said, "output": "Noted."}],
        },
        "memstate": [{"type": "note", "payload": {"text": said}}],
        "langmem": [{"namespace": ["alice", "notes"], "key": "k", "value": {"text": said}}],
    }
    diary = Diary(tmp_path / "m", agent="rules", redact=True)
    alice = diary.user("alice")
    before = Diary(tmp_path / "m", agent="rules", redact=first).user("alice")
    for source, records in files.items():
        (tmp_path / source).write_text(json.dumps(records))
        done, again = (carry_over(each, source, tmp_path / source) for each in (before, alice))
        assert (again.added, again.kept, again.present) == ([], [], done.added)
    (tmp_path / "mem0").write_text(json.dumps(files["mem0"]).replace("anna", "otto"))
    ids = carry_over(diary.user("bob"), "mem0", tmp_path / "mem0").added
    assert (ids == [f"biography/{key}" for key in alice.preferences("biography")]) is first


def test_the_second_memory_of_an_id_is_reported_as_kept_out(alice, tmp_path):
    file = tmp_path / "m.json"
    file.write_text(json.dumps([{"id": "m", "memory": "Tea"}, {"id": "m", "memory": "Chess"}]))
    done = carry_over(alice, "mem0", str(file))
    assert (done.added, done.kept) == (["biography/imported-m"], ["biography/imported-m"])
    assert texts(alice) == {"Tea"}


def test_a_fact_that_changed_since_is_kept(alice, file):
    place, singletons = file("memstate"), {"diet": "role"}
    carry_over(alice, "memstate", place, singletons=singletons)
    alice.facts.update("diet/user", {"food": "vegetarian"})
    done = carry_over(alice, "memstate", place, singletons=singletons)
    assert (done.added, done.kept) == ([], ["facts/diet/user"])
    assert alice.facts.get("diet/user").data.food == "vegetarian"


def test_a_triple_that_changed_since_is_kept(alice, file):
    carry_over(alice, "loomflow", file("loomflow"))
    (graz,) = alice.facts.query("triples", {"predicate": "lives_in"})
    graz_again = {**graz.data.model_dump(), "object": "Linz"}
    alice.facts.delete(graz.id)
    alice.facts.commit("triples", graz_again, valid_from=graz.valid_from, force=True)
    done = carry_over(alice, "loomflow", file("loomflow"))
    assert (done.added, len(done.kept)) == ([], 1)
    (now,) = alice.facts.query("triples", {"predicate": "lives_in"})
    assert now.data.object == "Linz"


def test_the_hosts_own_type_of_facts_keeps_its_rules(alice, file):
    class Diet(BaseModel):
        role: str
        food: str

    alice.diary.register_schema("diet", Diet, Constraint(singleton_key="role", immutable=True))
    place = file("memstate")
    carry_over(alice, "memstate", place, dry_run=True)
    carry_over(alice, "memstate", place)
    assert alice.facts.query("diet")[0].data == Diet(role="user", food="vegan")
    with pytest.raises(ImmutableEntry):
        alice.facts.commit(Diet(role="user", food="fish"))


def test_a_field_that_the_diary_would_not_keep_is_reported(alice, tmp_path):
    place = tmp_path / "facts.json"
    place.write_text(json.dumps([{"type": "diet", "payload": {"food": "rice", "_id": 7}}]))
    done = carry_over(alice, "memstate", str(place))
    assert done.left_out == ["field that begins with an underscore: 1"]
    assert alice.facts.query("diet")[0].data.model_dump() == {"food": "rice"}


def test_a_singleton_key_of_a_type_that_is_not_there_is_refused(alice, file):
    with pytest.raises(InvalidValue, match="Use one of: diet, note"):
        carry_over(alice, "memstate", file("memstate"), singletons={"diett": "role"})
    assert contents(alice) == {}


def test_a_singleton_key_may_be_given_at_a_later_import(alice, file, tmp_path):
    empty, facts = tmp_path / "facts.json", file("memstate")
    empty.write_text("[]")
    carry_over(alice, "memstate", str(empty), singletons={"diet": "role"})
    carry_over(alice, "memstate", facts)
    assert alice.diary.fact_schemas["diet"].constraint.keys == ()
    carry_over(alice, "memstate", facts, singletons={"diet": "role"})
    assert alice.diary.fact_schemas["diet"].constraint.keys == ("role",)


def test_an_import_that_fails_stores_nothing(alice, tmp_path):
    file = tmp_path / "m.json"
    file.write_text(json.dumps([{"id": str(n), "memory": f"word{n} alone{n}"} for n in range(101)]))
    for dry_run in (True, False):
        with pytest.raises(LimitReached):
            carry_over(alice, "mem0", str(file), dry_run=dry_run)
    alice.upsert_preference("likes", "tea")
    with pytest.raises(LimitReached):
        carry_over(alice, "mem0", str(file), dry_run=True)
    alice.forget(everything=True)
    with pytest.raises(UnknownCategory):
        carry_over(alice, "mem0", str(file), category="gaols")
    assert contents(alice) == {}


def test_an_import_that_fails_shows_the_record(alice, tmp_path):
    texts = ["hello", "x" * 100_001]
    episodes = [{"input": text, "output": "", "session_id": "s1"} for text in texts]
    (tmp_path / "file").write_text(json.dumps({"episodes": episodes}))
    with pytest.raises(InvalidValue, match="100,001 characters") as caught:
        carry_over(alice, "loomflow", str(tmp_path / "file"))
    assert caught.value.__notes__[0].startswith("The record begins with Episode(input='xxx")
    assert len(caught.value.__notes__[0]) < 200


def test_an_import_shows_the_fact_that_does_not_fit_its_type_once_it_is_redacted(tmp_path):
    class Contact(BaseModel):
        mail: str = Field(pattern="@")

    diary = Diary(tmp_path / "m", agent="rules", redact=True)
    diary.register_schema("contact", Contact)
    rows = [{"type": "contact", "payload": {"mail": "anna@example.org"}}]
    (tmp_path / "file").write_text(json.dumps(rows))
    with pytest.raises(InvalidValue, match="does not fit the type") as caught:
        carry_over(diary.user("alice"), "memstate", tmp_path / "file")
    assert caught.value.__notes__[0].startswith("The record begins with Fact(type='contact'")


@pytest.mark.parametrize(
    ("source", "text", "says"),
    [
        ("mem0", None, "there is no such file"),
        ("mem0", "", "the file is empty"),
        ("mem0", "{", "not JSON"),
        ("memstate", "SQLite format 3\0", "database"),
        ("langgraph-store", "[1, {}]", ""),
        ("letta", '{"blocks": 3}', ""),
        (
            "letta",
            '{"blocks": [{"value": "x"}, {"label": "a", "value": 3}, {"label": "b", "value": "x"}]}',
            "",
        ),
        ("loomflow", '[[], {"facts": 1, "blocks": [null]}]', ""),
        ("chatgpt", '[{"mapping": {"a": {"parent": "a"}}}]', ""),
        ("loomflow", '{"user_id": "bob", "facts": []}', "records of bob"),
        ("tomldiary-firestore", "x", "expected an address"),
        ("memory-md", None, "there is no such file"),
        ("nothing", "x", "unknown source. Use one of: mem0, letta"),
        ("chatgpt", "PK\3\4conversations.json", "this is an archive. Unpack it"),
        (
            "mem0",
            f'{{"id": "b", "memory": "{"x" * (MAX_TEXT + 1)}"}}',
            r"biography\.imported-b\.text: the text has",
        ),
        (
            "langgraph-store",
            '{"namespace": ["alice", "n"], "key": "k", "value": "tea"}',
            "the value of a record is not JSON",
        ),
    ],
)
def test_a_file_that_is_something_else_is_refused_or_empty(alice, tmp_path, source, text, says):
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    if says:
        with pytest.raises(InvalidValue, match=says):
            carry_over(alice, source, str(file))
    else:
        assert len(carry_over(alice, source, str(file)).added) <= 1


@pytest.mark.parametrize(
    "columns",
    [
        "prefix, key, value, created_at, updated_at, expires_at",  # before LangGraph adds ttl_minutes
        "value, key, prefix",
    ],
)
def test_columns_of_a_sqlite_store_are_read_by_name(alice, tmp_path, columns):
    with closing(sqlite3.connect(tmp_path / "db")) as database, database:
        database.execute(f"CREATE TABLE store ({columns})")
        row = ("alice.n", "k", '{"a": 1}')
        database.execute("INSERT INTO store (prefix, key, value) VALUES (?, ?, ?)", row)
    done = carry_over(alice, "langgraph-store", str(tmp_path / "db"))
    assert (done.added, done.left_out) == (["items/n/k"], [])


def test_an_item_whose_value_is_no_object_is_listed_as_left_out(alice, tmp_path):
    item = {"namespace": ["alice", "n"], "value": {}}
    values = {"list": ["tea"], "number": 3, "text": '["tea"]', "nothing": None}
    items = [{**item, "key": key, "value": value} for key, value in values.items()]
    (tmp_path / "file").write_text(json.dumps([*items, {**item, "key": "k"}]))
    done = carry_over(alice, "langgraph-store", tmp_path / "file")
    assert (done.added, done.left_out) == (["items/n/k"], ["record that is not an item: 4"])


def test_a_view_in_place_of_the_table_of_a_sqlite_store_is_refused(alice, tmp_path):
    with closing(sqlite3.connect(tmp_path / "db")) as database, database:
        columns = "SELECT 'alice' AS prefix, 'k' AS key, '{}' AS value"
        database.execute(f"CREATE VIEW store AS {columns}")
    with pytest.raises(InvalidValue, match="does not have the expected tables"):
        carry_over(alice, "langgraph-store", tmp_path / "db")


@pytest.mark.parametrize("missing", ["prefix", "key", "value"])
def test_a_sqlite_store_without_an_expected_column_is_refused(alice, tmp_path, missing):
    columns = ", ".join({"prefix", "key", "value"} - {missing})
    with closing(sqlite3.connect(tmp_path / "db")) as database:
        database.execute(f"CREATE TABLE store ({columns})")
    with pytest.raises(InvalidValue, match=f"expected tables .no such column: {missing}"):
        carry_over(alice, "langgraph-store", str(tmp_path / "db"))


@pytest.mark.parametrize("source", ["mem0", "memory-md", "memstate", "chatgpt", "questions"])
def test_an_address_in_place_of_a_file_is_named_without_its_password(alice, source):
    address = "postgresql://ann:hunter2@localhost/db"
    with pytest.raises(InvalidValue, match="there is no such file") as refused:
        load_questions(address) if source == "questions" else carry_over(alice, source, address)
    shown = "".join(traceback.format_exception(refused.value))
    assert "localhost/db" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize(
    "source", ["mem0", "letta", "mcp-memory", "langgraph-store", "memstate", "loomflow", "chatgpt"]
)
def test_a_file_of_another_source_is_said_to_be_left_out(alice, tmp_path, source):
    (tmp_path / "file").write_text('[{"a": 1}, {"a": 2}]')
    (reason,) = carry_over(alice, source, str(tmp_path / "file")).left_out
    assert reason.endswith(": 2")


def test_a_type_of_memstate_may_have_any_characters_that_a_file_can_store(alice, tmp_path):
    file = tmp_path / "facts.json"
    file.write_text(json.dumps([{"type": "a\0b", "payload": {"food": "vegan"}}]))
    assert len(carry_over(alice, "memstate", str(file)).added) == 1
    file.write_text(json.dumps([{"type": "a\ud800b", "payload": {"food": "vegan"}}]))
    with pytest.raises(InvalidValue, match="half of a surrogate pair"):
        carry_over(alice, "memstate", str(file))


def test_hostile_names_stay_inside_the_users_folder(alice, tmp_path):
    file = tmp_path / "m.json"
    items = [
        {"namespace": ["alice", "../../x"], "key": "../k\0", "value": {"_count": 1, "lc": 1}},
        {"namespace": ["alice", "\u202ee"], "key": "a/../b", "value": {"text": "x"}},
    ]
    file.write_text(json.dumps(items))
    carry_over(alice, "langmem", str(file))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "m.json"]
    folders = {path.relative_to(tmp_path / "m").parts[0] for path in (tmp_path / "m").rglob("*")}
    assert folders == {".tomldiary", "alice"}
    for each in items:
        stored = ItemStore(alice.diary).run([Get(tuple(each["namespace"]), each["key"])])[0]
        assert stored.value == each["value"]


def test_notes_are_compared_with_a_large_memory_in_linear_time(tmp_path):
    alice = Diary("memory:", agent="rules", max_prefs_per_category=10_000).user("alice")
    file = tmp_path / "mem0.json"
    for text in ("first", "other"):
        file.write_text(json.dumps([{"id": f"m{n}", "memory": f"{text} {n}"} for n in range(800)]))
        began = process_time()
        done = carry_over(alice, "mem0", file)
        assert process_time() - began < 1
    assert len(done.kept) == 800
