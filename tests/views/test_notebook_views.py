"""What notebooks and consoles show: nothing stored runs, lists stay lists, and a repr reads no storage."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path
from unicodedata import category

import pytest
from pydantic import BaseModel, create_model

from tomldiary import Constraint, Diary, MemoryWriter, Turn
from tomldiary.doctor.files import Finding, Findings
from tomldiary.entries.facts import Fact
from tomldiary.evaluation.measure import Answer, Run
from tomldiary.evaluation.report import Report
from tomldiary.extraction.consolidation import Consolidated
from tomldiary.importers.importer import Import
from tomldiary.ingest.runner import IngestReport
from tomldiary.past.queries import HistoryEntry
from tomldiary.runtime.views import DictView, ListView, Viewed
from tomldiary.storage import MemoryBackend, RedisBackend
from tomldiary.store.operations import Put
from tomldiary.store.store import ItemStore
from tomldiary.user.recall import Hit, Hits
from tomldiary.views import entries, history, memory, reports
from tomldiary.views.show import STYLE, as_html, as_text
from tomldiary.writer.receipts import Receipt

HOSTILE = (
    "<script>alert(1)</script><img src=x onerror=alert(2)> \"' $x^2$ javascript:a `b`"
    " \x1b[31mred\x1b[0m \u202egnp.exe\u2066 \x9b2J \x07 " + "w" * 5000
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u202a-\u202e\u2066-\u2069\u2028]")
TAGS = {"div", "style", "header", "p", "h4", "table", "thead", "tbody", "tr", "th", "td", "code",
        "wbr", "span", "i", "mark", "del", "ins", "pre", "br"}  # fmt: skip


class Diet(BaseModel):
    role: str
    food: str


def filled(text, name):
    """Return an object of each class that has a view, all of it holding `text`."""
    diary = Diary("memory:", agent="rules")
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    user = diary.user(name)
    session = f"{name}1"
    user.upsert_preference("likes", text, contexts=[text], session_id=session, actor=text)
    user.upsert_preference("likes", f"{text} too", id="pref001", reason=text)
    user.facts.commit(Diet(role=text[:150], food=text))
    user.blocks.set(name, text)
    user.episodes.add(text, text, session_id=session)
    ItemStore(diary).run([Put((name, text), text, {text[:50]: text, "text": text})])
    user.add_turn(f"I love {text}.", text, session_id=session)
    user.upsert_preference(
        "likes", f"{text} maybe", session_id=session, ephemeral=True, actor=text, reason=text
    )
    receipt = Receipt(Turn(name, session, text, text))
    receipt.settle(None, RuntimeError(text))
    with MemoryWriter(diary) as writer:
        pass
    likes = user.preferences("likes")
    shown = [
        diary, user, user.as_of(1), diary.users(), diary.stats(), user.preferences(), likes,
        likes["pref001"], user.conversations(), user.conversations()[session],
        user.facts.query("diet"), user.facts.query("diet")[0], user.blocks(), user.blocks[name],
        user.episodes(), user.episodes()[0], user.recall(text[-20:] + " too"), Hit("likes", text, text, 0.5, [text[:9]]),
        user.similar("likes", text), user.history(), user.history()[-1], user.diff(1), user.diff(1)[0],
        user.why("likes/pref001"), writer, writer.stats(), writer.health(), receipt,
        user.rollback(dry_run=True), user.kept_history(), user.forget(session_id=session, dry_run=True),
        IngestReport(1, 1, 0, 0.1, 1, 1, [text]), Import(text, {text: 1}, [text], [text], [text], [text]),
        Consolidated(1, 1, [text], [text]), Finding("problem", text, text, text),
        Findings([Finding("warning", text, text, text)]), Report([Run(text, (1,), (), [Answer(text, text, text, (1,), 1, 0.1)] * 2)]),
        Run(text, (1,), (), [Answer(text, text, text, (1,), 1, 0.1)]), user.drafts(), user.drafts()[0],
        user.add_turn(f"I hate {text}.", "", session_id=session), user.items(), user.blocks,
        user.promote_session(session), user.discard_session(session),
    ]  # fmt: skip
    return [*shown, *user.similar("likes", text)[:1]]


@pytest.fixture(scope="module")
def hostile():
    return filled(HOSTILE, "<b>\x1b[1m\u202e&'\"")


@pytest.fixture
def alice():
    user = Diary("memory:", agent="rules").user("alice")
    user.upsert_preference("likes", "dark roast coffee", session_id="monday", actor="agent")
    user.upsert_preference("likes", "light roast coffee", id="pref001", reason="changed her mind")
    return user


INLINE = {"text-align:left", "text-align:left;word-break:break-all"}
"""What JupyterLab keeps of the style of a table in a notebook that is not trusted; it removes `<style>`."""


class Checked(HTMLParser):
    """Fails on any tag or attribute that is not ours, and keeps the text."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.said = ""

    def handle_starttag(self, tag, attrs):
        assert tag in TAGS, tag
        for name, value in attrs:
            assert name in {"class", "style"}, name
            assert re.fullmatch(r"(width:\d+%)|[a-z0-9_ -]+", value) or value in INLINE, value

    def handle_data(self, data):
        self.said += data

    def handle_comment(self, data):
        raise AssertionError(data)


