"""Plots of memory over time, with matplotlib; each draws on one Axes and returns it.

Stored names are never drawn as formulas, and their control characters are drawn as escapes.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tomldiary.runtime.installation import optional
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.views.history import text_of, verb_of
from tomldiary.views.memory import summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tomldiary.diary import Diary
    from tomldiary.past.queries import HistoryEntry
    from tomldiary.user.user import UserDiary

_LINES = 5  # the maximum number of users with a separate line
_NAME = 40  # the maximum number of characters of a name
_SIZE = (7.0, 3.0)  # inches
_SAME = 100.0
_MOMENT = 1e-8  # days, about a millisecond
_AROUND = 30 / 86_400  # days, half a minute
_COLOURS = {
    "added": "#2e9e4f",
    "changed": "#4c8dd6",
    "confirmed": "#e0a100",
    "removed": "#d64541",
    "used": "#999999",
}


def _axes(ax: Any) -> Any:
    """Return the Axes to draw on.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    if ax is not None:
        return ax
    pyplot = optional("matplotlib.pyplot", "A plot", "notebook")
    return pyplot.subplots(figsize=_SIZE, layout="constrained")[1]


def _finished(ax: Any, title: str, y: str, *, legend: bool, **place: Any) -> Any:
    """Set the title, labels and legend, and disable formulas in them; `place` says where the legend is."""
    ax.set_title(title, loc="left", fontsize="medium")
    ax.set_ylabel(y)
    ax.spines[["top", "right"]].set_visible(False)
    texts = [ax.title, *ax.get_yticklabels()]
    if legend:
        texts += ax.legend(frameon=False, fontsize="small", **place).get_texts()
    for text in texts:
        text.set_parse_math(False)
    return ax


def _dated(ax: Any) -> None:
    """Label the time axis with short dates."""
    dates: Any = import_module("matplotlib.dates")
    start, end = ax.dataLim.intervalx
    if 0 <= end - start < _MOMENT:
        # matplotlib would show four years, and warn that it has no dates. Another plot on the Axes may extend these limits.
        ax.set_xlim(start - _AROUND, end + _AROUND, auto=None)
    locator = dates.AutoDateLocator(maxticks=7)
    ax.xaxis.set_major_locator(locator)
    ax.xaxis.set_major_formatter(dates.ConciseDateFormatter(locator))


def _label(name: str) -> str:
    """Return a stored name for a plot. A space is added before an underscore, because matplotlib hides such labels."""
    shown = one_line(name)
    shown = shown if len(shown) <= _NAME else f"{shown[:_NAME]}…"
    return f" {shown}" if shown.startswith("_") else shown


def _steps(found: Iterable[HistoryEntry]) -> list[tuple[datetime, int]]:
    """Return the time and the change in the number of entries of each step, oldest first."""
    steps = [
        (datetime.fromisoformat(entry.time), (entry.before is None) - (entry.after is None))
        for entry in found
    ]
    return sorted(step for step in steps if step[1])


def _draw(ax: Any, steps: Sequence[tuple[datetime, int]], last: int, **options: Any) -> None:
    counts = [*accumulate(step for _, step in steps)]
    # Entries from dropped history count from the beginning.
    offset = last - (counts[-1] if counts else 0)
    times = [when for when, _ in steps]
    ax.step(times, [count + offset for count in counts], where="post", **options)


def growth(found: Diary, ax: Any = None) -> Any:
    """Draw the number of entries over time, for all users and for the largest ones."""
    ax = _axes(ax)
    known = found.engine.of_each(found.users(), partial(summary_of, found))
    users = {each.user: each.counts.total() for each in known}
    steps = {user: _steps(found.user(user).history(limit=None)) for user in users}
    if len(users) != 1:
        every = sorted(step for each in steps.values() for step in each)
        total = sum(users.values())
        _draw(ax, every, total, color="black", alpha=0.6, linewidth=2, label="all users")
    largest = Counter(users).most_common(_LINES)
    for user, number in largest:
        _draw(ax, steps[user], number, label=_label(user))
    title = f"{counted(len(users), 'user')}, {counted(sum(users.values()), 'entry', 'entries')}"
    _dated(ax)
    return _finished(ax, title, "entries", legend=bool(users))


