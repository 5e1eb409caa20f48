"""Extractors write typed facts where a type is registered: told by its schema, answered by its rules."""

from __future__ import annotations

from typing import Literal

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from pydantic import BaseModel, Field
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

from tomldiary import Constraint, Diary
from tomldiary.extraction.operations import CommitFact, RemoveFact, from_dict, to_table
from tomldiary.extraction.prompt import draft_prompt
from tomldiary.extraction.tools import FACT_TOOLS, commit_fact, list_facts, remove_fact


class Diet(BaseModel):
    """What a person eats."""

    role: str = Field(description="Who it is about.")
    food: Literal["vegan", "omnivore"]


class Home(BaseModel):
    who: str
    city: str


PORTO = {"who": "user", "city": "Porto"}
FIELDS = {"role": "user", "food": "vegan"}


def typed(agent):
    diary = Diary("memory:", agent=agent)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    diary.register_schema("home", Home, Constraint(singleton_key="who", temporal=True))
    return diary


class Scripted:
    """Runs a function on the draft, and keeps what the tools answered."""

    def __init__(self, work):
        self.work = work
        self.answers = []
        self.prompt = self.message = ""

    async def run(self, message, *, deps):
        self.prompt, self.message = draft_prompt(deps), message
        context = type("Context", (), {"deps": deps})()
        self.answers = [await each for each in self.work(context)]


def test_a_fact_is_extracted_with_its_turn_and_session():
    script = Scripted(lambda ctx: [commit_fact(ctx, "diet", FIELDS, 0.7), list_facts(ctx)])
    alice = typed(script).user("alice")
    alice.add_turn("I am vegan.", "Noted.", "s1")
    assert script.answers[0] == "✅ Stored facts/diet/user: role = user, food = vegan."
    assert script.answers[1] == "- diet/user: role = user, food = vegan"
    (fact,) = alice.facts.query("diet")
    assert (fact.created_by, fact.source, fact.confidence) == ("s1", "s1#1", 0.7)
    assert alice.why("facts/diet/user").turn == "s1#1"
    alice.forget(source="s1#1")
    assert alice.facts.count() == 0


def test_a_type_registered_later_is_known_to_another_extractor_of_the_diary():
    diary = Diary("memory:", agent="rules")
    script = Scripted(lambda ctx: [commit_fact(ctx, "diet", FIELDS)])
    node = diary.with_agent(script)  # as `extract_node(diary, model)` has it
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    node.user("alice").add_turn("I am vegan.", "Noted.", "s1")
    assert "- diet (What a person eats.)" in script.prompt
    assert diary.user("alice").facts.get("diet/user") is not None


def test_the_prompt_has_types_and_fields_and_the_message_has_stored_facts_as_data():
    script = Scripted(lambda ctx: [])
    diary = typed(script)
    diary.user("alice").facts.commit(Diet(role="user", food="vegan"))
    diary.user("alice").add_turn("Hello.", "Hi.", "s1")
    assert "- diet (What a person eats.): role (string, Who it is about.)" in script.prompt
    assert "food (one of vegan, omnivore)" in script.prompt
    assert "  <facts>\n- diet/user: role = user, food = vegan\n  </facts>\n" in script.message
    assert "food = vegan" not in script.prompt  # users' words are no instructions
    plain = Scripted(lambda ctx: [])
    Diary("memory:", agent=plain).user("alice").add_turn("Hello.", "Hi.", "s1")
    assert "Typed facts" not in plain.prompt
    assert "<facts>" not in plain.message


def test_a_long_list_of_facts_is_cut_and_counts_the_rest():
    script = Scripted(lambda ctx: [list_facts(ctx)])
    diary = typed(script)
    with diary.user("alice").transaction():
        for number in range(100):
            diary.user("alice").facts.commit(Diet(role=f"guest {number} {'z' * 50}", food="vegan"))
    diary.user("alice").add_turn("Hello.", "Hi.", "s1")
    assert len(script.answers[0]) < 4_200
    assert "older ones are stored)" in script.answers[0]


def test_rules_answer_as_sentences_and_nothing_is_stored():
    def work(ctx):
        return [
            commit_fact(ctx, "diet", {"role": "user", "food": "rocks"}),
            commit_fact(ctx, "diet", {"role": "user", "hat": 1}),
            commit_fact(ctx, "hats", {}),
            remove_fact(ctx, "facts/diet/none"),
            remove_fact(ctx, "hats/none"),
            list_facts(ctx, "hats" * 1_000),
        ]

    script = Scripted(work)
    alice = typed(script).user("alice")
    alice.add_turn("x", "y", "s1")
    hints = [
        "expected 'vegan' or 'omnivore'",
        "no such field",
        "the fact type 'hats' is not registered. Use one of: diet, home.",
        "facts/diet/none does not exist. list_facts() shows the ids.",
        "the fact type 'hats' is not registered. Use one of: diet, home.",
        "not registered",
    ]
    for answer, hint in zip(script.answers, hints, strict=True):
        assert answer.startswith("❌")
        assert hint in answer
        assert len(answer) < 400
    assert alice.facts.count() == 0


def test_a_weak_claim_is_skipped_on_fresh_state():
    claims = [{"role": role, "food": "omnivore"} for role in ("user", "guest")]
    script = Scripted(lambda ctx: [commit_fact(ctx, "diet", claim, 0.1) for claim in claims])
    diary = typed(script)
    alice = diary.user("alice")
    alice.facts.commit(Diet(**FIELDS))
    alice.facts.commit(Diet(role="guest", food="vegan"), confidence=5 / 6)
    alice.add_turn("Maybe meat?", "Hm.", "s1")
    answer, other = script.answers
    assert f"at least {5 / 6}." in other
    assert answer == (
        "❌ facts/diet/user has confidence 1, and yours is only 0.1. It stays. If the user is sure, give a confidence"
        " of at least 1."
    )
    assert alice.facts.get("diet/user").data.food == "vegan"