def read(html):
    parser = Checked()
    parser.feed(html)
    parser.close()
    assert not OBEYED.search(html)
    return parser.said


def test_each_view_is_made_of_some_object_here(hostile):
    classes = {kind.__name__ for shown in hostile for kind in type(shown).__mro__}
    made = {re.sub("(?=[A-Z])", "_", name).lower() for name in classes}
    makers = {
        name.removeprefix("view")
        for module in (entries, history, memory, reports)
        for name in vars(module)
        if name.startswith("view_")
    }
    assert len(makers) > 30
    assert makers - made == set(), "add an object of each class to `filled`"


def test_nothing_that_is_stored_runs_in_a_notebook(hostile):
    told = ""
    for shown in hostile:
        html = as_html(shown)
        told += read(html)
        assert len(html) < 40_000, type(shown)
        assert "tex2jax_ignore mathjax_ignore" in html  # "$5 and $6" is no formula
    assert told.count("<script>alert(1)</script>") > 30
    assert told.count(r"\u202e") > 30


def test_no_text_for_a_console_has_control_characters(hostile):
    for shown in hostile:
        text = as_text(shown)
        assert not OBEYED.search(text)
        assert max(map(len, text.split("\n"))) < 500, type(shown)
        is_collection = isinstance(shown, ListView | DictView)
        assert is_collection or len(repr(shown).splitlines()) == 1


def test_drafts_are_recognised_in_views(alice):
    alice.draft("s9").upsert_preference("likes", "oat milk")
    assert as_text(alice.draft("s9")).startswith("alice [with the drafts of session s9] [2 likes]")
    assert as_text(alice).startswith("alice [1 likes]")
    assert "  session s9  likes/pref002" in as_text(alice.drafts())
    assert "<br>" not in as_html(alice.drafts())


def test_collections_are_shown_as_tables_with_few_rows(alice):
    with alice.transaction():
        for number in range(80):
            alice.upsert_preference("goals", f"goal number {number:02} of many")
    shown = alice.preferences("goals")
    assert shown._repr_html_().count("<tr>") == 51  # with the heading
    assert "… 30 more rows" in shown._repr_html_()
    assert len(repr(shown).splitlines()) == 14
    assert repr(shown).endswith("… 68 more")


def test_no_table_in_a_console_leaves_out_a_single_row(alice):
    for number in range(15):
        alice.blocks.set(f"block {number}", "text")
    for most, lines in ((12, 13), (13, 14), (14, 14), (15, 14)):
        shown = repr(alice.history(limit=most)).splitlines()
        assert len(shown) == lines
        assert shown[-1].startswith("  … ") == (most > 13)
    with MemoryWriter(alice.diary) as writer:
        assert "0 of 8 busy" in repr(writer.stats())


def test_columns_of_a_console_are_aligned_in_every_script():
    alice = Diary("memory:").user("alice")
    for text in ("ฉันดื่ม", "हिन्दी में", "日本", "e\u0301te\u0301", "❤\ufe0f", "שָׁ"):
        alice.upsert_preference("likes", text, contexts=["x"])
    columns = [
        "".join(
            char * 2 if char in "日本" else char for char in line if category(char) != "Mn"
        ).index("  x")
        for line in repr(alice.preferences("likes")).splitlines()[1:]
    ]
    assert columns == columns[:1] * 6
    assert (
        "unicode-bidi:plaintext" in STYLE
    )  # each cell of a notebook has the direction of its text


