"""What a diary redacts reaches no file, journal, log, span, index or model, through any door."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import fields
from types import SimpleNamespace
from typing import get_args

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel, Field

from tomldiary import Constraint, Diary, MemoryWriter, PreferenceItem, RetryPolicy, Turn
from tomldiary.agents.verbs import MemoryVerbs
from tomldiary.entries.kinds.episodes import ToolStep
from tomldiary.errors import InvalidValue, OperationConflict
from tomldiary.extraction import tools
from tomldiary.extraction.operations import Operation, TurnOperation, redacted
from tomldiary.retrieval.vector_index import Embedding
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from tomldiary.text.redaction import Redactor

CANARY = "canary.wren@example.org"
CARD = "4111 1111 1111 1111"
SAID = f"My mail is {CANARY}, my card is {CARD}."
KEPT = "My mail is [redacted: email], my card is [redacted: card]."


def everything(folder):
    """All bytes below a folder, the names of files included."""
    return b"\n".join(
        str(path).encode() + (path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    )


def holds_no_canary(folder):
    found = everything(folder)
    return not any(text.encode() in found for text in (CANARY, "canary.wren", CARD, "1111 1111"))


@pytest.fixture
def diary(tmp_path):
    return Diary(tmp_path / "memories", agent="rules", redact=True)


class Contact(BaseModel):
    name: str
    note: str = ""


class Dish(PreferenceItem):
    cook: str = ""


class Kitchen(BaseModel):
    dishes: dict[str, Dish] = {}


class Mailed(BaseModel):
    text: str


class Law(BaseModel):
    name: str
    text: str


def remember(diary, alice):
    assert "Noted" in MemoryVerbs(alice, "s").remember(SAID, "likes", [CANARY])
    return alice.preferences("likes")["pref001"].text


def upsert(diary, alice):
    return alice.upsert_preference("likes", SAID, reason=f"told me by {CANARY}")[1].text


def episode(diary, alice):
    alice.episodes.add(SAID, SAID, session_id="s")
    return alice.episodes.list()[0].input


def block(diary, alice):
    alice.blocks.set("note", SAID)
    alice.blocks.append("note", f"also {CANARY}")
    return alice.blocks["note"].text.split("\n")[0]


def fact(diary, alice):
    diary.register_schema("contact", Contact)
    alice.facts.commit(Contact(name="Anna", note=SAID))
    return str(alice.facts.query("contact")[0].data.note)


DOORS = {"remember": remember, "upsert": upsert, "episode": episode, "block": block, "fact": fact}


@pytest.mark.parametrize("door", DOORS)
def test_what_goes_through_a_door_is_stored_redacted(diary, tmp_path, door):
    alice = diary.user("alice")
    assert DOORS[door](diary, alice) == KEPT
    assert holds_no_canary(tmp_path)
    assert diary.stats()["redacted"]["email"] >= 1


def test_no_fingerprint_of_a_request_could_confirm_a_guess_of_a_secret(tmp_path):
    found = []
    for place, secret in (("a", CANARY), ("b", "another@example.org")):
        diary = Diary(tmp_path / place, Kitchen, agent="rules", redact=True)
        diary.register_schema("contact", Contact, constraint=Constraint(singleton_key="name"))
        alice = diary.user("alice")
        for _ in range(2):
            fact = alice.facts.commit(Contact(name="Anna", note=secret), operation_id="1")
        alice.blocks.append("notes", secret, operation_id="2")
        alice.episodes.add(secret, "Noted.", operation_id="3")
        tools = MemoryVerbs(alice, "s", "4")
        assert "✅" in tools.remember("", "contact", fields={"name": "Ben", "note": secret})
        assert diary.stats()["redacted"] == {"email": 4}
        ItemStore(diary).run([Put(("alice", "mails"), "x", {"text": "old"})])
        with alice.transaction(operation_id="5"):
            alice.upsert_preference("dishes", "curry", fields={"cook": secret})
            alice.blocks.replace("notes", "[", secret)
            alice.facts.update(fact, {"note": f"Mail {secret}"})
            alice.items.update("mails/x", {"text": secret})
        (file,) = (tmp_path / place).glob("alice/history/*.toml")
        found.append(re.findall(r'^content = ".*"$', file.read_text(), re.MULTILINE))
    assert found[0] == found[1]
    assert len(found[0]) == 5


@pytest.mark.parametrize(
    "write",
    [
        lambda alice, name: alice.facts.commit(Contact(name=name), operation_id="1"),
        lambda alice, name: alice.blocks.append(name, "Tea.", operation_id="1"),
        lambda alice, name: alice.upsert_preference("likes", "Tea", id=name, operation_id="1"),
        lambda alice, name: alice.episodes.add("Tea.", "Noted.", id=name, operation_id="1"),
    ],
)
def test_a_request_with_another_name_is_another_request_though_both_would_be_redacted(diary, write):
    diary.register_schema("contact", Contact, constraint=Constraint(singleton_key="name"))
    alice = diary.user("alice")
    for _ in range(2):  # a repetition
        write(alice, "anna@example.org")
    with pytest.raises(OperationConflict):
        write(alice, "otto@example.org")
    assert alice.last_transaction() == 1


def test_a_text_that_is_stored_again_changes_nothing(diary):
    alice, step = diary.user("alice"), ToolStep("mail", CANARY)
    for _ in range(2):
        alice.episodes.add(SAID, "Noted.", id="first", steps=[step])
        alice.blocks.set("notes", SAID, session_id="s1")
    assert alice.last_transaction() == 2


def test_a_turn_is_read_and_kept_redacted(tmp_path):
    seen = []

    async def run(message, *, deps):
        seen.append((message, deps.user_msg, deps.assistant_msg, deps.earlier))
        await tools.upsert_preference(SimpleNamespace(deps=deps), "likes", text=deps.user_msg)
        deps.upsert("likes", "own", f"made up: {CANARY}", [CARD])
        deps.summarise(f"About {CANARY}.", [CANARY])
        deps.prefs["preferences"]["likes"]["own"]["note"] = CARD

    diary = Diary(tmp_path / "m", agent=run, redact=True, episodes=True)
    alice = diary.user("alice")
    alice.add_turn(SAID, f"I noted {CANARY}.", session_id="s", earlier=[(SAID, CANARY)])
    assert CANARY not in str(seen)
    assert CARD not in str(seen)
    assert alice.preferences("likes")["pref001"].text == KEPT
    assert alice.preferences("likes")["own"].text == "made up: [redacted: email]"
    assert alice.conversations()["s"].summary == "About [redacted: email]."
    assert alice.episodes.list()[0].input == KEPT
    assert holds_no_canary(tmp_path)


def test_equal_redacted_texts_are_confirmed_not_stored_twice(diary):
    alice = diary.user("alice")
    for said in ("a@example.org", "b@example.org"):
        alice.upsert_preference("likes", f"letters to {said}")
    assert [item.count for item in alice.preferences("likes").values()] == [2]


def test_items_are_redacted_before_they_are_embedded_and_stored(diary, tmp_path):
    store = ItemStore(diary)
    store.run([Put(("alice", "notes"), "k", {"text": SAID, "deep": {"list": [CANARY, 1]}})])
    assert "[redacted: email]" in str(diary.user("alice").recall("mail", 5))
    assert holds_no_canary(tmp_path)


def test_an_embedder_is_given_redacted_texts(diary, tmp_path):
    given = []

    def embed(texts):
        given.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    store = ItemStore(diary, embedding=Embedding(2, embed, ("text",), "counting"))
    store.run([Put(("alice", "notes"), "k", {"text": SAID})])
    [[found]] = store.run([Search(("alice", "notes"), query=SAID)])
    assert (given, found.score) == ([KEPT, KEPT], pytest.approx(1))
    given.clear()
    alice = Diary(tmp_path / "other", embedder=embed, redact=True).user("alice")
    alice.blocks.set("note", SAID)
    alice.recall(f"Is it {CANARY}?")
    ItemStore(alice.diary).run([Search(("alice",), query=f"Was it {CANARY}?")])
    assert {"Is it [redacted: email]?", "Was it [redacted: email]?"} < set(given)
    assert CANARY not in str(given)


def test_the_words_of_a_search_are_those_of_the_question(tmp_path):
    Diary(tmp_path).user("alice").blocks.set("note", SAID)
    called = []
    assert Diary(tmp_path, redact=called.append).user("alice").recall(CANARY)
    assert called == []

    def embed(texts):
        return [[0.0, 1.0] for _ in texts]

    store = ItemStore(Diary(tmp_path, redact=True), embedding=Embedding(2, embed, ("text",), "up"))
    stored = {"said": SAID, "other": "The email was redacted."}
    puts = [Put(("alice", "notes"), key, {"text": text}) for key, text in stored.items()]
    ItemStore(Diary(tmp_path)).run(puts)
    [found] = store.run([Search(("alice", "notes"), query=CANARY)])
    assert [item.key for item in found] == list(stored)


def test_operations_and_the_draft_of_an_extractor_are_redacted(tmp_path):
    answers = []

    async def run(message, *, deps):
        context = SimpleNamespace(deps=deps)
        deps.upsert("likes", None, SAID, [CARD])
        answers.append(await tools.list_preferences(context, "likes"))
        deps.summarise(f"About {CANARY}.", [CANARY])
        likes = deps.prefs["preferences"]["likes"]
        likes["own"] = {"text": CANARY, "_created_by": CANARY}
        likes["brief"] = {"text": CANARY}
        _ = deps.operations
        del likes["brief"]
        deps.remove_fact(deps.commit_fact("contact", {"name": "Ann", "note": CANARY}))

    diary = Diary(tmp_path, agent=run, redact=True)
    diary.register_schema("contact", Contact)
    extracted = diary.turns.extract(Turn("alice", "s", "x", "y"), TurnOperation())
    operations, _ = asyncio.run(extracted)
    assert CARD not in str(operations)
    assert str(operations).count(CANARY) == 1  # the name of a session stays
    assert CANARY not in answers[0]


def test_an_operation_keeps_no_text_but_names_and_what_is_stored():
    kept = set()
    for kind in get_args(Operation):
        pairs = dict.fromkeys(("fields", "values"), (("note", CARD),))
        given = kind(**{each.name: pairs.get(each.name, CARD) for each in fields(kind)})
        (stored,) = redacted([given], Redactor().values, {})
        kept |= {each.name for each in fields(kind) if CARD in str(getattr(stored, each.name))}
    names = {"category", "id", "session_id", "kind", "path", "type", "created_as", "removed"}
    flags = {"count_up", "delete", "existing", "confidence", "valid_from"}
    assert kept == {*names, *flags, "confirms", "replaces", "removes"}


def test_an_earlier_exchange_is_redacted_before_it_is_cut(tmp_path):
    seen = []

    def extract(message, *, deps):
        seen.append(deps.earlier)

    diary = Diary(tmp_path, agent=extract, redact=True)
    mail = "canary.wren" + "n" * 40 + "@example.org"
    earlier = [
        ("x" * 470 + f" {mail} " + "y" * 600, "")
    ]  # the middle, which is left out, begins inside
    diary.user("alice").add_turn("I love tea.", "Noted.", "s", earlier=earlier)
    with MemoryWriter(diary) as writer:
        writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted.", earlier=earlier))
    assert len(seen) == 2
    assert "canary" not in str(seen)
    assert max(len(said) for [(said, _)] in seen) <= 1000


def test_texts_that_the_extractor_does_not_get_are_redacted_once(tmp_path):
    seen = []
    diary = Diary(tmp_path, agent="rules", redact=lambda text: seen.append(text) or text)
    long, answer = "She asked. " * 200, "It rains."
    diary.user("alice").add_turn(
        "I love tea.", "Noted.", "s",
        earlier=[(long, "")], steps=[ToolStep("weather", "{}", answer)], episode=False,
    )  # fmt: skip
    assert [seen.count(each) for each in (long, answer)] == [1, 1]


def test_an_entry_with_an_unredacted_text_is_confirmed(tmp_path):
    Diary(tmp_path, agent="rules").user("alice").upsert_preference("likes", SAID)

    async def run(message, *, deps):
        deps.upsert("likes", "pref001", None)

    alice = Diary(tmp_path, agent=run, redact=True).user("alice")
    assert alice.add_turn("x", "y", session_id="s").skipped == []
    assert alice.preferences("likes")["pref001"].count == 2


@pytest.mark.parametrize("fails", [False, True])
def test_a_queued_turn_is_in_no_journal_letter_log_or_span(tmp_path, caplog, monkeypatch, fails):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: provider.get_tracer("tomldiary"))

    async def run(message, *, deps):
        if fails:
            raise RuntimeError("no service")
        deps.upsert("likes", None, f"x {CANARY}", ())

    diary = Diary(tmp_path / "m", agent=run, redact=True)

    async def work():
        writer = MemoryWriter(diary, workers=1, retry=RetryPolicy(attempts=1))
        async with writer:
            receipt = await writer.submit_turn(
                Turn(
                    "alice",
                    "s",
                    SAID,
                    CANARY,
                    earlier=[(CANARY, SAID)],
                    steps=[ToolStep("t", CARD, CANARY)],
                )
            )
            nowait = writer.submit_nowait(Turn("alice", "s", f"again {SAID}", ""))
            assert await receipt.astored()
            nowait.wait_stored(20)
            assert holds_no_canary(tmp_path)

    with caplog.at_level(logging.DEBUG):
        asyncio.run(work())
    assert holds_no_canary(tmp_path)
    sent = "".join(span.to_json() for span in spans.get_finished_spans())
    assert '"update_memory"' in sent
    for text in (caplog.text, sent):
        assert CANARY not in text
        assert CARD not in text


@pytest.mark.parametrize("fails", [False, True])
def test_the_error_of_a_dead_letter_is_redacted(tmp_path, fails):
    def redact(text):
        if fails and "answered" in text:
            raise LookupError(text)
        return text.replace(CANARY, "[mail]")

    def run(message, *, deps):
        raise ValueError(f"the model answered: {CANARY}")

    diary = Diary(tmp_path, agent=run, redact=redact)
    with MemoryWriter(diary, retry=RetryPolicy(attempts=1)) as writer:
        writer.submit_nowait(Turn("alice", "s", "I love tea.", "Noted."))
    assert holds_no_canary(tmp_path)
    (letter,) = (tmp_path / ".tomldiary/dead-letters").iterdir()
    error = "ExtractionError" if fails else "[mail]"
    assert error in letter.read_text()


def test_an_import_is_redacted(tmp_path):
    open_one = Diary("memory:", agent="rules").user("alice")
    open_one.upsert_preference("likes", SAID)
    open_one.blocks.set("note", f"line\n{SAID}")
    open_one.episodes.add(SAID, "", session_id="s")
    for replace in (False, True):
        alice = Diary(tmp_path / str(replace), redact=True).user("alice")
        alice.import_(open_one.export(), replace=replace)
        assert alice.preferences("likes")["pref001"].text == KEPT
    assert holds_no_canary(tmp_path)


def test_names_are_not_redacted(diary):
    alice = diary.user(CANARY)
    alice.upsert_preference("likes", "tea", session_id=CANARY)
    assert diary.users() == [CANARY]
    assert alice.preferences("likes")["pref001"].created_by == CANARY


def test_redaction_is_off_by_default(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    alice.upsert_preference("likes", SAID)
    assert alice.preferences("likes")["pref001"].text == SAID
    assert "redacted" not in alice.diary.stats()


def test_a_function_of_the_host_redacts(tmp_path):
    diary = Diary(tmp_path, redact=lambda text: text.replace("Anna", "[name]"))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "Anna's cakes")
    assert alice.preferences("likes")["pref001"].text == "[name]'s cakes"
    assert diary.stats()["redacted"] == {"other": 1}
    both = Diary("memory:", redact=Redactor(["email"], also=str.upper)).user("alice")
    both.upsert_preference("likes", f"tea {CANARY}")
    assert both.preferences("likes")["pref001"].text == "TEA [REDACTED: EMAIL]"


@pytest.mark.parametrize("answer", [None, 5])
def test_a_function_that_returns_no_text_stores_nothing(tmp_path, answer):
    diary = Diary(tmp_path, agent="rules", redact=lambda _: answer)
    put = Put(("alice", "trips"), "porto", {"text": "a week in Porto", "days": 7})
    for store in (
        lambda: ItemStore(diary).run([put]),
        lambda: diary.user("alice").add_turn("I like tea.", "Noted.", "s1"),
    ):
        with pytest.raises(InvalidValue, match="redact: the function returned"):
            store()
    assert diary.users() == []


def test_a_value_that_contains_itself_is_refused(diary):
    value = {}
    value["again"] = [value]
    with pytest.raises(InvalidValue, match="nested deeper"):
        ItemStore(diary).run([Put(("alice", "trips"), "porto", value)])
    assert diary.users() == []


def test_an_unknown_kind_or_an_unfit_function_is_refused_at_once():
    with pytest.raises(InvalidValue, match="expected some of key"):
        Diary("memory:", redact=["name"])
    with pytest.raises(InvalidValue, match="expected True, kinds or a function"):
        Diary("memory:", redact=5)

    async def ask(text):
        return text

    with pytest.raises(InvalidValue, match="redact: an async function cannot be used"):
        Diary("memory:", redact=ask)
    with pytest.raises(InvalidValue, match="redact: an async function cannot be used"):
        Redactor(["email"], also=ask)
    with pytest.raises(InvalidValue, match=r"redact: a call with \(text\) fails, missing"):
        Diary("memory:", redact=lambda text, kind: text + kind)


def test_what_waits_for_a_review_is_redacted(tmp_path):
    diary = Diary(tmp_path, redact=True, quarantine={"web"})
    alice = diary.user("alice")
    alice.upsert_preference("likes", SAID, actor="web")
    alice.episodes.add(SAID, "", actor="web")
    alice.blocks.set("note", SAID, actor="web")
    assert b"[redacted: email]" in everything(tmp_path)
    assert holds_no_canary(tmp_path)


class Mailbox(BaseModel):
    owner: str
    mail: str = Field(pattern="@")


@pytest.mark.parametrize("options", [{}, {"session_id": "s1", "ephemeral": True}, {"actor": "web"}])
def test_a_fact_that_redaction_would_make_unreadable_is_refused(tmp_path, options):
    diary = Diary(tmp_path, agent="rules", redact=True, quarantine={"web"})
    diary.register_schema("mailbox", Mailbox)
    alice = diary.user("alice")
    with pytest.raises(
        InvalidValue, match=r"mailbox\.mail: a redacted value does not fit the type"
    ):
        alice.facts.commit(Mailbox(owner="Anna", mail=CANARY), **options)
    assert (alice.facts.query("mailbox"), alice.review(), alice.drafts("s1")) == ([], [], [])
    assert (alice.history(), alice.problems()) == ([], [])
    assert holds_no_canary(tmp_path)


@pytest.mark.parametrize("is_temporal", [False, True])
def test_a_fact_whose_key_is_a_secret_is_found_by_it(tmp_path, is_temporal):
    diary = Diary(tmp_path, agent="rules", redact=True, quarantine={"web"})
    rule = Constraint(singleton_key="name", temporal=is_temporal)
    diary.register_schema("contact", Contact, rule)
    alice = diary.user("alice")
    alice.facts.commit(Contact(name=CANARY, note=CARD))
    alice.facts.commit(Contact(name="bo@example.org", note=CARD), session_id="s1", ephemeral=True)
    alice.blocks.set("bo@example.org", SAID, session_id="s1", ephemeral=True)
    alice.promote_session("s1")
    alice.facts.commit(Contact(name="cy@example.org", note="new"), actor="web")
    change = alice.review.edit(alice.review()[0].id, {"note": CARD})
    alice.review.accept(change.id)
    bob = diary.user("bob")
    bob.import_(alice.export())
    for user in (alice, bob):
        found = {fact.data.name: fact.data.note for fact in user.facts.query("contact")}
        names = [CANARY, "bo@example.org", "cy@example.org"]
        assert found == dict.fromkeys(names, "[redacted: card]")
        assert user.facts.get(f"contact/{CANARY}") is not None
        assert (user.blocks["bo@example.org"].text, user.problems()) == (KEPT, [])
    assert b"4111 1111" not in everything(tmp_path)


def test_facts_that_are_equal_once_redacted_are_equal(tmp_path):
    diary = Diary(tmp_path, agent="rules", redact=True)
    diary.register_schema("mailed", Mailed)
    diary.register_schema("law", Law, Constraint(singleton_key="name", immutable=True))
    diary.register_schema("contact", Contact, Constraint(singleton_key="name", temporal=True))
    alice = diary.user("alice")
    for _ in range(2):
        alice.facts.commit(Mailed(text=SAID))
        alice.facts.commit(Law(name="n", text=SAID))
        alice.facts.commit(Contact(name="Anna", note=SAID))
        alice.facts.update("contact/Anna", {"note": SAID})
        alice.upsert_preference("likes", "mail", contexts=[CANARY, "home"])
    assert alice.facts.count(include_ended=True) == 3
    [liked] = alice.preferences("likes").values()
    assert liked.contexts == ["[redacted: email]", "home"]


def test_an_update_with_a_secret_that_was_stored_redacts_it(tmp_path):
    for redact in (False, True):
        diary = Diary(tmp_path, agent="rules", redact=redact)
        diary.register_schema("contact", Contact, Constraint(singleton_key="name"))
        alice = diary.user("alice")
        if not redact:
            alice.facts.commit(Contact(name="Anna", note=SAID))
    alice.facts.update("contact/Anna", {"note": SAID})
    assert alice.facts.get("contact/Anna").data.note == KEPT


def test_an_extractor_keeps_facts_with_secrets_as_keys_apart(tmp_path):
    async def run(message, *, deps):
        deps.commit_fact("contact", {"name": CANARY, "note": SAID})
        deps.commit_fact("contact", {"name": "bo@example.org", "note": SAID})

    diary = Diary(tmp_path, agent=run, redact=True)
    diary.register_schema("contact", Contact, Constraint(singleton_key="name"))
    alice = diary.user("alice")
    alice.add_turn("Hi.", "Hi.", session_id="s")
    found = {fact.id: fact.data.note for fact in alice.facts.query("contact")}
    assert found == dict.fromkeys([f"contact/{CANARY}", "contact/bo@example.org"], KEPT)
