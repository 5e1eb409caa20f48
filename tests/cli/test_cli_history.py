"""Looking back and going back from the command line."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from command_line import not_done
from tomldiary import Constraint, Diary
from tomldiary.cli.app import app, run

OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e\u200b]")
HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202eevil\u200b\x9b31m\nsecond line"


class Diet(BaseModel):
    who: str
    food: str


@pytest.fixture
def alice(tmp_path):
    user = Diary(tmp_path / "m", agent="rules", durability="process").user("alice")
    user.upsert_preference("likes", "tea", session_id="s1", actor="agent", reason="said so")
    user.upsert_preference("goals", "rest", session_id="s2")
    user.upsert_preference("likes", "green tea", id="pref001", session_id="s2")
    user.forget_preference("goals", "pref001", session_id="s3")
    return user


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Run a command like `tomldiary` does, in this process; return code, stdout and stderr."""

    def called(*arguments, user="alice", check=None):
        whose = [] if user is None else ["--user", user]
        if arguments[0] == "show":
            whose = [user]
        line = ["tomldiary", arguments[0], *whose, "--path", str(tmp_path / "m"), *arguments[1:]]
        monkeypatch.setattr("sys.argv", [str(word) for word in line])
        code = 0
        try:
            run()
        except SystemExit as error:
            code = error.code or 0
        out, err = capsys.readouterr()
        if check is not None:
            assert code == check, err
        return code, out, err

    return called


def texts(user, category="likes"):
    return [item.text for item in user.preferences(category).values()]


# history and why


def test_history_drops_old_transactions_only_with_yes(alice, call):
    for more in ([], ["--dry-run"], ["--dry-run", "--yes"]):
        out = call("history", "--keep", "2", *more, check=0)[1].splitlines()
        told = r"would drop: transactions 1-2; kept: transactions 3-4 and the state after transaction 2 \(20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\)"
        assert re.fullmatch(told, out[0])
        assert out[1] == not_done(more)
    assert len(alice.history()) == 4
    planned = json.loads(call("history", "--keep", "2", "--json", check=0)[1])
    done = json.loads(call("history", "--keep", "2", "--yes", "--json", check=0)[1])
    assert (planned.pop("is_done"), done.pop("is_done")) == (False, True)
    assert planned == done
    assert done["first"] == 2
    assert [change.seq for change in alice.history()] == [4, 3]
    out = call("history", "--drop-before", "2020-01-01", "--yes", check=0)[1]
    assert out.startswith(
        "dropped: nothing; kept: transactions 3-4 and the state after transaction 2 (20"
    )
    out = call("history", "--keep", "1", "--yes", check=0)[1]
    assert out.startswith(
        "dropped: transactions 3; kept: transactions 4 and the state after transaction 3 ("
    )
    code, _, err = call("history", "--drop-before", "3", "--yes")
    assert code == 2
    assert err.startswith("3: expected a time")
    code, _, err = call("show", "--at", "1")
    assert code != 0
    assert "begins at transaction 3" in err


def numbers(text):
    return [int(line[:5]) for line in text.splitlines() if line[:5].strip().isdecimal()]


def test_history_is_filtered_by_points_session_and_text(alice, call):
    moments = {change.seq: change.time for change in alice.history()}
    for arguments, found in {
        ("--since", "2"): [4, 3],
        ("--before", "3"): [2, 1],
        ("--since", moments[3]): [4, 3],
        ("--before", moments[3]): [2, 1],
        ("--session", "s2"): [3, 2],
        ("--grep", "GREEN"): [3],
        ("--grep", "goals/"): [4, 2],
        ("--grep", "contexts"): [],  # the name of a field
        ("--grep", "'"): [],
        ("--grep", moments[1][:10]): [],
        ("--since", "1", "--grep", "tea", "--limit", "1"): [3],
    }.items():
        assert numbers(call("history", *arguments, check=0)[1]) == found, arguments
    code, _, err = call("history", "--before", "2020-01-01", "--yes")
    assert (code, len(alice.history())) == (2, 4)
    assert "use --yes with --keep or --drop-before" in err


