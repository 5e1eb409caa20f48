"""DataFrames and plots: their columns, what they draw, and what is said if a library is missing."""

from __future__ import annotations

import sys
import threading
from datetime import UTC, datetime, timedelta

import matplotlib as mpl
import pandas as pd
import pytest
from pydantic import BaseModel

from tomldiary import Constraint, Diary, MemoryWriter, Turn
from tomldiary.doctor.doctor import check
from tomldiary.entries.kinds.episodes import Episodes
from tomldiary.errors import DiaryError, InvalidValue, MissingExtra
from tomldiary.user.recall import Hits
from tomldiary_langgraph import DiaryStore


class Visit(BaseModel):
    on: datetime | None = None


NAME = "_$\\frac$ \x1b[1m\u202e" + "x" * 60


@pytest.fixture
def diary():
    start = datetime(2026, 1, 1, tzinfo=UTC)
    diary = Diary("memory:", agent="rules")
    for user in ("alice", NAME):
        memory = diary.user(user)
        memory.upsert_preference("likes", "dark roast", contexts=["am"], session_id="s1", now=start)
        memory.upsert_preference("likes", "dark roast", now=start + timedelta(days=1))
        memory.upsert_preference("likes", "light roast", id="pref001")
    diary.user("alice").upsert_preference("goals", "a marathon")
    diary.user("alice").remove_preference("goals", "pref001")
    return diary


@pytest.fixture
def pyplot():
    mpl.use("Agg")
    import matplotlib.pyplot as plt  # noqa: PLC0415 - once the backend is chosen

    yield plt
    plt.close("all")


def drawn(ax):
    """Draw it: matplotlib reads labels, and formulas in them, only then."""
    ax.figure.canvas.draw()
    return [text.get_text() for text in ax.figure.findobj(mpl.text.Text)]


def test_a_frame_of_preferences_has_typed_columns(diary):
    found = diary.user("alice").preferences().to_pandas()
    assert list(found["category"] + "/" + found["id"]) == ["likes/pref001"]
    assert found.loc[0, "text"] == "light roast"
    assert found.loc[0, "count"] == 3
    assert found.loc[0, "contexts"] == ["am"]
    assert found.loc[0, "created"] == pd.Timestamp("2026-01-01", tz="UTC")
    assert list(diary.user("alice").preferences("likes").to_pandas()["id"]) == ["pref001"]


def test_a_frame_of_history_says_what_changed(diary):
    found = diary.user("alice").history().to_pandas()
    assert list(found["change"]) == ["removed", "added", "changed", "confirmed", "added"]
    assert list(found["seq"]) == [5, 4, 3, 2, 1]
    assert found.loc[2, ["old", "new"]].tolist() == ["dark roast", "light roast"]
    assert str(found["time"].dtype).endswith("UTC]")
    assert list(diary.user("alice").diff(2).to_pandas()["change"]) == ["changed"]


def test_a_number_of_a_frame_is_a_point_of_history(diary):
    alice = diary.user("alice")
    seq = alice.history().to_pandas()["seq"]
    assert alice.as_of(seq.min()).preferences() == alice.as_of(1).preferences()
    assert alice.diff(seq[2]) == alice.diff(3)
    with pytest.raises(InvalidValue, match="transaction number"):
        alice.as_of(seq.min() == 1)


def test_a_number_of_a_frame_is_a_limit_and_a_count(diary):
    alice = diary.user("alice")
    seq = alice.history().to_pandas()["seq"]
    assert alice.history(limit=seq.min()) == alice.history(limit=1)
    assert alice.recall("roast", limit=seq.max()) == alice.recall("roast")
    alice.rollback(seq.min())
    assert alice.history(limit=1)[0].type == "rollback"
    with pytest.raises(InvalidValue, match="whole number"):
        alice.history(limit=seq.mean())


