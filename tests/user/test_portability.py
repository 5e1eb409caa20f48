"""Export is one state of the whole user; import is all of it or nothing."""

from __future__ import annotations

import asyncio
import json
import re
import stat
import threading
import time
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from command_line import not_done
from hand_edits import age
from tomldiary import Conflict, Constraint, Diary
from tomldiary.backends import LocalBackend
from tomldiary.cli.app import app, run
from tomldiary.cli.commands.edit import save_text
from tomldiary.errors import (
    BackendError,
    DocumentError,
    EntryConflict,
    IdentifierError,
    ImmutableEntry,
    InvalidTOML,
    InvalidValue,
    LimitReached,
)
from tomldiary_langgraph import DiaryStore


class Diet(BaseModel):
    role: str
    food: str


class Home(BaseModel):
    who: str
    city: str


class Sizes(BaseModel):
    who: str
    of: dict[str, int | None]


class Birth(BaseModel):
    who: str
    year: int


OTHER_HOME = """\
[facts.home."dog@2026-01-01"]
who = "dog"
city = "Oslo"
_valid_from = "2026-01-01T00:00:00.000000+00:00"
"""


def opened(place, **more):
    durability = "process" if isinstance(place, Path) else None
    diary = Diary(place, agent="rules", durability=durability, **more)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role", limit=2))
    diary.register_schema("birth", Birth, Constraint(singleton_key="who", immutable=True))
    return diary


def filled(diary, user="alice"):
    alice = diary.user(user)
    alice.add_turn("I love tea.", "Noted.", "s1")
    alice.upsert_preference("likes", "coffee")
    alice.remove_preference("likes", "pref002")
    alice.facts.commit(Diet(role="user", food="vegan"), session_id="s1")
    alice.blocks.set("persona", "Brief.\nKind.")
    alice.episodes.add("hi", "hello", session_id="s1")
    return alice


def documents(user):
    """The documents of an export, but for the number of the transaction that wrote them."""
    exported = json.loads(json.dumps(user.export()))["documents"]
    return {
        kind: re.sub(r"^seq = \d+$", "seq", text, flags=re.MULTILINE)
        for kind, text in exported.items()
    }


@pytest.fixture(params=["files", "memory"])
def place(request, tmp_path):
    return "memory:" if request.param == "memory" else tmp_path / "m"


def test_an_imported_export_is_exported_again_with_its_comments(tmp_path, place):
    alice = filled(opened(tmp_path / "from"))
    file = tmp_path / "from/alice/preferences.toml"
    file.write_text("# mine\n" + file.read_text().replace("text =", "# below\ntext   ="))
    exported = json.loads(json.dumps(alice.export()))
    bob = opened(place).user("bob")
    assert bob.import_(exported, actor="hand", reason="moved") == sorted(exported["documents"])
    assert documents(bob) == documents(alice)
    assert "# mine" in exported["documents"]["preferences"]
    assert bob.facts.query("diet")[0].data == Diet(role="user", food="vegan")
    assert bob.episodes.messages("s1") == alice.episodes.messages("s1")
    assert bob.upsert_preference("likes", "cocoa")[0] == "pref003"  # ids given out stay given out
    assert (bob.last_transaction(), {h.actor for h in bob.history() if h.type == "import"}) == (
        2,
        {"hand"},
    )
    bob.rollback(2)
    assert (bob.facts.query("diet"), bob.episodes(), bob.preferences("likes")) == ([], [], {})
    bob.rollback()
    assert bob.blocks["persona"].text == "Brief.\nKind."


NAMESPACES = [
    ("alice",),
    ("alice", "memories", "work"),
    ("alice", "memories", "alice"),
    ("alice", "日本語の長い名前" * 4),
    ("alice", *(f"a label that is long {number}" for number in range(9))),
]


@pytest.mark.parametrize("is_first", [True, False])
def test_namespaces_follow_a_user_who_is_imported_under_another_id(place, tmp_path, is_first):
    label = 0 if is_first else 1
    namespaces = (
        NAMESPACES if is_first else [("memories", *NAMESPACES[0]), ("x" * 90, "alice", "x" * 90)]
    )

    def renamed(namespace):
        return tuple("bob" if at == label else each for at, each in enumerate(namespace))

    source = DiaryStore(opened("memory:"), user_label=label)
    for number, namespace in enumerate(namespaces):
        source.put(namespace, "k", {"text": f"tea {number}"})
    target = opened(place)
    target.user("bob").import_(source.diary.user("alice").export())
    store = DiaryStore(target, user_label=label)
    assert sorted(store.list_namespaces()) == sorted(map(renamed, namespaces))
    for number, namespace in enumerate(namespaces):
        assert store.get(renamed(namespace), "k").value == {"text": f"tea {number}"}
        assert store.get(namespace, "k") is None
        store.put(renamed(namespace), "later", {"text": "milk"})
    assert len(store.search((), limit=100)) == 2 * len(namespaces)
    assert sorted(store.list_namespaces()) == sorted(map(renamed, namespaces))
    labels = [
        tuple(tomllib.loads(text)["_meta"]["namespace"])
        for text in target.user("bob").export()["documents"].values()
    ]
    assert sorted(labels) == sorted(map(renamed, namespaces))
    target.user("bob").forget(everything=True)
    assert store.list_namespaces() == []