def test_a_fact_is_removed_by_its_listed_id():
    script = Scripted(lambda ctx: [remove_fact(ctx, "diet/user")])
    alice = typed(script).user("alice")
    alice.facts.commit(Diet(**FIELDS))
    alice.add_turn("Forget my diet.", "Done.", "s1")
    assert script.answers == ["🗑️ Deleted facts/diet/user."]
    assert alice.facts.count() == 0


class Note(BaseModel):
    text: str


def test_a_fact_that_was_changed_meanwhile_is_not_removed():
    def listen(message, *, deps):
        deps.remove_fact("diet/user")
        alice.facts.commit("diet", {**FIELDS, "food": "omnivore"})

    alice = typed(listen).user("alice")
    alice.facts.commit("diet", FIELDS)
    applied = alice.add_turn("Forget that I am vegan.", "Done.", "s1")
    assert alice.facts.get("diet/user").data.food == "omnivore"
    assert applied.skipped == ["facts/diet/user: the fact was changed before it was removed."]


@pytest.mark.parametrize("is_temporal", [False, True])
def test_a_fact_that_is_taken_back_in_its_turn_is_not_stored(is_temporal):
    def work(message, *, deps):
        deps.remove_fact(deps.commit_fact("diet", FIELDS))
        deps.remove_fact(deps.commit_fact("note", {"text": "a joke"}))

    diary = Diary("memory:", agent=work)
    diary.register_schema("diet", Diet, Constraint(singleton_key="role", temporal=is_temporal))
    diary.register_schema("note", Note)
    alice = diary.user("alice")
    assert alice.add_turn("I am vegan. No, I was joking.", "Ha.", "s1").skipped == []
    assert alice.facts.count() == 0


def test_one_turn_removes_ten_facts_at_most():
    script = Scripted(lambda ctx: [remove_fact(ctx, key) for key in keys])
    diary = Diary("memory:", agent=script)
    diary.register_schema("note", Note)
    alice = diary.user("alice")
    keys = [alice.facts.commit(Note(text=f"note {n}")) for n in range(12)]
    alice.add_turn("Clear my diary.", "Done.", "s1")
    assert alice.facts.count() == 2
    assert "which is the limit" in script.answers[-1]


@pytest.mark.parametrize("operation", [CommitFact("diet", (("role", "user"), ("n", 3)), 0.5, None, "2026-03-01"), RemoveFact("diet/user"), RemoveFact("diet/user", "food = vegan")])  # fmt: skip
def test_operations_on_facts_survive_the_journal(operation):
    assert from_dict(to_table(operation)) == operation


def test_a_fact_is_extracted_with_its_start():
    script = Scripted(
        lambda ctx: [
            commit_fact(ctx, "home", PORTO, 1, "2026-03-01"),
            commit_fact(ctx, "home", PORTO, 1, "March"),
            commit_fact(ctx, "diet", FIELDS, 1, "2026-03-01"),
        ]
    )
    alice = typed(script).user("alice")
    alice.add_turn("I moved to Porto in March.", "Noted.", "s1")
    assert "- home (temporal): who" in script.prompt
    assert script.answers[0].startswith("✅ Stored facts/home/user@2026-03-01:")
    hint = "expected a time such as 2026-11-20T12:00, found 'March'."
    assert script.answers[1] == f"❌ valid_from: {hint}"
    assert "it has no valid_from" in script.answers[2]
    assert [fact.id for fact in alice.facts.query()] == ["home/user@2026-03-01"]
    assert alice.facts.get("home/user", valid_at="2026-04-01").data.city == "Porto"


def names_of(info):
    return {tool.name for tool in info.function_tools}


def test_a_pydantic_ai_agent_is_offered_fact_tools_where_a_type_is_registered():
    seen = []

    def answer(messages, info):
        seen.append(names_of(info))
        if len(messages) > 1 or "commit_fact" not in seen[-1]:
            return ModelResponse([TextPart("done")])
        since = {"type": "home", "fields": PORTO, "valid_from": "2026-03-01"}
        calls = [{"type": "diet", "fields": FIELDS}, since]
        return ModelResponse([ToolCallPart("commit_fact", each) for each in calls])

    typed(FunctionModel(answer)).user("alice").add_turn("I am vegan.", "Noted.", "s1")
    diary = typed(FunctionModel(answer))
    diary.user("bob").add_turn("I am vegan.", "Noted.", "s1")
    assert diary.user("bob").facts.get("diet/user").data.food == "vegan"
    assert diary.user("bob").facts.get("home/user@2026-03-01").data.city == "Porto"
    Diary("memory:", agent=FunctionModel(answer)).user("alice").add_turn("x", "y", "s1")
    tools = {each.__name__ for each in FACT_TOOLS}
    assert tools <= seen[0]
    assert not tools & seen[-1]


class Calling(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


def test_a_chat_model_writes_facts():
    since = {"type": "home", "fields": PORTO, "valid_from": "2026-03-01"}
    calls = [
        {"name": "commit_fact", "args": args, "id": str(number)}
        for number, args in enumerate([{"type": "diet", "fields": FIELDS}, since])
    ]
    model = Calling(messages=iter([AIMessage("", tool_calls=calls), AIMessage("done")]))
    alice = typed(model).user("alice")
    alice.add_turn("I am vegan.", "Noted.", "s1")
    assert alice.facts.get("diet/user").data.food == "vegan"
    assert alice.facts.get("home/user@2026-03-01").data.city == "Porto"