@pytest.mark.parametrize("form", ["--all", "--json"])
def test_a_list_that_the_limit_cuts_says_so(alice, call, tmp_path, form):
    assert call("history", form, "--limit", 3, check=0)[2] == "There are older changes; a larger --limit shows them.\n"  # fmt: skip
    assert call("history", form, "--limit", 4, check=0)[2] == ""
    Diary(tmp_path / "m", agent="rules").user("bob").upsert_preference("likes", "tea")
    more = [] if form == "--all" else [form]
    assert call("users", *more, "--limit", 1, user=None, check=0)[2] == "1 more user; --limit 2 shows all.\n"  # fmt: skip


def test_grep_finds_a_text_as_it_is_stored(alice, call):
    texts = {"quotes": 'it\'s a "blend"', "lines": "first\nsecond", "path": r"C:\tea"}
    for name, text in texts.items():
        alice.blocks.set(name, text)
        assert f"blocks/{name}" in call("history", "--grep", text, check=0)[1]


def test_counters_and_times_are_shown_only_with_all(alice, call):
    for _ in range(3):
        alice.add_turn("hello", "hm", "s9")
    alice.upsert_preference("likes", id="pref001")
    told = call("history", "--limit", "3", check=0)[1]
    assert "_turns" not in told
    assert len(numbers(told)) == 3
    assert "_turns: 2 -> 3" in call("history", "--all", check=0)[1]
    shown = call("diff", "4", check=0)[1]
    assert "_count = " not in shown
    for word in ("seq", "turns_since_compaction", "_turns", "_count", "_created", "_updated"):
        assert f"\n+{word}" not in shown
    assert "\n+seq = " in call("diff", "4", "--all", check=0)[1]


def test_history_lists_changes_with_their_actor_newest_first(alice, call):
    lines = call("history", check=0)[1].splitlines()
    told = [line for line in lines if line[:5].strip().isdecimal()]
    assert [int(line[:5]) for line in told] == [4, 3, 2, 1]
    assert "goals/pref001  - rest" in told[0]
    assert "likes/pref001  text: tea -> green tea" in told[1]
    assert "likes/pref001  + tea" in told[3]
    assert lines[-1].split() == ["session", "s1,", "by", "agent:", "said", "so"]
    assert alice.history()[0].time[:19].replace("T", " ") in told[0]


def test_history_finds_entries_of_a_category_that_is_now_empty(alice, call):
    told = json.loads(call("history", "goals/pref001", "--json", check=0)[1])
    assert [(one["seq"], one["key"]) for one in told] == [
        (4, "goals/pref001"),
        (2, "goals/pref001"),
    ]
    assert told[1]["after"]["text"] == "rest"
    assert len(json.loads(call("history", "--limit", "2", "--json")[1])) == 2
    assert call("history", "likes/pref777", check=0)[1] == "No changes found.\n"


def test_why_names_session_turn_and_all_changes(tmp_path, call):
    alice = Diary(tmp_path / "m", agent="rules", durability="process").user("alice")
    alice.add_turn("I love tea.", "ok", "s1")
    alice.add_turn("I love tea.", "ok", "s2")
    out = call("why", "likes/pref001", check=0)[1]
    figures = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines()[1:6])
    assert figures["origin"] == "rule"
    assert figures["session"] == "s1"
    assert figures["turn"] == "s1#1"
    assert figures["confirmations"] == "2"
    assert figures["verified"].startswith("no")
    assert "confirmed 2x" in out
    alice.confirm("likes/pref001")
    assert "\nverified       yes\n" in call("why", "likes/pref001", check=0)[1]
    call("add", "likes/pref001", "another text", check=0)
    assert "\norigin         hand\n" in call("why", "likes/pref001", check=0)[1]
    assert "\nverified       unknown\n" in call("why", "likes/pref001", check=0)[1]
    alice.upsert_preference("likes", "coffee")
    assert "\nverified       unknown\n" in call("why", "likes/pref002", check=0)[1]
    told = json.loads(call("why", "conversations/s2", "--json", check=0)[1])
    assert (told["session"], len(told["changes"])) == ("s2", 1)