def test_a_text_that_is_shown_alone_is_not_cut(alice):
    text = " ".join(["tea"] * 500)
    alice.upsert_preference("goals", text)
    assert text in alice.preferences("goals")["pref001"]._repr_html_()
    assert "… 1,599 more" in alice.preferences("goals")._repr_html_()


def test_the_card_of_an_episode_names_it_and_its_turn():
    alice = Diary("memory:", agent="rules", episodes=True).user("alice")
    alice.add_turn("I love tea.", "ok", "monday")
    [episode] = alice.episodes()
    shown = read(episode._repr_html_())
    assert f"Episode {episode.id}" in shown
    assert "monday#1" in shown


def test_a_list_of_users_prints_as_a_list(alice):
    assert repr(alice.diary.users()) == str(alice.diary.users()) == "['alice']"
    assert "<code>alice</code>" in alice.diary.users()._repr_html_()


def test_empty_collections_say_so():
    bob = Diary("memory:").user("bob")
    for shown in (bob.recall("tea"), bob.history(), bob.preferences(), bob.blocks()):
        assert len(repr(shown).splitlines()) == 2
        assert "<table" not in shown._repr_html_()
    assert "No transactions." in bob.kept_history()._repr_html_()


def test_kept_history_tells_the_state_before_its_transactions(alice):
    assert "transactions 1 to 2, since 20" in repr(alice.kept_history())
    kept = repr(alice.prune_history(keep=1))
    assert "transactions 2 to 2, and the state after 1 (20" in kept


def collections(user):
    return [user.recall("roast"), user.history(), user.diff(0), user.preferences(),
            user.preferences("likes"), user.similar("likes", "dark roast"), user.blocks(),
            user.episodes(), user.diary.users(), user.diary.stats(), user.conversations(), user.drafts()]  # fmt: skip