def test_namespaces_that_an_import_makes_equal_are_joined(place):
    source = DiaryStore(opened("memory:"), user_label=1)
    for label in ("alice", "bob"):
        source.put(("team", "alice", label), label, {"text": f"tea of {label}"})
    target = opened(place)
    target.user("bob").import_(source.diary.user("alice").export())
    store = DiaryStore(target, user_label=1)
    found = {item.key: item.value["text"] for item in store.search(("team", "bob", "bob"))}
    assert found == {"alice": "tea of alice", "bob": "tea of bob"}


def test_an_import_adds_no_entry_twice(place):
    alice = filled(opened(place))
    exported = alice.export()
    before = alice.last_transaction()
    assert alice.import_(exported) == []
    assert alice.last_transaction() == before
    alice.facts.delete("diet/user")
    assert alice.import_(exported) == ["facts"]
    assert alice.facts.get("diet/user").data.food == "vegan"


def test_an_import_adds_missing_entries_and_refuses_different_ones(place):
    diary = opened(place)
    exported = filled(diary).export()
    bob = diary.user("bob")
    bob.blocks.set("persona", "Verbose.")
    bob.facts.commit(Diet(role="dog", food="meat"))
    before = documents(bob)
    with pytest.raises(Conflict) as caught:
        bob.import_(exported)
    assert caught.value.keys == ["blocks.persona"]
    assert documents(bob) == before
    bob.blocks.delete("persona")
    bob.import_(exported)
    assert {fact.data.role for fact in bob.facts.query("diet")} == {"user", "dog"}
    bob.blocks.set("other", "stays not")
    bob.import_(exported, replace=True)
    assert [fact.data.role for fact in bob.facts.query("diet")] == ["user"]
    assert list(bob.blocks()) == ["persona"]