def test_numbers_of_a_frame_are_fields_of_facts_and_items(diary):
    class Score(BaseModel):
        game: str
        points: int
        share: float
        won: bool
        rounds: list[int]

    alice = diary.user("alice")
    diary.register_schema("score", Score, Constraint(singleton_key="game"))
    frame = pd.DataFrame({"points": [3], "share": [0.5], "won": [True]})
    fields = {name: frame[name][0] for name in frame} | {"rounds": frame["points"].to_numpy()}
    alice.facts.commit("score", {"game": "go", **fields})
    stored = {"points": 3, "share": 0.5, "won": True, "rounds": [3]}
    assert alice.facts.get("score/go").data == Score(game="go", **stored)
    assert alice.facts.count("score", {"points": frame["points"][0]}) == 1
    DiaryStore(diary).put(("alice", "games"), "go", {})
    assert alice.items.update("games/go", fields) == stored
    for other in (frame, pd.Timestamp("2026-01-01").to_datetime64()):
        with pytest.raises(InvalidValue, match=r"score\.points: \w+ cannot be stored"):
            alice.facts.update("score/go", {"points": other})


@pytest.mark.parametrize(
    "call",
    [
        lambda alice, column: alice.preferences(column),
        lambda alice, column: alice.upsert_preference("likes", "tea", id=column),
        lambda alice, column: alice.episodes.add("hello", "hi", id=column),
        lambda alice, column: alice.render(column),
        lambda alice, column: alice.items(column),
        lambda alice, column: alice.rollback(session_id=column),
    ],
)
def test_a_column_in_place_of_a_text_is_refused_with_a_named_error(diary, call):
    with pytest.raises(DiaryError):
        call(diary.user("alice"), pd.Series(["a", "b"]))


def test_a_time_of_a_frame_is_stored_as_a_time_of_python(diary):
    alice = diary.user("alice")
    now = pd.Timestamp("2026-02-01 10:00:00.123456789", tz="Europe/Oslo")
    _, item = alice.upsert_preference("likes", "green tea", now=now)
    assert item.created == "2026-02-01T09:00:00.123456+00:00"


@pytest.mark.parametrize(
    "call",
    [
        lambda alice: alice.as_of(pd.NaT),
        lambda alice: alice.facts.query(valid_at=pd.NaT),
        lambda alice: alice.forget(before=pd.NaT, dry_run=True),
        lambda alice: alice.upsert_preference("likes", "tea", now=pd.NaT),
        lambda alice: alice.facts.commit("visit", {"on": pd.NaT}),
        lambda alice: alice.facts.commit(Visit(on=pd.NaT)),
        lambda alice: alice.facts.commit("visit", {}, valid_from=pd.NaT),
        lambda alice: DiaryStore(alice.diary).put(("alice", "trips"), "porto", {"on": pd.NaT}),
    ],
)
def test_a_missing_time_of_a_frame_is_refused(diary, call):
    diary.register_schema("visit", Visit, Constraint(temporal=True))
    with pytest.raises(InvalidValue, match="NaT"):
        call(diary.user("alice"))


def test_a_frame_of_hits_keeps_scores_and_words(diary):
    found = diary.user("alice").recall("roast").to_pandas()
    assert found.loc[0, "reasons"] == ["roast"]
    assert 0 < found.loc[0, "score"] <= 1


def test_frames_of_hits_and_history_can_be_merged(diary):
    alice = diary.user("alice")
    alice.blocks.set("persona", "Likes her roast dark.")
    changes = alice.history().to_pandas()
    merged = alice.recall("roast").to_pandas().merge(changes, left_on="full_key", right_on="key")
    assert set(merged["full_key"]) == {"likes/pref001", "blocks/persona"}


def test_frames_of_entries_have_the_keys_of_history(diary):
    class Diet(BaseModel):
        food: str

    alice = diary.user("alice")
    diary.register_schema("diet", Diet)
    alice.facts.commit(Diet(food="rice"))
    alice.blocks.set("persona", "Brief.")
    alice.add_turn("I love jazz.", "Noted.", "s1", episode=True)
    DiaryStore(diary).put(("alice", "trips"), "porto", {"text": "by the river"})
    found = alice.preferences(), alice.conversations(), alice.facts(), alice.blocks()
    found += alice.episodes(), alice.items(), alice.similar("likes", "light roast")
    shown = [key for each in found for key in each.to_pandas()["full_key"]]
    removed = {"goals/pref001"}
    assert {*shown} | removed == {*alice.history().to_pandas()["key"]}