def test_no_facts_are_those_of_registered_types(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("diet", Diet)
    diary.user("alice").facts.commit(Diet(role="user", food="vegan"))
    assert "rolefood" in read(diary.user("alice").facts()._repr_html_())  # the heads
    again = Diary(tmp_path, agent="rules").user("alice")  # as in a kernel that was restarted
    assert "0 facts\nNo fact of a registered type matches. diary.register_schema(" in repr(
        again.facts()
    )
    assert "1 diet (fact)" in read(again._repr_html_())


def test_no_facts_of_a_class_that_was_defined_again_name_the_call_that_says_why(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("diet", Diet)
    diary.user("alice").facts.commit(Diet(role="user", food="vegan"))
    diary.register_schema("diet", create_model("Diet", __base__=Diet, since=(int, ...)))
    assert "problems() of the user names the facts that do not fit it" in repr(
        diary.user("alice").facts()
    )
    assert "facts.diet" in str(diary.user("alice").problems())


def test_returned_lists_and_dicts_are_real_ones(alice):
    for found in collections(alice):
        kind = list if isinstance(found, list) else dict
        plain = kind(found)
        assert isinstance(found, kind)
        assert found == plain
        assert plain == found
        for twin in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):  # noqa: S301 - our own bytes
            assert twin == plain
            assert type(twin) is type(found)
    for found in (alice.diary.users(), alice.diary.stats()):
        assert json.loads(json.dumps(found)) == found
    assert type(alice.history()[:1]) is type(alice.history())
    assert isinstance(alice.history()[0], HistoryEntry)


def test_an_accessor_is_shown_as_its_entries(alice):
    from IPython.lib.pretty import pretty  # noqa: PLC0415 - slow

    alice.blocks.set("persona", "brief")
    alice.episodes.add("hello", "hi")
    for accessor in (alice.facts, alice.blocks, alice.episodes, alice.items, alice.review):
        assert accessor._repr_html_() == accessor()._repr_html_()
        assert pretty(accessor) == repr(accessor())
        assert repr(accessor) == f"{type(accessor).__name__}('alice')"


def test_a_repr_reads_no_storage(alice):
    class Broken:
        def __getattr__(self, name):
            raise AssertionError(f"the storage was asked for {name}")

        def __repr__(self):
            return "Broken()"

    past = alice.as_of(1)
    alice.diary.engine.backend = Broken()
    assert repr(alice.diary) == "Diary(Broken(), DefaultPrefTable)"
    assert repr(alice) == "UserDiary('alice')"
    assert repr(past) == "UserDiary('alice', as_of=1)"


def test_a_storage_that_cannot_be_read_is_named_instead_of_the_card(tmp_path):
    from IPython.lib.pretty import pretty  # noqa: PLC0415 - slow

    place = tmp_path / "memories"
    alice = Diary(place, agent="rules").user("alice")
    place.write_text("")  # a file where a folder belongs
    for shown in (pretty(alice), read(alice._repr_html_())):
        assert "UserDiary('alice')" in shown
        assert "cannot be read" in shown
        assert "a parent folder is a file. Move that file away" in shown
    address = Diary(RedisBackend("redis://127.0.0.1:1/0", timeout=0.1), agent="rules")
    assert "cannot be reached (Connection refused)" in pretty(address)
    assert "cannot be reached (Connection refused)" in read(address._repr_html_())


@pytest.mark.parametrize("name", ["diary", "user", "blocks"])
def test_a_cell_of_ipython_reads_the_storage_once(name):
    from IPython.core.formatters import DisplayFormatter  # noqa: PLC0415 - slow

    reads = []

    class Counted(MemoryBackend):
        def kinds(self, user):
            reads.append(user)
            return super().kinds(user)

        def token(self, user, kind):
            reads.append(kind)
            return super().token(user, kind)

    diary = Diary(Counted(), agent="rules")
    alice = diary.user("alice")
    alice.blocks.set("persona", "brief")
    shown = {"diary": diary, "user": alice, "blocks": alice.blocks}[name]
    expected = {"text/plain": as_text(shown)}
    reads.clear()
    expected["text/html"] = as_html(shown)
    once = len(reads)
    bundle, _ = DisplayFormatter(active_types=[*expected]).format(shown)
    assert bundle == expected
    assert (once > 0, len(reads)) == (True, 2 * once)


def test_consoles_of_ipython_show_users_and_cards(alice):
    from IPython.lib.pretty import pretty  # noqa: PLC0415 - slow

    assert "Diary of 1 user, 1 entry" in pretty(alice.diary)
    assert "light roast coffee" in pretty(alice)
    assert pretty(alice.recall("roast")).startswith("1 hit\n")
    assert "1 queued" not in pretty(MemoryWriter(alice.diary))


def test_a_history_shows_who_changed_what_from_what_to_what(alice):
    shown = alice.history()._repr_html_()
    assert "<del>dark roast coffee</del> → <ins>light roast coffee</ins>" in shown
    said = read(shown)
    for part in ("agent", "session monday", "changed her mind", "likes/pref001", "said: 1 → 2"):
        assert part in said


def test_the_old_text_is_before_the_new_one_in_any_script(alice):
    alice.upsert_preference("likes", "أحب القهوة", id="pref001")
    alice.upsert_preference("likes", "أكره الشاي", id="pref001")
    html = alice.history(limit=1)._repr_html_()
    assert "<del>أحب القهوة</del> → <ins>أكره الشاي</ins>" in html
    # Else a browser would show both texts and the arrow as one phrase, from right to left.
    assert re.search(r"ins,[^{]*del\{unicode-bidi:isolate\}", html)


def test_a_history_that_is_cut_says_how_to_get_the_rest(alice):
    for number in range(50):
        alice.blocks.set("count", str(number))
    for shown in (repr(alice.history()), read(alice.history()._repr_html_())):
        assert (
            "history() returns at most 50 changes, unless you pass a limit; None is all." in shown
        )
    for found in (alice.history(limit=100), alice.history(limit=3)):
        assert "at most" not in repr(found)


def test_a_diff_shows_toml_without_bookkeeping(alice):
    shown = alice.diff(1)._repr_html_()
    assert "<del>- text = &quot;dark roast coffee&quot;</del>" in shown
    assert "<ins>+ text = &quot;light roast coffee&quot;</ins>" in shown
    assert "_updated" not in shown
    alice.upsert_preference("likes", id="pref001")
    assert "said: 2 → 3" in read(alice.diff(2)._repr_html_())


def test_a_field_that_an_update_adds_is_shown():
    diary = Diary("memory:", agent="rules")
    for value in ({"a": 1}, {"a": 1, "b": "two"}):
        ItemStore(diary).run([Put(("alice", "notes"), "k", value)])
    assert "b two" in read(diary.user("alice").history()._repr_html_())


def test_the_card_of_a_user_says_what_is_left_after_forgetting():
    alice = Diary("memory:", agent="rules").user("alice")
    assert "transaction" not in read(alice._repr_html_())
    alice.upsert_preference("likes", "tea")
    alice.forget(key="likes/pref001")
    assert "2 transactions" in read(alice._repr_html_())


def test_pending_changes_are_shown_as_the_entries_that_they_would_write():
    diary = Diary("memory:", agent="rules", quarantine={"web"})
    diary.register_schema("diet", Diet, Constraint(singleton_key="role"))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "casino", actor="web:x", reason="advertising")
    alice.facts.commit(Diet(role="user", food="vegan"), actor="web:y")
    shown = read(alice.diff(0)._repr_html_())
    for part in ('key = "likes/pref001"', 'origin = "web:x"', 'text = "casino"', 'food = "vegan"'):
        assert f"+ {part}" in shown
    assert not re.search(r"_created|based_on|is_new|document =|path =", shown)
    assert "role = user, food = vegan" in read(alice.history()._repr_html_())
    alice.review.edit("2", {"food": "fish"})
    assert "food: vegan → fish" in repr(alice.history(limit=1))
    assert alice.history().to_pandas()["new"][0] == "role = user, food = fish"


