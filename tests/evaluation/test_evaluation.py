"""Labelled questions are read, asked and reported; the figures are those one can count by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from time import process_time

import pytest
from typer.testing import CliRunner

from tomldiary import Diary
from tomldiary.cli.app import app
from tomldiary.errors import DiaryError, InvalidValue, MissingExtra
from tomldiary.evaluation import Report, compare, evaluate, evaluate_stored, load_questions
from tomldiary.evaluation.questions import Collection, Question, together

OWN = [
    {"id": "t1", "text": "Anna is allergic to hazelnuts."},
    {"id": "t2", "text": "Anna takes the night train to Vienna."},
    {"id": "t3", "text": "The cellar is full of <old> wine."},
    {"question": "Who is allergic to hazelnuts?", "gold": ["t1"], "kind": "health"},
    {
        "question": "Which train goes to Vienna, and is the wine in the cellar?",
        "gold": ["t2", "t3"],
    },
    {"question": "Zebras?", "gold": ["t3"]},
]


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


@pytest.fixture
def own(tmp_path):
    return write(tmp_path / "own.jsonl", OWN)


def test_recall_rank_and_coverage_are_counted_right(own):
    run = evaluate(load_questions(own), ks=[1, 3], budgets=[20, 400])
    assert run.values("recall@1") == [1, 0.5, 0]
    assert run.values("recall@3") == [1, 1, 0]
    assert run.values("mrr") == [1, 1, 0]
    assert run.values("coverage@400") == [1, 1, 1]  # escaped text is found in the block too
    assert run.mean("coverage@20") < 1
    assert run.mean("ms") > 0


def test_texts_with_sessions_are_episodes(tmp_path):
    rows = [{**row, "session": "s"} if "id" in row else row for row in OWN]
    (collection,) = load_questions(write(tmp_path / "own.jsonl", rows))
    assert collection.stored_as == "episodes"
    run = evaluate([collection], ks=[3], budgets=[400])
    assert run.values("recall@3") == [1, 1, 0]
    assert run.values("coverage@400") == [1, 1, 1]


def test_equal_texts_count_for_each_of_their_ids(tmp_path):
    rows = [{"id": one, "text": "Tea!"} for one in "ab"] + [{"question": "tea", "gold": ["a", "b"]}]
    rows.append({"id": "c", "text": " "})
    run = evaluate(load_questions(write(tmp_path / "own.jsonl", rows)), ks=[1])
    assert run.values("recall@1") == [1]


def test_contexts_and_counts_in_a_line_do_not_hide_its_text(own):
    alice = Diary("memory:", agent="rules").user("alice")
    alice.upsert_preference("likes", "dark roast", contexts=["morning"])
    for _ in range(2):
        alice.upsert_preference("likes", "green tea")
    asked = [Question(f"tea or roast {n}?", frozenset([f"likes/pref00{n}"])) for n in (1, 2)]
    run = evaluate_stored(alice.diary, [Collection("alice", asked)], budgets=[400])
    assert run.values("coverage@400") == [1, 1]
    rows = [{"id": one, "text": "Tea!"} for one in "ab"] + [{"question": "tea", "gold": ["a", "b"]}]
    assert evaluate(load_questions(write(own, rows)), budgets=[400]).values("coverage@400") == [1]


def test_recall_of_more_hits_than_were_asked_for_is_no_metric(own):
    run = evaluate(load_questions(own), ks=[1, 3], budgets=[400])
    assert len(run.values("recall@2")) == 3
    for metric in ("recall@4", "recall@0", "call@2", "cover@400", "coverage@x", "coverage@401"):
        with pytest.raises(InvalidValue, match=metric):
            run.values(metric)
    with pytest.raises(InvalidValue, match="ks: expected one or more numbers"):
        evaluate(load_questions(own), ks=[])


def test_an_existing_diary_is_asked_and_not_changed(tmp_path):
    diary = Diary(tmp_path / "memories")
    diary.user("anna").upsert_preference("likes", "tea with milk")
    diary.user("anna").upsert_preference("likes", "long walks")
    rows = [{"question": "Does she drink tea?", "gold": ["likes/pref001"]}]
    questions = load_questions(write(tmp_path / "own.jsonl", rows))
    before = {file: file.read_bytes() for file in (tmp_path / "memories").rglob("*.toml")}
    run = evaluate_stored(diary, questions, ks=[1], budgets=[300])
    assert (run.values("recall@1"), run.values("coverage@300")) == ([1], [1])
    assert before == {file: file.read_bytes() for file in (tmp_path / "memories").rglob("*.toml")}
    with pytest.raises(InvalidValue, match="evaluate_stored"):
        evaluate(questions)
    with pytest.raises(InvalidValue, match="there are no questions"):
        evaluate([])


def test_a_gold_key_of_any_kind_that_does_not_exist_is_refused(tmp_path):
    diary = Diary(tmp_path / "m")
    anna = diary.user("anna")
    anna.upsert_preference("likes", "tea with milk")
    anna.blocks.set("persona", "Drinks tea.")
    known = ["likes/pref001", "blocks/persona", f"episodes/{anna.episodes.add('Tea?', 'Yes.')}"]
    own = write(tmp_path / "own.jsonl", [{"question": "tea?", "gold": known}])
    assert evaluate_stored(diary, load_questions(own), ks=[3]).values("recall@3") == [1]
    command = ["eval", str(own), "--path", str(tmp_path / "m")]
    for wrong in ("likes/pref009", "lieks/pref001", "goals/pref001", "blocks/x", "episodes/x"):
        write(own, [{"question": "tea?", "gold": [wrong]}])
        says = f"anna: gold names entries that the user does not have: {wrong}. The history shows"
        with pytest.raises(InvalidValue, match=says.removeprefix("anna: ")):
            evaluate_stored(diary, load_questions(own))
        assert str(CliRunner().invoke(app, command).exception).startswith(says)


def test_questions_without_a_user_need_a_diary_of_one_user(tmp_path):
    diary = Diary("memory:")
    for name in ("anna", "bert"):
        diary.user(name).upsert_preference("likes", "tea")
    rows = [{"question": "tea?", "gold": ["likes/pref001"]}]
    with pytest.raises(InvalidValue, match="2 users"):
        evaluate_stored(diary, load_questions(write(tmp_path / "own.jsonl", rows)))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("\n{", "own.jsonl:2:2: this is not JSON"),
        ("[" * 100_000, "own.jsonl:1: the JSON is nested too deeply"),
        ("[]", "own.jsonl:1: expected a JSON object"),
        ('{"question": "q"}', 'own.jsonl:1: a question needs "gold"'),
        ('{"question": "q", "gold": "t1"}', 'own.jsonl:1: a question needs "gold"'),
        ('{"question": "q", "gold": []}', 'own.jsonl:1: a question needs "gold"'),
        ('{"text": "t"}', 'own.jsonl:1: expected "question" and "gold"'),
        ('{"id": "a", "text": "t"}', "no labelled question"),
        (
            '{"id": "a", "text": "t"}\n{"id": "a", "text": "u"}',
            "own.jsonl:2: the id a is given twice",
        ),
        ('{"id": "a", "text": "t"}\n{"question": "q", "gold": ["b"]}', "unknown ids: b"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, error):
    (tmp_path / "own.jsonl").write_text(line)
    with pytest.raises(InvalidValue, match=error):
        load_questions(tmp_path / "own.jsonl")


def test_a_line_ends_at_a_newline_only(tmp_path):
    rows = [{"id": "t", "text": "A\u2028B\x85C"}, {"question": "a", "gold": ["t"]}]
    lines = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (tmp_path / "own.jsonl").write_bytes(lines.encode("utf-8-sig"))  # as an editor on Windows saves
    (collection,) = load_questions(tmp_path / "own.jsonl")
    assert collection.entries[0].text == "A\u2028B\x85C"


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b'[{"preference": "caf\xe9"}]', r"x.json:1:21: this is not UTF-8 text"),
        (b"[" * 100_000, "x.json: the JSON is nested too deeply"),
        (b'[{"preference": "tea"}]', "x.json: .*'question' is missing"),
        (b'[{"conversation": {"session_1": []}}]', "x.json: .*'qa' is missing"),
        (b'[{"conversation": null, "qa": []}]', "x.json: .*a value has another type"),
    ],
)
def test_a_damaged_data_set_is_named(tmp_path, data, error):
    (tmp_path / "x.json").write_bytes(data)
    for place in (tmp_path / "x.json", tmp_path):
        with pytest.raises(InvalidValue, match=error):
            load_questions(place)


def test_a_missing_or_unknown_file_is_named(tmp_path):
    with pytest.raises(InvalidValue, match="no such file"):
        load_questions(tmp_path / "nothing")
    (tmp_path / "x.json").write_text('{"a": 1}')
    with pytest.raises(InvalidValue, match="neither LoCoMo nor PrefEval"):
        load_questions(tmp_path / "x.json")


# Data sets, in the shape of their files


def test_locomo_is_read(tmp_path):
    talk = {
        "session_1": [
            {"speaker": "A", "dia_id": "D1:1", "text": "I sold my boat.", "blip_caption": "a boat"},
            {"speaker": "B", "dia_id": "D1:2", "text": "Why?"},
        ],
        "session_1_date_time": "now",
    }
    asked = [
        {"question": "Who sold a boat?", "evidence": ["D1:01; D9:9"], "category": 4},
        {"question": "Unknown?", "evidence": ["D7:1"], "category": 5},
        {"question": "None?", "category": 5},
    ]
    file = tmp_path / "locomo.json"
    file.write_text(json.dumps([{"sample_id": "c1", "conversation": talk, "qa": asked}]))
    (collection,) = load_questions(file)
    assert (collection.name, collection.stored_as) == ("c1", "episodes")
    assert [entry.text for entry in collection.entries] == ["A: I sold my boat. a boat", "B: Why?"]
    assert [question.gold for question in collection.questions] == [{"D1:1"}]
    assert evaluate([collection], ks=[1]).values("recall@1") == [1]


def test_prefeval_is_read_by_topic_and_together(tmp_path):
    for topic, text in (("pets", "I keep parrots."), ("food", "I avoid sugar.")):
        rows = [{"preference": text, "question": f"About {text}"}]
        (tmp_path / f"{topic}.json").write_text(json.dumps(rows))
    found = load_questions(tmp_path)
    assert [each.name for each in found] == ["food", "pets"]
    one = together(found)
    assert [question.gold for question in one.questions] == [{"food/0"}, {"pets/0"}]
    assert evaluate([one], ks=[1]).values("recall@1") == [1, 1]


def test_beam_is_read_with_nested_sources(tmp_path):
    folder = tmp_path / "100K/1"
    (folder / "probing_questions").mkdir(parents=True)
    turns = [[{"role": "user", "id": 4, "content": "The sprint ends on March 29."}]]
    turns.append([{"role": "assistant", "id": 5, "content": "Noted."}])
    (folder / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": turns}]))
    probes = {
        "abstention": [{"question": "Unanswerable?"}],
        "knowledge_update": [
            {"question": "When does the sprint end?", "source_chat_ids": {"old": [4], "new": [99]}}
        ],
    }
    (folder / "probing_questions/probing_questions.json").write_text(json.dumps(probes))
    for place in (tmp_path, folder, folder / "chat.json"):
        (collection,) = load_questions(place)
        assert [entry.id for entry in collection.entries] == ["4", "5"]
        assert [(q.gold, q.kind) for q in collection.questions] == [({"4"}, "knowledge_update")]


# Comparison and report


def runs(own):
    questions = load_questions(own)
    good = evaluate(questions, name="good", ks=[1, 3], budgets=[400])
    none = evaluate(questions, name="none", ks=[1, 3], budgets=[400])
    none.answers[:] = [
        type(answer)(
            answer.collection, answer.question, answer.kind, (), answer.gold, 0.001, {400: 0.0}
        )
        for answer in none.answers
    ]
    return none, good


def test_a_difference_has_its_interval_and_counts(own):
    none, good = runs(own)
    found = compare(none, good, "coverage@400")
    assert (found.mean, found.low, found.high, found.better, found.worse) == (1, 1, 1, 3, 0)
    assert found.by_collection is None
    back = compare(good, none, "recall@3")
    assert back.mean == pytest.approx(-2 / 3)
    assert back.low == pytest.approx(-1)
    assert back.high <= 0
    assert (back.better, back.worse) == (0, 2)
    same = compare(good, good, "mrr")
    assert (same.low, same.high) == (0, 0)
    assert compare(none, good, "mrr") == compare(none, good, "mrr")


def test_three_collections_are_drawn_as_wholes(own):
    none, good = runs(own)
    for run in (none, good):
        run.answers[:] = [
            replace(each, collection=str(number)) for number, each in enumerate(run.answers)
        ]
    found = compare(none, good, "recall@3")
    assert found.by_collection is not None
    low, high = found.by_collection
    assert 0 <= low < found.mean < high == 1


def test_runs_over_other_questions_are_not_compared(own, tmp_path):
    none, _ = runs(own)
    other = evaluate(load_questions(write(tmp_path / "b.jsonl", [*OWN[:4]])), ks=[1])
    with pytest.raises(InvalidValue, match="the runs have different questions"):
        compare(none, other, "mrr")
    with pytest.raises(InvalidValue, match="expected one of recall@1"):
        none.values("recall")
    with pytest.raises(InvalidValue, match="of at least 1"):
        evaluate([], ks=[0])


def test_a_report_has_the_table_the_kinds_and_the_differences(own):
    text = Report(runs(own)).to_text()
    assert text.startswith("3 questions, 1 collection\n\nrun")
    assert "recall@3" in text
    assert "health" in text
    assert "+1.000" in text
    data = json.loads(json.dumps(Report(runs(own)).to_dict()))
    assert data["runs"][1]["means"]["recall@3"] == pytest.approx(2 / 3)
    assert {row["metric"] for row in data["differences"]} == {
        "recall@1", "recall@3", "mrr", "coverage@400",
    }  # fmt: skip


def test_a_report_needs_a_list_of_runs(own):
    for given in (runs(own)[0], []):
        with pytest.raises(InvalidValue, match="one or more runs"):
            Report(given)


def test_a_report_is_drawn(own, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    Report(runs(own)).plot(tmp_path / "plot.svg")
    assert "<svg" in (tmp_path / "plot.svg").read_text()


def test_a_picture_of_an_unknown_kind_does_not_lose_the_table(own, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    result = CliRunner().invoke(app, ["eval", str(own), "--plot", str(tmp_path / "plot.txt")])
    assert "recall@5" in result.output
    assert isinstance(result.exception, InvalidValue)


@pytest.mark.parametrize("option", [("--embedder", "local"), ("--together",)])
def test_options_for_texts_are_refused_without_texts(tmp_path, option):
    Diary(tmp_path / "m").user("anna").upsert_preference("likes", "tea with milk")
    own = write(tmp_path / "own.jsonl", [{"question": "Tea?", "gold": ["likes/pref001"]}])
    result = CliRunner().invoke(app, ["eval", str(own), "--path", str(tmp_path / "m"), *option])
    assert f"{option[0]}: requires a file" in str(result.exception)


def test_an_unknown_embedder_is_refused_before_any_text_is_stored(own, tmp_path):
    given = ["eval", str(own), "--embedder", "words", "--embedder", "openai"]
    result = CliRunner().invoke(app, given)
    assert str(result.exception).startswith("--embedder: 'openai' is unknown. Use one of: 'words'")


def test_an_embedder_that_is_not_installed_is_not_measured(own, monkeypatch):
    monkeypatch.setitem(sys.modules, "wordllama", None)
    result = CliRunner().invoke(app, ["eval", str(own), "--embedder", "local"])
    assert isinstance(result.exception, MissingExtra)
    assert result.output == ""


def test_the_command_prints_a_table_and_json(own, tmp_path):
    result = CliRunner().invoke(app, ["eval", str(own), "-k", "1", "--budget", "400", "--together"])
    assert result.exit_code == 0
    assert "coverage@400" in result.output
    result = CliRunner().invoke(app, ["eval", str(own), "--json"])
    assert json.loads(result.output)["runs"][0]["questions"] == 3


def test_the_command_asks_the_diary_in_path(tmp_path):
    Diary(tmp_path / "m").user("anna").upsert_preference("likes", "tea with milk")
    rows = [{"question": "Does she drink tea?", "gold": ["likes/pref001"]}]
    own = write(tmp_path / "own.jsonl", rows)
    result = CliRunner().invoke(app, ["eval", str(own), "--path", str(tmp_path / "m"), "--json"])
    assert json.loads(result.output)["runs"][0]["means"]["recall@5"] == 1
    result = CliRunner().invoke(app, ["eval", str(own), "--path", str(tmp_path / "nothing")])
    assert isinstance(result.exception, DiaryError)


def test_the_command_takes_the_user_of_questions_that_name_none(tmp_path):
    diary = Diary(tmp_path / "m")
    diary.user("anna").upsert_preference("likes", "tea with milk")
    diary.user("bert").upsert_preference("likes", "coffee")
    own = write(tmp_path / "own.jsonl", [{"question": "Any tea?", "gold": ["likes/pref001"]}])
    command = ["eval", str(own), "--path", str(tmp_path / "m"), "--json"]
    for user, found in (("anna", 1), ("bert", 0)):
        for done in (
            CliRunner().invoke(app, [*command, "--user", user]),
            CliRunner().invoke(app, command, env={"TOMLDIARY_USER": user}),
        ):
            assert json.loads(done.output)["runs"][0]["means"]["recall@5"] == found


def test_a_file_with_many_texts_is_read_in_linear_time(tmp_path):
    rows = [{"id": number, "text": "x"} for number in range(20_000)]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(map(json.dumps, [*rows, {"question": "x", "gold": [1]}])))
    began = process_time()
    assert len(load_questions(file)[0].entries) == 20_000
    assert process_time() - began < 1