def test_a_frame_of_a_diary_has_a_row_for_each_user(diary):
    found = diary.to_pandas().set_index("user")
    assert found.loc["alice", ["entries", "preferences", "transactions"]].tolist() == [1, 1, 5]
    assert found["last_write"].notna().all()
    assert list(diary.users().to_pandas()["user"]) == diary.users()


def test_a_user_says_which_of_its_tables_have_frames(diary):
    with pytest.raises(AttributeError, match=r"Use preferences\(\)\.to_pandas\(\) or history"):
        diary.user("alice").to_pandas()


def test_frames_of_nothing_have_the_same_columns(diary):
    bob, alice = diary.user("bob"), diary.user("alice")
    for of in ("preferences", "history", "conversations", "diff"):
        if of == "diff":
            empty, full = bob.diff(0), alice.diff(0)
        else:
            empty, full = getattr(bob, of)(), getattr(alice, of)()
        assert list(empty.to_pandas().columns) == list(full.to_pandas().columns)
        assert len(empty.to_pandas()) == 0
    alice.episodes.add("hello", "hi", session_id="s1")
    assert list(Episodes().to_pandas()) == list(alice.episodes().to_pandas())
    assert list(Hits().to_pandas().columns) == list(alice.recall("roast").to_pandas().columns)
    assert len(Diary("memory:").to_pandas()) == 0


def test_frames_of_nothing_have_the_same_types_of_numbers_and_times(diary):
    alice, bob = diary.user("alice"), diary.user("bob")
    diary.register_schema("visit", Visit, Constraint(temporal=True))
    alice.facts.commit(Visit())
    alice.blocks.set("persona", "Brief.")
    alice.add_turn("I love roast.", "Noted.", session_id="s1")
    for list_of in (
        lambda user: user.preferences(),
        lambda user: user.conversations(),
        lambda user: user.facts(),
        lambda user: user.blocks(),
        lambda user: user.history(),
        lambda user: user.recall("roast"),
    ):
        empty, full = (list_of(user).to_pandas().dtypes for user in (bob, alice))
        typed = [name for name, dtype in full.items() if dtype.kind in "bifM"]
        assert typed
        assert [name for name in typed if empty[name] != full[name]] == []
    every = pd.concat([user.recall("roast").to_pandas() for user in (bob, alice)])
    assert len(every.nlargest(1, "score")) == 1
    changes = bob.history().to_pandas()
    assert list(changes[~changes["is_conflict"]]) == list(changes)
    assert Diary("memory:").to_pandas()["facts"].dtype == int


def test_an_accessor_has_the_frame_of_its_entries(diary):
    alice = diary.user("alice")
    alice.blocks.set("persona", "Brief.")
    assert alice.blocks.to_pandas().equals(alice.blocks().to_pandas())
    for accessor in (alice.facts, alice.episodes, alice.items, alice.review):
        assert len(accessor.to_pandas()) == 0


def test_other_collections_have_frames_too(diary):
    class Diet(BaseModel):
        food: str
        source: str = "menu"
        time: str = "noon"

    alice = diary.user("alice")
    diary.register_schema("diet", Diet)
    alice.facts.commit(Diet(food="rice"))
    alice.blocks.set("persona", "Brief.")
    alice.episodes.add("hello", "hi", session_id="s1")
    facts = alice.facts.query("diet").to_pandas()
    assert facts.loc[0, ["type", "food", "source"]].tolist() == ["diet", "rice", ""]
    assert facts.loc[0, ["data.source", "time"]].tolist() == ["menu", "noon"]
    assert alice.blocks().to_pandas().loc[0, "text"] == "Brief."
    assert alice.episodes().to_pandas().loc[0, "input"] == "hello"
    assert alice.similar("likes", "light roast").to_pandas().loc[0, "score"] == 100
    assert check(diary).to_pandas().loc[0, "level"] == "note"
    assert list(diary.stats().to_pandas()["name"]) == list(diary.stats())