def test_decided_changes_are_shown_as_applied_or_dropped():
    alice = Diary("memory:", agent="rules", quarantine={"web"}).user("alice")
    for text in ("casino", "chess", "tea"):
        alice.upsert_preference("likes", text, actor="web:x")
    assert repr(alice.review()).startswith("3 pending changes\n")
    accepted = alice.review.accept("1", "2")
    assert repr(accepted).startswith("2 applied changes\n")
    assert "1 applied change" in read(accepted[:1]._repr_html_())
    assert list(accepted.to_pandas()["id"]) == ["1", "2"]
    assert repr(alice.review.reject("3")).startswith("1 dropped change\n")
    alice.upsert_preference("likes", "jazz", session_id="s1", ephemeral=True)
    assert repr(alice.promote_session("s1")).startswith("1 applied change\n")
    assert "No change was dropped." in repr(alice.discard_session("s1"))


def test_hits_show_their_score_and_mark_the_words(alice):
    shown = alice.recall("which roast?")._repr_html_()
    assert "light <mark>roast</mark> coffee" in shown
    assert re.search(r'class="td-bar"><i style="width:\d+%">', shown)
    one = Hit("facts", "diet/user", "Roasted roast, ROAST & <b>", 1.7, ["roast", "b"])
    shown = Hits([one])._repr_html_()
    assert "Roasted <mark>roast</mark>, <mark>ROAST</mark> &amp; &lt;<mark>b</mark>&gt;" in shown
    assert "width:100%" in shown
    assert "facts/<wbr>diet/" in shown


def test_a_card_shows_categories_blocks_facts_and_sessions():
    (user,) = (each for each in filled("green tea", "ann") if repr(each) == "UserDiary('ann')")
    said = read(user._repr_html_())
    for part in (
        "likes",
        "diet (fact)",
        "Newest entries",
        "Blocks",
        "Facts",
        "Last sessions",
        "ann1",
    ):
        assert part in said


def test_a_card_shows_the_facts_that_hold_as_the_profile_counts_them(tmp_path):
    class Home(BaseModel):
        who: str
        city: str

    diary = Diary(tmp_path, agent="rules")
    diary.register_schema("home", Home, Constraint("who", temporal=True))
    alice = diary.user("alice")
    alice.facts.commit(Home(who="user", city="Porto"), valid_from=datetime(2020, 1, 1, tzinfo=UTC))
    alice.facts.commit(Home(who="user", city="Rome"), valid_from=datetime(2021, 1, 1, tzinfo=UTC))
    said = read(alice._repr_html_())
    assert (alice.profile()["facts"], "1 home (fact)" in said) == ({"home": 1}, True)
    assert ("Rome" in said, "Porto" in said) == (True, False)
    assert "Porto" in read(alice.as_of(1)._repr_html_())
    unregistered = read(Diary(tmp_path, agent="rules").user("alice")._repr_html_())
    assert "2 home (fact)" in unregistered