# diff and show --at


def test_an_unknown_key_is_explained_without_names_of_methods(alice, call):
    for command in ("why", "history"):
        for key in ("likes/pref009", "likes/"):
            assert "()" not in call(command, key)[2]
    assert "The history shows all keys." in call("why", "likes/pref009")[2]


def test_diff_is_a_unified_diff_between_numbers_or_times(alice, call):
    assert '+text = "green tea"' in call("diff", "2", "3", check=0)[1]
    assert '-text = "tea"' in call("diff", "2", "3")[1]
    moments = {change.seq: change.time for change in alice.history()}
    assert call("diff", moments[2], moments[3])[1] == call("diff", "2", "3")[1]
    assert call("diff", "3", "3", check=0)[1] == "No differences.\n"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is needed")
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
def test_a_diff_with_bookkeeping_is_a_complete_patch(tmp_path, alice, call, newline):
    alice.blocks.set("persona", "A gardener.\nAnd a cook.")
    file = tmp_path / "m/alice/preferences.toml"
    file.write_text(f"{file.read_text()}# without a newline at the end", newline=newline)
    alice.upsert_preference("likes", "coffee")
    patch = tmp_path / "patch"
    patch.write_text(call("diff", "1", "--all", check=0)[1], newline="")
    copy = shutil.copytree(tmp_path / "m/alice", tmp_path / "copy")

    def apply(*options):
        line = ["git", "apply", "-p0", *options, str(patch)]
        subprocess.run(line, cwd=copy, check=True, env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path)})  # fmt: skip

    apply("-R")
    assert (copy / "preferences.toml").read_text() == alice.as_of(1).document("preferences")
    assert not (copy / "blocks.toml").exists()
    apply()
    for kind in alice.documents():
        assert (copy / f"{kind}.toml").read_bytes() == alice.document(kind).encode()


def test_diff_without_points_is_the_last_transaction_up_to_now(alice, call):
    assert "-[preferences.goals.pref001]" in call("diff", check=0)[1]
    told = json.loads(call("diff", "--json")[1])
    assert [(one["key"], one["after"]) for one in told] == [("goals/pref001", None)]
    everything = json.loads(call("diff", "0", "--json", check=0)[1])
    assert [(one["key"], one["before"]) for one in everything] == [("likes/pref001", None)]


def test_show_at_a_point_prints_the_state_of_that_point(alice, call):
    moment = next(change.time for change in alice.history() if change.seq == 2)
    for at in ("2", moment):
        told = json.loads(call("show", "--at", at, "--json", check=0)[1])
        assert told["preferences"]["likes"]["pref001"]["text"] == "tea"
        assert list(told["preferences"]["goals"]) == ["pref001"]
    raw = call("show", "--at", "1", "--raw", check=0)[1]
    assert tomllib.loads(raw.partition("# alice: conversations")[0])["_meta"]["seq"] == 1
    assert "rest" not in call("show", "--at", "1", check=0)[1]


# rollback


def test_rollback_is_a_dry_run_without_yes(alice, call, tmp_path):
    before = (tmp_path / "m/alice/preferences.toml").read_bytes()
    for arguments in ([], ["--dry-run"], ["--yes", "--dry-run"]):
        out = call("rollback", *arguments, check=0)[1]
        assert out.splitlines() == [
            "would undo: 4",
            "  goals/pref001",
            not_done(arguments),
        ]
        assert (tmp_path / "m/alice/preferences.toml").read_bytes() == before
    assert alice.last_transaction() == 4
    out = call("rollback", "--yes", check=0)[1]
    assert out.splitlines() == ["undone: 4", "  goals/pref001"]
    assert texts(alice, "goals") == ["rest"]
    newest = alice.history(limit=1)[0]
    assert (newest.type, newest.actor) == ("rollback", "hand")