def _lane(key: str) -> str:
    return key.partition("/")[0]


def history(user: UserDiary, ax: Any = None) -> Any:
    """Draw each change at its time, in a lane for its category and coloured by the kind of change."""
    ax = _axes(ax)
    found = user.history(limit=None)[::-1]
    lanes = list(dict.fromkeys(_lane(entry.key) for entry in found))
    for verb, colour in _COLOURS.items():
        shown = [entry for entry in found if verb_of(entry.before, entry.after) == verb]
        if shown:
            places = [lanes.index(_lane(entry.key)) for entry in shown]
            times = [datetime.fromisoformat(entry.time) for entry in shown]
            ax.scatter(times, places, color=colour, label=verb, s=28, alpha=0.75)
    ax.set_yticks(range(len(lanes)), [_label(lane) for lane in lanes])
    ax.margins(y=0.2)
    _dated(ax)
    # Between the points, a mark of the legend would look like a change.
    above = {"loc": "lower right", "bbox_to_anchor": (1, 1), "ncols": len(_COLOURS)}
    return _finished(ax, counted(len(found), "change"), "", legend=bool(found), **above)


def merges(user: UserDiary, ax: Any = None) -> Any:
    """Draw the similarity of texts that were merged into existing preferences.

    A confirmation has the score 100, because only equal texts are merged without a question. A rewording has the
    score of its old and new text.
    """
    ax = _axes(ax)
    similarity = user.diary.similarity
    scores: dict[str, list[float]] = {"confirmed": [], "changed": []}
    for entry in user.history(limit=None):
        verb = verb_of(entry.before, entry.after)
        if verb not in scores or "/" not in entry.key or _lane(entry.key) not in user.diary.allowed:
            continue
        old, new = text_of(entry.key, entry.before), text_of(entry.key, entry.after)
        scores[verb].append(_SAME if old == new else similarity.score(old, new))
    shown = {verb: found for verb, found in scores.items() if found}
    if shown:
        colours = [_COLOURS[verb] for verb in shown]
        bins = range(0, 106, 5)
        ax.hist([*shown.values()], bins=bins, stacked=True, label=[*shown], color=colours)
        ax.axvline(
            similarity.threshold, color="black", linestyle=":", label="threshold of suggestions"
        )
    ax.set_xlim(0, 105)
    ax.set_xlabel("similarity of old and new text")
    title = f"{counted(sum(map(len, shown.values())), 'merge')} instead of new entries"
    return _finished(ax, title, "statements", legend=bool(shown))


def queue(recent: Sequence[tuple[float, float]], stats: Mapping[str, Any], ax: Any = None) -> Any:
    """Draw the number of turns that were waiting or running over time, from the last applied turns.

    Args:
        recent: The time when each turn was applied, in seconds since 1970, and its latency in seconds.
        stats: The writer's counters.
        ax: The Axes to draw on.
    """
    ax = _axes(ax)
    events = sorted(
        [(end - seconds, 1) for end, seconds in recent] + [(end, -1) for end, _ in recent]
    )
    times = [datetime.fromtimestamp(when, UTC) for when, _ in events]
    ax.step(times, [*accumulate(step for _, step in events)], where="post", color="#4c8dd6")
    ax.set_ylim(bottom=0)
    _dated(ax)
    title = (
        f"{stats['pending']} pending, {stats['completed']} completed, {stats['failed']} failed;"
        f" half within {stats['latency_p50']:.2g} s, 95% within {stats['latency_p95']:.2g} s"
    )
    return _finished(ax, title, "turns waiting or running", legend=False)