def test_an_import_refuses_a_fact_with_another_end():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("home", Home, Constraint("who", temporal=True))
    alice, bob = diary.user("alice"), diary.user("bob")
    alice.facts.commit(Home(who="user", city="Paris"), valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    bob.import_(alice.export())
    alice.facts.update("home/user", {}, valid_to=datetime(2021, 1, 1, tzinfo=UTC))
    for user, other in ((alice, bob), (bob, alice)):
        with pytest.raises(Conflict, match="home"):
            user.import_(other.export())
    bob.import_(alice.export(), replace=True)
    assert bob.facts.get("home/user") is None


def test_an_import_refuses_a_fact_with_a_missing_value_inside():
    diary = Diary("memory:", agent="rules")
    diary.register_schema("sizes", Sizes, Constraint("who"))
    alice, bob = diary.user("alice"), diary.user("bob")
    alice.facts.commit(Sizes(who="user", of={"shoe": None}))
    bob.facts.commit(Sizes(who="user", of={}))
    with pytest.raises(Conflict, match="sizes"):
        bob.import_(alice.export())


def test_an_import_merges_no_lists_of_tables(place):
    diary = opened(place)
    exported = filled(diary).export()
    bob = diary.user("bob")
    bob.import_(exported)
    before = bob.export()["documents"]
    exported["documents"]["facts"] += "\n[[facts.diet.trips]]\nto = 'Porto'\n"
    with pytest.raises(DocumentError, match="facts: lists of tables cannot be merged"):
        bob.import_(exported)
    assert bob.export()["documents"] == before


def test_a_replacing_import_removes_what_the_export_lacks(place):
    diary = opened(place)
    bob = diary.user("bob")
    bob.blocks.set("persona", "x")
    empty = diary.user("nobody").export()
    assert (empty["seq"], empty["documents"]) == (0, {})
    assert bob.import_(empty) == []
    assert bob.import_(empty, replace=True) == ["blocks"]
    assert bob.blocks() == {}
    assert bob.as_of(1).blocks["persona"].text == "x"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda data: data.clear(), InvalidValue, "is missing. Give what an export returned; another"),
        (lambda data: data.update(version=2), InvalidValue, "expected 1, found 2"),
        (lambda data: data.update(documents=["x"]), InvalidValue, "expected a table of documents"),
        (
            lambda data: data["documents"].update(blocks='[blocks.b]\ntext = "\ud800"'),
            InvalidValue,
            "import.documents.blocks: the text holds half of a surrogate pair",
        ),
        (lambda data: data["documents"].update(facts=7), InvalidValue, "expected text, found int"),
        (lambda data: data["documents"].update(facts="[x"), InvalidTOML, "import.documents.facts:1:3"),
        (
            lambda data: data["documents"].update(facts='[_meta]\nversion = "9.0"'),
            DocumentError,
            "format version '9.0'",
        ),
        (
            lambda data: data["documents"].update({"history/2026-11-001": ""}),
            IdentifierError,
            "cannot name a document",
        ),
        (lambda data: data["documents"].update({"../x": ""}), IdentifierError, "cannot name a document"),
        (
            lambda data: data["documents"].update(facts="[facts.diet.user]\nrole = 'user'\nfood = 7"),
            InvalidValue,
            "facts.diet.user.food: expected text, found number",
        ),
        (
            lambda data: data["documents"].update(
                facts="".join(f"[facts.diet.{n}]\nrole = '{n}'\nfood = 'x'\n" for n in "abc")
            ),
            LimitReached,
            "facts/diet is full",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("replace", [False, True])
def test_an_export_with_one_error_changes_nothing(change, error, message, replace):
    diary = opened("memory:")
    exported = filled(diary).export()
    change(exported)
    bob = diary.user("bob")
    with pytest.raises(error, match=re.escape(message)):
        bob.import_(exported, replace=replace)
    assert bob.export()["documents"] == {}


def test_a_document_name_cannot_lead_out_of_the_folder(tmp_path):
    bob = opened(tmp_path).user("bob")
    for kind in ("items/../../x", "episodes//x", "facts/", "items/.staged-1"):
        with pytest.raises(ValueError, match="document"):
            bob.import_({"format": "tomldiary", "version": 1, "documents": {kind: "[a]\nb = 1\n"}})
    assert [path.name for path in tmp_path.rglob("*.toml")] == []


def test_a_replacing_import_keeps_the_origins_of_the_export(place):
    alice = Diary(place, agent="rules").user("alice")
    alice.blocks.set("plan", "Lyon", actor="web:example.org")
    old = alice.export()
    alice.blocks.set("plan", "Nice", actor="web:example.org")
    alice.import_(old, replace=True)
    assert alice.why("blocks/plan").origin == "web:example.org"
    assert alice.export(entries=True)["entries"]["blocks/plan"]["_origin"] == "web:example.org"


def test_a_replacing_import_keeps_immutable_facts(place):
    diary = opened(place)
    alice = diary.user("alice")
    alice.facts.commit(Birth(who="user", year=1980))
    exported = alice.export()
    for text in ("", exported["documents"]["facts"].replace("1980", "1999")):
        wrong = {**exported, "documents": {"facts": text}}
        with pytest.raises(ImmutableEntry):
            alice.import_(wrong, replace=True)
    assert alice.import_(exported, replace=True) in ([], ["facts"])
    assert alice.facts.get("birth/user").data.year == 1980


def exported(kind, tables):
    return {"format": "tomldiary", "version": 1, "user": "bob", "documents": {kind: tables}}


def test_an_import_of_many_entries_takes_time_in_proportion_to_them():
    def seconds(count):
        alice = Diary("memory:", agent="rules", max_prefs_per_category=10**6).user("alice")
        alice.upsert_preference("goals", "run")
        entries = [f'[preferences.likes.p{n}]\ntext = "thing {n}"\n' for n in range(count)]
        began = time.process_time()
        alice.import_(exported("preferences", "\n".join(entries)))
        taken = time.process_time() - began
        assert len(alice.preferences("likes")) == count
        return taken

    assert seconds(2_000) < 20 * seconds(250)


def test_a_turn_after_an_import_of_many_conversations_is_fast():
    alice = Diary("memory:", agent="rules", max_conversations=10).user("alice")
    tables = "".join(f'[conversations.s{n}]\nsummary = "one"\n\n' for n in range(4_000))
    alice.import_(exported("conversations", tables))
    began = time.process_time()
    alice.add_turn("I love tea.", "Noted.", "new")
    assert time.process_time() - began < 0.6
    assert len(alice.conversations()) == 10


def test_a_fact_type_with_a_slash_in_an_import_stops_no_read():
    alice = Diary("memory:", agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.import_(exported("facts", '[facts."a/b".x]\na = "mint"\n'))
    assert "likes: tea" in alice.render()
    assert [hit.text for hit in alice.recall("tea")] == ["tea"]
    assert [hit.text for hit in alice.recall("mint")] == ["a = mint"]


def test_an_import_into_a_full_category_is_refused(tmp_path):
    exported = opened(tmp_path / "a").user("alice")
    for number in range(3):
        exported.upsert_preference("likes", f"thing {number}")
    bob = opened(tmp_path / "b", max_prefs_per_category=2).user("bob")
    with pytest.raises(LimitReached):
        bob.import_(exported.export())
    assert bob.history() == []


def test_no_import_and_no_review_makes_a_block_longer_than_allowed():
    alice = Diary("memory:", agent="rules", quarantine={"web"}).user("alice")
    alice.blocks.set("notes", "short")
    export, long = alice.export(), "x" * 100_001
    export["documents"]["blocks"] = export["documents"]["blocks"].replace("short", long)
    with pytest.raises(InvalidValue, match=r"blocks\.notes: .* 100,000 are allowed"):
        alice.import_(export, replace=True)
    alice.blocks.set("notes", "other", actor="web")
    (change,) = alice.review()
    alice.review.edit(change.id, {"text": long})
    with pytest.raises(InvalidValue, match=r"blocks\.notes: .* 100,000 are allowed"):
        alice.review.accept(change.id)
    assert alice.blocks["notes"].text == "short"


@pytest.mark.parametrize("field", ["text", "contexts", "input"])
def test_no_review_makes_an_entry_longer_than_allowed(field):
    alice = Diary("memory:", agent="rules", quarantine={"web"}).user("alice")
    alice.upsert_preference("likes", "tea")
    alice.upsert_preference("likes", "green tea", id="pref001", actor="web")
    alice.episodes.add("hello", "hi", actor="web")
    preference, episode = alice.review()
    long = "x" * 100_001
    with pytest.raises(InvalidValue, match=r"allowed\. Shorten it"):
        alice.review.edit(
            (episode if field == "input" else preference).id,
            {field: [long] if field == "contexts" else long},
        )
    alice.review.accept(preference.id, episode.id)
    assert alice.preferences("likes")["pref001"].text == "green tea"


def test_an_import_keeps_a_block_that_is_too_long_already(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/blocks.toml").write_text(f'[blocks.notes]\ntext = "{"x" * 100_001}"\n')
    export = alice.export()
    alice.blocks.set("other", "text")
    alice.import_(export, replace=True)
    assert [*alice.blocks] == ["notes"]


def test_a_limit_counts_what_holds_now_in_imports_promotions_and_reviews():
    def full(city, **options):
        diary = Diary("memory:", agent="rules", quarantine={"web"})
        diary.register_schema("home", Home, Constraint("who", temporal=True, limit=1))
        user = diary.user("alice")
        user.facts.commit(
            Home(who="user", city="Paris"), valid_from=datetime(2020, 1, 1, tzinfo=UTC)
        )
        user.facts.commit(Home(who="user", city=city), **options)
        return diary, user

    diary, alice = full("Rome")
    bob = diary.user("bob")
    bob.import_(alice.export())
    _, carol = full("Rome", session_id="s1", ephemeral=True)
    carol.promote_session("s1")
    _, dave = full("Rome", actor="web")
    dave.review.accept(dave.review()[0].id)
    for user in (bob, carol, dave):
        assert [home.data.city for home in user.facts.query("home")] == ["Rome"]
        with pytest.raises(LimitReached):
            user.import_({**bob.export(), "documents": {"facts": OTHER_HOME}})


def test_an_import_leaves_out_what_has_expired(place):
    diary = Diary(place, agent="rules")
    diary.constrain("preferences/likes", Constraint(ttl=timedelta(days=1), limit=2))
    alice, bob, carol = map(diary.user, ("alice", "bob", "carol"))
    with alice.transaction():
        for text in ("tea", "jazz"):
            when = datetime.now(UTC) - timedelta(days=2)
            alice.upsert_preference("likes", text, now=when)
        alice.blocks.set("persona", "Brief.")
    export = alice.export()
    assert "tea" in export["documents"]["preferences"]

    bob.import_(export)
    assert bob.import_preview(export) == []
    assert bob.import_(export) == []
    assert bob.last_transaction() == 1
    carol.upsert_preference("likes", "opera")
    assert carol.import_(export) == ["blocks"]
    assert [each.text for each in carol.preferences("likes").values()] == ["opera"]


def test_conversations_of_the_old_layout_are_exported_and_imported(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "conversations.toml").write_text(
        '[_meta]\nversion = "0.2"\n\n[s1]\n_created = "x"\n_turns = 2\nsummary = "About tea."\n'
    )
    diary = opened(tmp_path)
    bob = diary.user("bob")
    bob.import_(diary.user("alice").export())
    assert bob.conversations()["s1"].summary == "About tea."
    bob.remove_conversation("s1")
    assert bob.conversations() == {}
    carol = diary.user("carol")
    carol.add_turn("I love tea.", "Noted.", session_id="s2")
    carol.import_(diary.user("alice").export())
    assert set(carol.conversations()) == {"s1", "s2"}


def test_conversations_of_the_old_layout_are_read_after_a_rollback(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir()
    (folder / "conversations.toml").write_text(
        '[_meta]\nversion = "0.2"\n\n[s1]\nsummary = "About tea."\n\n[s2]\nsummary = "About jazz."\n'
    )
    alice = opened(tmp_path).user("alice")
    alice.add_turn("I love tea.", "Noted.", session_id="s2")  # the file gets the new layout
    alice.rollback()
    assert set(alice.conversations()) == {"s1", "s2"}
    assert alice.problems() == []


def test_a_conversation_of_the_old_layout_can_be_forgotten_by_its_key(tmp_path):
    folder = tmp_path / "alice"
    folder.mkdir()
    file = folder / "conversations.toml"
    file.write_text('[_meta]\nversion = "0.2"\n\n[s1]\nsummary = "tea"\n\n[s2]\nsummary = "jazz"\n')
    alice = opened(tmp_path).user("alice")
    assert alice.forget(key=alice.recall("tea")[0].full_key).conversations == 1
    assert "tea" not in file.read_text()
    assert set(alice.conversations()) == {"s2"}


@pytest.fixture
def old(tmp_path):
    """The user of a file of conversations in the layout of version 0.2, and the file."""
    file = tmp_path / "alice/conversations.toml"
    file.parent.mkdir()
    file.write_text('[_meta]\nversion = "0.2"\n\n[s1]\nsummary = "tea"\n\n[s2]\nsummary = "jazz"\n')
    age(file)
    return opened(tmp_path).user("alice"), file


def test_an_import_compares_conversations_with_those_of_an_old_layout(old):
    alice, file = old
    export, text = alice.export(), file.read_text()
    assert alice.import_(export) == []
    export["documents"]["conversations"] = text.replace("tea", "opera")
    with pytest.raises(EntryConflict, match="s1 exists"):
        alice.import_(export)
    assert file.read_text() == text
    export["documents"]["conversations"] = f"conversations = 3\n{text}"
    with pytest.raises(DocumentError, match=r"import\.documents\.conversations: .* a single value"):
        alice.import_(export)


def test_an_import_replaces_a_document_that_cannot_be_converted(old):
    alice, file = old
    export, text = alice.export(), file.read_text()
    file.write_text(f"conversations = 3\n{text}")
    age(file)
    with pytest.raises(DocumentError, match=r"conversations\.toml: .* a single value"):
        alice.import_(export)
    alice.import_(export, replace=True)
    assert set(alice.conversations()) == {"s1", "s2"}


@pytest.mark.parametrize(("mine", "theirs"), [("", "preferences."), ("preferences.", "")])
def test_an_import_compares_preferences_of_both_layouts(tmp_path, mine, theirs):
    file = tmp_path / "alice/preferences.toml"
    file.parent.mkdir()
    file.write_text(f'[{mine}likes.tea]\ntext = "tea"\n')
    alice = opened(tmp_path).user("alice")
    export = {
        **alice.export(), "documents": {"preferences": f'[{theirs}likes.tea]\ntext = "tea"\n'},
    }  # fmt: skip
    assert alice.import_(export) == []
    export["documents"] = {"preferences": f'[{theirs}likes.tea]\ntext = "opera"\n'}
    with pytest.raises(EntryConflict, match=r"likes\.tea exists"):
        alice.import_(export)


def test_a_draft_removes_a_conversation_of_an_old_layout(old):
    alice, _ = old
    draft = alice.draft("s3")
    draft.remove_conversation("s1")
    assert [each.key for each in alice.drafts("s3")] == ["conversations/s1"]
    assert (list(draft.conversations()), list(alice.conversations())) == (["s2"], ["s1", "s2"])
    alice.promote_session("s3")
    assert list(alice.conversations()) == ["s2"]


def test_a_change_of_the_layout_is_no_change_of_a_conversation(old):
    alice, _ = old
    assert alice.why("conversations/s1").text == "tea"
    alice.add_turn("Hello.", "Hello.", session_id="s2")
    assert [(each.seq, each.key) for each in alice.history()] == [
        (2, "conversations/s2"), (1, "conversations/s1"), (1, "conversations/s2"),
    ]  # fmt: skip
    assert [each.key for each in alice.diff(1, 2)] == ["conversations/s2"]
    assert alice.forget(everything=True).conversations == 2


@pytest.mark.parametrize("meta", ["", '[_meta]\nversion = "0.2"\n\n'])
def test_an_edit_in_the_old_layout_of_a_converted_file_is_merged(old, tmp_path, meta):
    alice, file = old
    file.write_text(f'{file.read_text()}\n[s3]\nsummary = "chess"\n')
    age(file)
    alice.add_turn("Hello.", "Hello.", session_id="s2")
    file.write_text(f'{meta}[s1]\nsummary = "opera"\n\n[s2]\nsummary = "jazz"\n')
    age(file)
    alice = opened(tmp_path).user("alice")
    for _ in range(2):
        found = {name: (each.summary, each.turns) for name, each in alice.conversations().items()}
        assert found == {"s1": ("opera", 0), "s2": ("jazz", 1)}
        assert alice.problems() == []
        alice.add_turn("Hello.", "Hello.", session_id="s4")
        alice.remove_conversation("s4")


def test_of_a_session_in_both_layouts_the_one_at_the_top_counts(old, tmp_path):
    alice, file = old
    file.write_text(f'{file.read_text()}\n[conversations.s1]\nsummary = "opera"\n')
    age(file)
    shown = CliRunner().invoke(app, ["show", "alice", "--path", str(tmp_path), "--json"]).stdout
    assert json.loads(shown)["conversations"]["s1"]["summary"] == "tea"
    for _ in range(2):
        assert alice.conversations()["s1"].summary == "tea"
        alice.add_turn("Hello.", "Hello.", session_id="s2")


def test_an_export_never_contains_half_a_transaction(tmp_path):
    """Another writer commits between the reads of two documents that it keeps equal."""
    read = []

    class Interleaved(LocalBackend):
        def read(self, user_id, kind):
            is_first = kind not in read
            read.append(kind)
            if kind == "blocks" and is_first:
                store("<2>")
            return super().read(user_id, kind)

    def store(text):
        with writer.transaction():
            writer.set_block("n", text)
            writer.commit(Diet(role="n", food=text))

    writer = opened(tmp_path).user("alice")
    store("<1>")
    writer.commit(Diet(role="last", food="tea"))  # a transaction that the first read shows
    exported = opened(Interleaved(tmp_path, durability="process")).user("alice").export()
    assert read[0] == "facts"  # else nothing was read before the commit
    found = {re.search(r"<\d>", text)[0] for text in exported["documents"].values()}
    assert (exported["seq"], found) == (3, {"<2>"})


def test_an_export_waits_for_committed_documents_to_be_published(tmp_path, monkeypatch):
    class Slow(LocalBackend):
        def _publish(self, *arguments):
            if waits.is_set():
                committed.set()
                assert may_publish.wait(30)
            return super()._publish(*arguments)

    waits, committed, may_publish = (threading.Event() for _ in range(3))
    writer = opened(Slow(tmp_path, durability="process")).user("alice")
    reader = opened(tmp_path).user("alice")
    writer.set_block("n", "old")
    reader.export()
    waits.set()
    thread = threading.Thread(target=writer.set_block, args=("n", "new"))
    thread.start()
    assert committed.wait(30)
    # As soon as the export waits, the writer may go on.
    monkeypatch.setattr(time, "sleep", lambda _: may_publish.set())
    try:
        exported = reader.export()
    finally:
        may_publish.set()
        thread.join()
    assert (exported["seq"], '"new"' in exported["documents"]["blocks"]) == (2, True)


def test_an_unreadable_document_fails_the_export(tmp_path):
    alice = filled(opened(tmp_path))
    (tmp_path / "alice/blocks.toml").write_text("[broken")
    with pytest.raises(DocumentError, match=r"blocks\.toml:1"):
        alice.export()


def test_a_folder_in_place_of_a_document_fails_the_export(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("persona", "Brief.")
    place = tmp_path / "alice/blocks.toml"
    place.unlink()
    place.mkdir()
    with pytest.raises(BackendError, match=r"blocks\.toml: is not a regular file"):
        alice.export()
    assert [str(place) in str(problem) for problem in alice.problems()] == [True]


def test_past_states_and_open_transactions_can_be_exported(place):
    alice = opened(place).user("alice")
    alice.blocks.set("persona", "one")
    with alice.transaction():
        alice.blocks.set("persona", "two")
        alice.facts.commit(Diet(role="user", food="vegan"))
        assert '"two"' in alice.export()["documents"]["blocks"]
        assert "vegan" in alice.export()["documents"]["facts"]
    past = alice.as_of(1).export()
    assert (past["seq"], list(past["documents"])) == (1, ["blocks"])
    assert asyncio.run(alice.aexport())["seq"] == 2


def test_a_profile_is_numbers_and_names_only(place):
    alice = filled(opened(place))
    profile = json.loads(json.dumps(alice.profile()))
    last = profile.pop("last_seen")
    assert last == alice.episodes()[-1].created
    assert last > alice.conversations()["s1"].updated
    assert profile == {
        "user": "alice",
        "preferences": {"likes": 1},
        "conversations": 1,
        "facts": {"diet": 1},
        "blocks": {"persona": 12},
        "episodes": 1,
        "items": {},
        "drafts": 0,
        "quarantine": 0,
        "sessions": 1,
    }


def test_a_profile_counts_sessions_and_what_waits(tmp_path):
    alice = Diary(tmp_path, agent="rules", quarantine={"web"}).user("alice")
    alice.blocks.set("one", "x", session_id="s1")
    alice.blocks.append("one", "y", session_id="s2")
    alice.blocks.set("two", "x", session_id="s3", ephemeral=True)
    alice.blocks.set("three", "x", actor="web")
    profile = alice.profile()
    assert (profile["sessions"], profile["drafts"], profile["quarantine"]) == (3, 1, 1)


def test_an_export_for_other_programs_has_all_fields_and_the_history(place):
    alice = filled(opened(place))
    alice.upsert_preference("likes", "Wien", id="pref001")
    found = json.loads(json.dumps(alice.export(entries=True, history=True)))
    assert found["documents"] == alice.export()["documents"]
    assert found["entries"]["likes/pref001"]["text"] == "Wien"
    assert {*found["entries"]} == {each.key for each in alice.diff(0)}
    assert len(found["history"]) == found["seq"] == alice.last_transaction()
    bob = alice.diary.user("bob")
    bob.import_(found)
    assert bob.export(entries=True)["entries"] == found["entries"]


def test_a_profile_counts_items_and_facts_that_hold(place):
    diary = opened(place)
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    alice = diary.user("alice")
    assert alice.profile()["last_seen"] == ""
    for year, city in ((2020, "Rome"), (2021, "Oslo"), (2999, "Bern")):
        alice.facts.commit(Home(who="user", city=city), valid_from=datetime(year, 1, 1, tzinfo=UTC))
    store = DiaryStore(diary)
    for key in "abc":
        store.put(("alice", "memories", "work"), key, {"n": 1})
    store.put(("alice",), "k", {"n": 1})
    store.delete(("alice", "memories", "work"), "a")
    assert alice.profile()["facts"] == {"home": 1}
    assert alice.profile()["items"] == {"memories/work": 2, "~": 1}
    assert alice.as_of(1).profile()["items"] == {}


# From the command line


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    def called(command, *arguments, user="alice", check=0):
        line = [
            "tomldiary",
            command,
            "--user",
            user,
            "--path",
            str(tmp_path / "m"),
            *map(str, arguments),
        ]
        monkeypatch.setattr("sys.argv", line)
        code = 0
        try:
            run()
        except SystemExit as error:
            code = error.code or 0
        out, err = capsys.readouterr()
        assert code == check, err
        return out + err

    return called


def test_export_and_import_from_the_command_line(tmp_path, call):
    alice = filled(opened(tmp_path / "m"))
    assert json.loads(call("export"))["documents"] == alice.export()["documents"]
    file = tmp_path / "alice.json"
    assert "wrote 5 documents" in call("export", "--output", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "the file exists" in call("export", "--output", file, check=2)
    assert "imported: blocks, conversations" in call("import", file, user="bob")
    bob = opened(tmp_path / "m").user("bob")
    assert documents(bob) == documents(alice)
    assert "are already stored" in call("import", file, user="bob")
    bob.blocks.set("persona", "Other.")
    assert "stored with different content: blocks.persona" in call(
        "import", file, user="bob", check=2
    )
    assert "use --replace to replace" in call("import", file, user="bob", check=2)
    before = documents(bob)
    for more in ([], ["--dry-run"], ["--dry-run", "--yes"]):
        plan = call("import", file, "--replace", *more, user="bob").splitlines()
        assert plan[0] == "would import: 0 entries added, 1 changed, 0 removed"
        assert plan[1:] == [
            "  ~ blocks/persona",
            not_done(more),
        ]
    assert documents(bob) == before
    told = json.loads(call("import", file, "--replace", "--json", user="bob"))
    assert [one["key"] for one in told] == ["blocks/persona"]
    assert "would import" in call("import", file, "--dry-run", user="carol")
    assert not (tmp_path / "m/carol").exists()
    replaced = call("import", file, "--replace", "--yes", "--json", user="bob")
    assert json.loads(replaced) == ["blocks"]
    assert documents(bob) == documents(alice)
    file.write_text("{")
    assert "this is not JSON" in call("import", file, user="bob", check=2)
    assert "there is no such file" in call("import", tmp_path / "nope", user="bob", check=2)


def test_the_forget_command_is_a_dry_run_without_yes(tmp_path, call):
    alice = filled(opened(tmp_path / "m"))
    alice.blocks.set("other", "stays", session_id="s2")
    for wrong in ([], ["--session", "s1", "--everything"], ["--session", ""], ["--before", "soon"]):
        told = call("forget", "--yes", *wrong, check=2)
        assert "session_id" not in told
        assert "True" not in told
    for more in ([], ["--dry-run"], ["--dry-run", "--yes"]):
        told = call("forget", "--session", "s1", *more).splitlines()
        assert re.match(r"would forget: [3-9] entries, 1 conversation; \d+ transactions", told[0])
        assert told[-1] == not_done(more)
        keys = alice.forget(session_id="s1", dry_run=True).keys
        assert told[1:-1] == [f"  {key}" for key in keys]
        assert "conversations/s1" in keys
        assert call("forget", "--session", "unknown", *more).startswith(
            "would forget: 0 entries, 0"
        )
    assert len(alice.episodes()) == 1
    planned = json.loads(call("forget", "--session", "s1", "--json"))
    done = json.loads(call("forget", "--session", "s1", "--yes", "--json"))
    for count in ("entries", "conversations", "records"):
        assert planned[count] == done[count] > 0
    assert (planned["is_done"], done["is_done"]) == (False, True)
    alice = opened(tmp_path / "m").user("alice")
    assert (alice.episodes(), alice.facts.query("diet")) == ([], [])
    assert alice.blocks["other"].text == "stays"
    for number in range(25):
        alice.blocks.set(f"block {number}", "text")
    told = call("forget", "--everything").splitlines()
    assert "would forget" in told[0]
    rest = len(alice.forget(everything=True, dry_run=True).keys) - 20
    assert (len(told), told[-2]) == (23, f"  … {rest} more; --json names all")
    assert alice.blocks["other"].text == "stays"
    assert "forgotten" in call("forget", "--everything", "--yes")
    assert not (tmp_path / "m/alice").exists()
    # As from code: an erasure that is asked for twice is no error, and says what it found.
    again = call("forget", "--everything", "--yes")
    assert "nothing is stored for alice" in again
    assert "forgotten: 0 entries, 0 conversations" in again
    assert json.loads(call("forget", "--session", "s1", "--yes", "--json"))["entries"] == 0
    assert not (tmp_path / "m/alice").exists()


@pytest.mark.parametrize("place", ["memory:", "folder"])
def test_a_dry_run_of_forgetting_counts_and_changes_nothing(tmp_path, place):
    alice = filled(opened(tmp_path / "m" if place == "folder" else place))
    before, seq = alice.export()["documents"], alice.last_transaction()
    for chosen in ({"session_id": "s1"}, {"everything": True}, {"session_id": "nobody"}):
        planned = alice.forget(**chosen, dry_run=True)
        assert planned.files == {}
        assert (planned.entries > 0) == (chosen != {"session_id": "nobody"})
    assert (alice.export()["documents"], alice.last_transaction()) == (before, seq)
    planned, done = alice.forget(session_id="s1", dry_run=True), alice.forget(session_id="s1")
    assert (planned.entries, planned.conversations, planned.records) == (
        done.entries,
        done.conversations,
        done.records,
    )


def test_a_preview_of_an_import_names_the_entries_and_changes_nothing(tmp_path):
    diary = opened(tmp_path / "m")
    exported = filled(diary).export()
    bob = diary.user("bob")
    bob.upsert_preference("likes", "wine", id="own")
    before = bob.export()["documents"]
    added = bob.import_preview(exported)
    assert {one.before for one in added} == {None}
    replaced = {one.key: one for one in bob.import_preview(exported, replace=True)}
    assert replaced["likes/own"].after is None
    assert bob.export()["documents"] == before
    bob.import_(exported, replace=True)
    assert bob.import_preview(exported, replace=True) == []


def test_a_preview_within_a_transaction_stores_nothing(tmp_path):
    diary = opened(tmp_path)
    exported = diary.user("alice")
    exported.blocks.set("persona", "brief")
    bob = diary.user("bob")
    with bob.transaction():
        bob.blocks.set("notes", "kept")
        preview = bob.import_preview(exported.export(), replace=True)
    assert [change.key for change in preview] == ["blocks/notes", "blocks/persona"]
    assert isinstance(preview, type(bob.diff(0)))  # a list with a view
    assert list(bob.blocks()) == ["notes"]


def test_show_history_why_and_search_cover_every_document(tmp_path, call):
    alice = filled(opened(tmp_path / "m"))
    key = alice.episodes()[0].id
    alice.blocks.set("odd", "\x1b[2J\u202e")
    told = CliRunner().invoke(app, ["show", "alice", "--path", str(tmp_path / "m")]).output
    for part in ("blocks/persona", "Kind.", "episodes/20", "hello", "facts/diet", "food = vegan"):
        assert part in told
    assert "\x1b" not in told
    shown = json.loads(
        CliRunner().invoke(app, ["show", "alice", "--json", "--path", str(tmp_path / "m")]).output
    )
    assert shown["facts"]["facts"]["diet"]["user"]["food"] == "vegan"
    for entry in ("facts/diet/user", "blocks/persona", f"episodes/{key}"):
        assert entry in call("history", entry)
        assert entry in call("why", entry)
    assert "diet/user" in call("search", "vegan")


def test_an_export_after_a_logged_hand_edit_waits_for_no_writer(tmp_path):
    diary = Diary(tmp_path, agent="rules", durability="process", lock_timeout=0.1)
    alice = diary.user("alice")
    alice.blocks.set("persona", "Brief.")
    edited = alice.document("blocks").replace("Brief.", "Polite.")
    save_text(diary, "alice", "blocks", edited, alice.epoch)  # as `tomldiary edit` does
    with Diary(tmp_path, agent="rules").user("alice").transaction():
        found = alice.export()
    assert found["seq"] == 2
    assert found["documents"] == {"blocks": edited}


def test_replacing_a_memory_by_an_equal_one_writes_nothing(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    alice.blocks.set("persona", "Plain.")
    exported = alice.export()
    bob = alice.diary.user("bob")
    bob.import_(exported)
    for user, last in ((alice, 2), (bob, 1)):
        assert user.import_(exported, replace=True) == []
        assert user.last_transaction() == last
    bob.upsert_preference("likes", "milk")
    assert bob.import_(exported, replace=True) == ["preferences"]


def test_an_export_takes_the_lock_if_others_write_for_longer_than_its_time(tmp_path, monkeypatch):
    diary, writing = (Diary(tmp_path, agent="rules") for _ in range(2))
    alice = writing.user("alice")
    alice.upsert_preference("likes", "tea 0", id="pref001")
    reads, listed = [], diary.engine.kinds

    def busy(user):
        reads.append(user)
        if diary.engine.transaction_of(user) is None:
            alice.upsert_preference("likes", f"tea {len(reads)}", id="pref001", create=False)
        return listed(user)

    monkeypatch.setattr(diary.engine, "kinds", busy)
    exported = diary.user("alice").export()
    assert 1 < len(reads) < 40
    assert exported["seq"] == len(reads)
    assert f'"tea {len(reads) - 1}"' in exported["documents"]["preferences"]