@pytest.mark.parametrize(
    ("arguments", "undone"),
    [
        (["--steps", "2"], [4, 3]),
        (["--to", "2"], [4, 3]),
        (["--to", "0"], [4, 3, 2, 1]),
        (["--session", "s2", "--force"], [3]),
        (["--session", "s2", "--steps", "2", "--force"], [3, 2]),
    ],
    ids=lambda value: " ".join(map(str, value)),
)
def test_rollback_accepts_steps_a_point_or_a_session(alice, call, arguments, undone):
    told = json.loads(call("rollback", *arguments, "--yes", "--json", check=0)[1])
    assert (told["undone"], told["is_done"]) == (undone, True)


def test_rollback_to_a_time(alice, call):
    moment = next(change.time for change in alice.history() if change.seq == 2)
    told = json.loads(call("rollback", "--to", moment, "--json", check=0)[1])
    assert (told["undone"], told["is_done"]) == ([4, 3], False)


def test_many_transactions_are_printed_as_a_range(alice, call):
    for number in range(10):
        alice.upsert_preference("likes", f"thing {number}")
    out = call("rollback", "--to", "0", check=0)[1]
    assert out.startswith("would undo: 1-14 (14 transactions)\n")


def test_a_conflict_changes_nothing_and_names_the_option(alice, call):
    plan = call("rollback", "--session", "s1", check=0)[1]
    assert "likes/pref001  (changed since)" in plan
    assert "--yes --force" in plan
    code, out, err = call("rollback", "--session", "s1", "--yes")
    assert (code, out) == (2, "")
    assert err == "likes/pref001 changed since. Nothing was undone; --force overwrites.\n"
    assert texts(alice) == ["green tea"]
    call("rollback", "--session", "s1", "--yes", "--force", check=0)
    assert texts(alice) == []


# What is refused, and what is escaped