def test_drafts_have_a_row_each(diary):
    alice = diary.user("alice")
    alice.upsert_preference("likes", "green tea", session_id="monday", ephemeral=True, actor="web")
    row = alice.drafts().to_pandas().loc[0]
    assert (row["session"], row["origin"]) == ("monday", "web")
    assert (row["change"], row["new"]) == ("added", "green tea")
    assert row["expires"] > row["created"]
    assert alice.review().to_pandas()["expires"].dtype.kind == "M"
    assert "green tea" in alice.drafts()._repr_html_()


def test_growth_ends_at_the_number_of_entries(diary, pyplot):
    ax = diary.plot_growth()
    every, *users = ax.get_lines()
    assert list(every.get_ydata())[-1] == 2
    assert max(max(line.get_ydata()) for line in users) == 2
    texts = drawn(ax)
    assert "2 users, 2 entries" in texts
    assert r" _$\frac$ \x1b[1m\u202e" in "".join(texts)  # a name, not a formula


def test_growth_after_a_redaction_of_history_ends_at_the_same_number(diary, pyplot):
    alice = diary.user("alice")
    for number in range(5):
        alice.upsert_preference("goals", f"goal {number}")
    alice.prune_history(keep=2)
    lines = {line.get_label(): line for line in diary.plot_growth().get_lines()}
    assert list(lines["alice"].get_ydata())[-1] == 6


def test_changes_have_a_lane_for_each_category(diary, pyplot):
    ax = diary.user("alice").plot_history()
    assert drawn(ax)[:1]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["likes", "goals"]
    assert {each.get_label() for each in ax.collections} == {
        "added", "changed", "confirmed", "removed",
    }  # fmt: skip
    inside = ax.get_window_extent()
    assert not inside.overlaps(ax.get_legend().get_window_extent())  # its marks look like changes


def test_changes_of_one_moment_are_drawn_within_a_minute(pyplot):
    diary = Diary("memory:", agent="rules")
    diary.user("alice").add_turn("I love jazz. I love chess.", "Noted.", "s1")
    for ax in (diary.user("alice").plot_history(), diary.plot_growth()):
        assert drawn(ax)  # matplotlib warns here if it finds no labels
        start, end = ax.get_xlim()
        assert 0 < end - start < 1 / 24
        ax.plot([datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)], [1, 2])
        assert ax.get_xlim()[1] - ax.get_xlim()[0] > 31  # another plot on the Axes is not cut off


def test_merges_are_counted_by_the_similarity_of_their_texts(diary, pyplot):
    ax = diary.user("alice").plot_merges()
    assert "2 merges instead of new entries" in drawn(ax)
    filled = {bar.get_x(): bar.get_height() for bar in ax.patches if bar.get_height()}
    assert filled.pop(100) == 1
    assert len(filled) == 1


def test_the_queue_of_a_writer_is_drawn_over_time(pyplot):
    gate = threading.Event()

    def remember(message, *, deps):
        assert gate.wait(30)

    with MemoryWriter(Diary("memory:", agent=remember)) as writer:
        for text in ("tea", "jazz", "walnuts"):
            writer.submit_nowait(Turn("alice", "s", text, "ok"))
        gate.set()
        assert writer.flush(30)
        ax = writer.plot_queue()
    assert list(ax.get_lines()[0].get_ydata()) == [1, 2, 3, 2, 1, 0]
    assert drawn(ax)


def test_plots_of_nothing_are_empty(pyplot):
    diary = Diary("memory:")
    bob = diary.user("bob")
    figure, ax = pyplot.subplots()
    for plot in (diary.plot_growth, bob.plot_history, bob.plot_merges):
        assert plot(ax=ax) is ax
        assert drawn(ax)
    assert figure.axes == [ax]


@pytest.mark.parametrize("missing", ["pandas", "matplotlib.pyplot"])
def test_a_missing_library_names_the_line_that_installs_it(diary, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    use = diary.to_pandas if missing == "pandas" else diary.plot_growth
    with pytest.raises(MissingExtra, match=r'pip install "tomldiary-kit\[notebook\]"'):
        use()