def test_a_card_counts_the_short_form_of_preferences_by_category(tmp_path):
    (tmp_path / "alice").mkdir()
    (tmp_path / "alice/preferences.toml").write_text('[likes.coffee]\ntext = "dark roast"\n')
    alice = Diary(tmp_path, agent="rules").user("alice")
    assert as_text(alice).startswith("alice [1 likes]\n")


def test_names_of_changed_fields_have_no_control_characters(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    for value in ("a", "b"):
        ItemStore(diary).run([Put(("alice", "notes"), "x", {"\x1b[31m\u202ered": value})])
    assert not OBEYED.search(repr(diary.user("alice").history()))


def test_a_card_shows_no_hand_edit_that_a_rule_forbids(tmp_path):
    diary = Diary(tmp_path, agent="rules")
    diary.constrain("preferences/likes", Constraint(immutable=True))
    alice = diary.user("alice")
    alice.upsert_preference("likes", "tea")
    path = tmp_path / "alice/preferences.toml"
    path.write_text(path.read_text().replace('"tea"', '"coffee"'))
    for shown in (alice, alice.draft("s1")):
        assert "tea" in as_text(shown)
        assert "coffee" not in as_text(shown)


def test_names_in_a_file_that_was_edited_by_hand_do_not_run(tmp_path):
    file = tmp_path / "ann" / "preferences.toml"
    file.parent.mkdir()
    name = r'"<img src=x onerror=alert(1)>\u001b\u202e"'
    file.write_text(
        f'[preferences.{name}.{name}]\ntext = "tea"\n[preferences.likes.{name}]\ntext = 7\n{name} = {name}\n'
    )
    (file.parent / "facts.toml").write_text(f"[facts.{name}.{name}]\n{name} = 1\n")
    (file.parent / "blocks.toml").write_text("[blocks.broken\n")
    diary = Diary(tmp_path)
    said = read(diary.user("ann")._repr_html_())
    assert said.count("<img src=x onerror=alert(1)>") >= 4
    assert "Problem: " in said
    assert not OBEYED.search(as_text(diary.user("ann")))
    assert "ann" in read(diary._repr_html_())
    assert len(diary.to_pandas()) == 1


@pytest.mark.parametrize("turns", ['"many"', "[1]", "inf"])
def test_a_card_shows_a_session_whose_number_of_turns_is_wrong(tmp_path, turns):
    file = tmp_path / "ann" / "conversations.toml"
    file.parent.mkdir()
    file.write_text(f'[conversations.s1]\nsummary = "about tea"\n_turns = {turns}\n')
    said = read(Diary(tmp_path).user("ann")._repr_html_())
    assert "about tea0 turns" in said
    assert "Problem: conversations.s1._turns: expected a whole number" in said


def test_the_origin_is_a_chain_from_the_turn_to_the_entry():
    user = Diary("memory:", agent="rules").user("ann")
    user.add_turn("I love green tea.", "Noted.", session_id="monday")
    user.remove_preference("likes", "pref001", actor="editor")
    said = read(user.why("likes/pref001")._repr_html_())
    places = [said.index(part) for part in ("monday#1", "transaction 1", "transaction 2", "editor")]
    assert places == sorted(places)
    assert "removed since" in said


def test_the_origin_without_a_turn_names_who_wrote_the_entry(alice):
    alice.upsert_preference("work", "a deadline", actor="tool:crm")
    assert repr(alice.why("work/pref001")) == '<Origin work/pref001 "a deadline" from tool:crm>'
    assert "written by tool:crm" in read(alice.why("work/pref001")._repr_html_())
    alice.add_turn("I love tea.", "ok", "s1")
    assert "written by rule" in read(alice.why("likes/pref002")._repr_html_())
    alice.remove_preference("work", "pref001", actor="user")
    assert "written by" not in read(alice.why("work/pref001")._repr_html_())


def test_only_entries_that_are_counted_show_how_often_they_were_said(tmp_path):
    alice = Diary(tmp_path, agent="rules").user("alice")
    for session in ("monday", "tuesday"):
        alice.upsert_preference("work", "a deadline", session_id=session)
        alice.blocks.set("persona", "brief", session_id=session)
    assert "said 2×" in read(alice.why("work/pref001")._repr_html_())
    assert "said 1×" not in read(alice.why("blocks/persona")._repr_html_())


def test_each_answer_on_the_page_of_notebooks_runs():
    page = (Path(__file__).parents[2] / "docs/notebooks.md").read_text("utf-8")
    rows = page.partition("| question |")[2].partition("\n\n")[0].splitlines()[2:]
    diary = Diary("memory:", agent="rules", episodes=True)
    diary.register_schema("diet", Diet)
    alice = diary.user("alice")
    alice.add_turn("I love jazz. I'm allergic to walnuts.", "Noted.", "monday")
    alice.episodes.add("I love tea.", "Noted.")
    alice.consolidate()
    alice.facts.commit(Diet(role="user", food="vegan"), actor="tool:crm")
    names = {"alice": alice, "episode": alice.episodes()[-1]}
    names |= {"UTC": UTC, "datetime": datetime, "timedelta": timedelta}
    answers = {row.split("|")[1].strip(): row.split("`")[1] for row in rows}
    found = {question: eval(answer, names) for question, answer in answers.items()}  # noqa: S307 - our own page
    [fine] = [question for question, answer in found.items() if not answer]
    assert fine == "Which entries are not read, and why?"
    assert found["What would be forgotten?"][0] == "allergies/pref001"
    assert [
        each.key for each in found["What was extracted from this episode, or from its turn?"]
    ] == ["likes/pref002"]


def test_a_repeated_turn_is_seen_on_its_receipt():
    with MemoryWriter(Diary("memory:", agent="rules")) as writer:
        for effect in ("1 change in transaction 1", "none: already applied in transaction 1"):
            receipt = writer.submit_nowait(Turn("ann", "s", "I love tea.", "ok", operation_id="1"))
            receipt.wait(60)
            assert effect in read(receipt._repr_html_())


def test_a_failed_turn_is_seen_on_its_receipt():
    receipt = Receipt(Turn("ann", "s", "hello", "hi"))
    assert repr(receipt) == "<Receipt pending>"
    receipt.settle(None, ValueError("no model"))
    assert repr(receipt) == "<Receipt failed: ValueError>"
    assert "no model" in read(receipt._repr_html_())


def test_views_are_not_imported_before_something_is_shown():
    code = (
        "import sys; from tomldiary import Diary; alice = Diary('memory:', agent='rules').user('a');"
        "alice.add_turn('I love tea.', 'ok', session_id='s'); found = alice.history();"
        "print([name for name in sys.modules if name.startswith('tomldiary.views')]); repr(found);"
        "print({'pandas', 'matplotlib', 'IPython', 'tqdm', 'asyncio', 'tomldiary.writer'} & {*sys.modules} - {'asyncio'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nset()\n"


def test_a_subclass_is_shown_like_its_base():
    class MyFact(Fact):
        pass

    mine = MyFact("diet/user", "diet", Diet(role="user", food="rice"), "", "", "", "", "")
    assert repr(mine) == "<MyFact diet/user role=user, food=rice>"
    with pytest.raises(TypeError, match=r"no view of Viewed\. Write view_viewed in"):
        repr(Viewed())


def test_tables_are_readable_in_a_notebook_that_is_not_trusted(alice):
    alice.upsert_preference("likes", "long" * 90)
    cells = re.findall(r"<t[hd](?: class=td-w)? style=\"([^\"]*)\">", alice.history()._repr_html_())
    assert {*cells} == INLINE
    assert ".td-w,.td.td.td pre{overflow-wrap:anywhere;word-break:normal!important}" in STYLE


def test_rules_of_views_win_over_the_rules_of_jupyterlab():
    # `.jp-RenderedHTMLCommon:not(.jp-RenderedMarkdown) td` aligns text to the right.
    selectors = [each for rule in STYLE.split("}") for each in rule.partition("{")[0].split(",") if " " in each]  # fmt: skip
    assert len(selectors) > 20
    assert [each for each in selectors if each.count(".td") < 3] == []