CASES = {
    "no such entry": (["why", "likes/pref9"], "does not exist"),
    "no key": (
        ["history", "nonsense"],
        "such as likes/pref001, found 'nonsense'. The command \"show\" lists the keys; a user is named with --user.",
    ),
    "no point": (["diff", "yesterday"], "yesterday: expected a transaction number, or a time"),
    "a year": (
        ["history", "--since", "2020"],
        "2020: there is no such transaction; the newest is 4; a year is 2020-01-01",
    ),
    "a number too high": (["diff", "5"], "5: there is no such transaction; the newest is 4"),
    "a number much too high": (["show", "--at", "9" * 5000], "the newest is 4"),
    "two ways to drop": (["history", "--keep", "1", "--drop-before", "2020-01-01"], "not both"),
    "one entry to drop": (
        ["history", "likes/pref001", "--keep", "1", "--yes"],
        "KEY: --keep and --drop-before drop the history of all entries",
    ),
    "a session to drop": (
        ["history", "--session", "s1", "--drop-before", "2020-01-01"],
        "--session: ",
    ),
    "labels of a block": (
        ["add", "blocks/persona", "x", "--context", "y"],
        "--context: a block has no labels",
    ),
    "two ways at once": (["rollback", "--steps", "1", "--to", "1"], "not both"),
    "too many steps": (["rollback", "--steps", "9999"], "there are only 4. Nothing was undone"),
    "too many steps for good": (["rollback", "--steps", "5", "--yes"], "there are only 4"),
    "nothing to undo": (
        ["rollback", "--session", "unknown"],
        "there is no transaction to undo of session 'unknown'. The history names",
    ),
    "a review without ids": (["review", "accept"], 'the command "review" lists the ids'),
    "ids of a list": (["review", "list", "x"], "so it takes no ids"),
    "an unknown change": (
        ["review", "edit", "99", "--text", "x"],
        "quarantine/99 does not exist. These wait: none.",
    ),
    "an id with a slash": (
        ["add", "likes/goals/pref001", "x"],
        "expected CATEGORY/ID with one slash",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_errors_are_one_sentence_and_exit_code_2(alice, call, case):
    arguments, says = CASES[case]
    code, out, err = call(*arguments)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1
    assert err.endswith(".\n")


@pytest.mark.parametrize("command", ["history", "diff", "rollback"])
def test_an_unknown_user_is_an_error(alice, call, command):
    code, out, err = call(command, user="bob")
    assert (code, out) == (2, "")
    assert "there is no user 'bob'" in err


def test_commands_reach_the_history_of_a_user_whose_files_were_deleted(alice, call, tmp_path):
    (tmp_path / "m/alice/preferences.toml").unlink()
    assert "green tea" in call("history", check=0)[1]
    assert "  likes/pref001\n" in call("forget", "--key", "likes/pref001", check=0)[1]
    call("show", "--at", "4", "--raw", check=0)
    assert "all deleted" in call("edit", "preferences", check=2)[2]


@pytest.mark.parametrize("option", [["--at", "1"], ["--category", "likes"], ["--raw"]], ids="".join)
def test_an_option_of_show_for_one_user_requires_a_user(alice, tmp_path, option):
    done = CliRunner().invoke(app, ["show", *option, "--path", str(tmp_path / "m")])
    assert f"{option[0]}: requires a user" in str(done.exception)


@pytest.mark.parametrize("form", [[], ["--json"]], ids="".join)
def test_control_characters_are_printed_as_escapes(tmp_path, call, form):
    user = Diary(tmp_path / "m", agent="rules", durability="process").user(f"eve{HOSTILE}")
    extra = {"session_id": HOSTILE, "actor": HOSTILE, "reason": HOSTILE}
    user.upsert_preference("likes", f"tea {HOSTILE}", id=f"id{HOSTILE}", **extra)
    user.upsert_preference("likes", f"cake {HOSTILE}", id=f"id{HOSTILE}", **extra)
    for arguments in (
        ["history"],
        ["why", f"likes/id{HOSTILE}"],
        ["diff"],
        ["rollback"],
        ["show", "--at", "1"],
        ["why", f"likes/{HOSTILE}"],
        ["diff", HOSTILE],
    ):
        code, out, err = call(*arguments, *form, user=user.user_id)
        assert OBEYED.search(out + err) is None
        assert "evil" in out + err
        assert (err.count("\n"), out) == (1, "") if code else err == ""


def test_a_changed_fact_is_shown_without_its_sessions(alice, call):
    alice.diary.register_schema("diet", Diet, Constraint(singleton_key="who"))
    identity = alice.facts.commit(Diet(who="she", food="vegan"), session_id="s1")
    alice.facts.update(identity, {"food": "vegetarian"}, session_id="s2")
    shown = call("diff", check=0)[1]
    assert '+food = "vegetarian"' in shown
    assert "_said_by" not in shown
    assert '+_said_by = ["s1", "s2"]' in call("diff", "--all", check=0)[1]
    assert "food: vegan -> vegetarian\n" in call("history", identity, check=0)[1]
    alice.facts.commit(Diet(who="she", food="vegetarian"), session_id="s3")
    assert "_said_by: ['s1', 's2'] -> nothing" in call("history", identity, check=0)[1]


@pytest.mark.parametrize(("name", "key"), [("likes", "likes/pref001"), ("blocks", "blocks/she")])
def test_a_type_of_facts_hides_no_entry_with_the_same_key(alice, call, name, key):
    alice.diary.register_schema(name, Diet, Constraint(singleton_key="who"))
    alice.facts.commit(name, {"who": "she", "food": "vegan"})
    alice.blocks.set("she", "tea")
    assert "tea" in call("history", key, check=0)[1]
    assert call("why", key, check=0)[1].startswith(f"{key}  ")


def test_the_id_of_a_fact_is_a_key_too(alice, call):
    alice.diary.register_schema("diet", Diet, Constraint(singleton_key="who"))
    identity = alice.facts.commit(Diet(who="she", food="vegan"))
    assert "food = vegan" in call("history", identity, check=0)[1]
    assert call("why", identity, check=0)[1].startswith("facts/diet/she  who = she")
    assert "  facts/diet/she" in call("forget", "--key", identity, check=0)[1]
