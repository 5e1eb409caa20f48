"""Measures of a diary on labelled questions: recall, rank, coverage of the prompt block and time.

They use the public methods `upsert_preference`, `episodes.add`, `recall` and `render`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, cast, get_args

from tomldiary.agents.options import one_of
from tomldiary.diary import Diary, diary_of
from tomldiary.entries.kind import Group
from tomldiary.entries.kinds import KINDS, PREFERENCES, entries_in
from tomldiary.errors import DiaryError, InvalidValue, wrong_type, wrong_value
from tomldiary.evaluation.questions import Collection, StoredAs
from tomldiary.retrieval.render import rendered
from tomldiary.runtime.views import Viewed
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tomldiary.user.user import UserDiary

_USER = "evaluated"


@dataclass(frozen=True, slots=True)
class Answer:
    """The results for one question."""

    collection: str
    question: str
    kind: str
    ranks: tuple[int, ...]
    """The ranks of the gold entries that were found, from 1."""
    gold: int
    """The number of gold entries, which answer the question."""
    seconds: float
    """The duration of `recall` in seconds."""
    covered: dict[int, float] = field(default_factory=dict[int, float])
    """The share of the gold entries in the prompt block, by the budget in tokens."""

    def recall(self, k: int) -> float:
        """Return the share of the gold entries among the first `k`."""
        return sum(rank <= k for rank in self.ranks) / self.gold

    @property
    def reciprocal_rank(self) -> float:
        """One divided by the rank of the first gold entry; 0 if none was found."""
        return 1 / min(self.ranks) if self.ranks else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Run(Viewed):
    """The answers of one system to all questions, in the order of the questions."""

    name: str
    ks: tuple[int, ...]
    budgets: tuple[int, ...]
    answers: list[Answer]

    def __post_init__(self) -> None:
        if not self.answers:
            raise InvalidValue(
                "there are no questions. Give collections that have some.", where="collections"
            )

    def values(self, metric: str) -> list[float]:
        """Return a metric for each question: "recall@10", "mrr", "coverage@1500" or "ms".

        Raises:
            InvalidValue: The metric does not exist.
        """
        name, _, number = metric.partition("@")
        if name == "recall" and number.isdecimal() and 1 <= int(number) <= self.ks[-1]:
            return [answer.recall(int(number)) for answer in self.answers]
        if name == "coverage" and number.isdecimal() and int(number) in self.budgets:
            return [answer.covered[int(number)] for answer in self.answers]
        if metric == "mrr":
            return [answer.reciprocal_rank for answer in self.answers]
        if metric == "ms":
            return [answer.seconds * 1000 for answer in self.answers]
        raise wrong_value(metric, f"one of {', '.join(self.metrics)}", "metric")

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics."""
        return [
            *(f"recall@{k}" for k in self.ks),
            "mrr",
            *(f"coverage@{budget}" for budget in self.budgets),
            "ms",
        ]

    def mean(self, metric: str) -> float:
        """Return the mean of a metric over the questions, or the median for "ms"."""
        values = self.values(metric)
        return median(values) if metric == "ms" else fmean(values)


def evaluate(
    collections: Iterable[Collection],
    make_diary: Callable[[], Diary] | None = None,
    *,
    name: str = "words",
    ks: Sequence[int] = (5, 10),
    budgets: Sequence[int] = (),
    stored_as: StoredAs | None = None,
) -> Run:
    """Store each collection in a new diary, ask its questions, and return the results.

    Args:
        collections: The result of `load_questions`.
        make_diary: The function that returns a new empty diary for each collection; None makes one in memory
            without an embedder. Its limits must allow as many preferences as a collection has entries.
        name: The name of the run in reports.
        ks: The numbers of hits at which recall is reported.
        budgets: The budgets of the prompt block in tokens. To measure coverage, entries are stored as preferences.
        stored_as: The kind of the stored entries; None is the collection's own kind.

    Raises:
        InvalidValue: `ks` is empty or not positive, a collection has no entries, there are no questions, or another
            argument has the wrong type.
    """
    ranked, limits = _checked(ks, budgets)
    if make_diary is not None and not callable(make_diary):
        hint = "To ask about an existing diary, use evaluate_stored."
        raise wrong_type(make_diary, "a function that returns a new diary", "make_diary", hint)
    one_of("stored_as", stored_as, (None, *get_args(StoredAs)))
    answers: list[Answer] = []
    for collection in _each(collections):
        if not collection.entries:
            raise InvalidValue(
                "the questions are about an existing diary. Use evaluate_stored.",
                where=collection.name,
            )
        kind = stored_as or collection.stored_as
        user, ids = _stored(collection, make_diary, kind)
        shown, shown_ids = user, ids
        if limits and kind != "preferences":
            shown, shown_ids = _stored(collection, make_diary, "preferences")
        lines = {each: line for key, line in _lines(shown).items() for each in shown_ids.get(key, ())}  # fmt: skip
        answers += _asked(
            user, shown, collection, lambda key, ids=ids: ids.get(key, ()), lines, ranked, limits
        )
    return Run(name, ranked, limits, answers)


def evaluate_stored(
    diary: Diary,
    collections: Iterable[Collection],
    *,
    name: str = "stored",
    ks: Sequence[int] = (5, 10),
    budgets: Sequence[int] = (),
) -> Run:
    """Ask questions about the users of an existing diary; nothing is written.

    The gold ids are keys as `history` shows them ("likes/pref001", "episodes/…"). Coverage counts preferences.

    Raises:
        InvalidValue: `ks` is empty or not positive, or `gold` names an entry that does not exist.
    """
    ranked, limits = _checked(ks, budgets)
    diary = diary_of(diary)
    answers: list[Answer] = []
    for collection in _each(collections):
        user = diary.user(collection.name or _only_user(diary))
        lines = _lines(user)
        named = {key for question in collection.questions for key in question.gold}
        missing = sorted(named - _keys(user))
        if missing:
            raise InvalidValue(
                f"gold names entries that the user does not have: {', '.join(missing[:5])}. The history shows all keys.",
                where=collection.name,
            )
        answers += _asked(user, user, collection, lambda key: (key,), lines, ranked, limits)
    return Run(name, ranked, limits, answers)


def _each(collections: Iterable[Collection]) -> Iterator[Collection]:
    """Yield the collections, or a single one.

    Raises:
        InvalidValue: `collections` are no collections, such as the path of their file.
    """
    given: Any = collections
    every = cast("Iterable[Any]", given) if isinstance(given, Iterable) else [given]
    for each in every:
        if not isinstance(each, Collection):
            raise wrong_type(each, "the result of load_questions", "collections")
        yield each


def _only_user(diary: Diary) -> str:
    users = diary.users()
    if len(users) != 1:
        raise InvalidValue(
            f'the diary has {len(users)} users. Give each question its "user".', where="questions"
        )
    return users[0]


def _checked(ks: Sequence[int], budgets: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    for name, numbers in (("ks", ks), ("budgets", budgets)):
        if not isinstance(numbers, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise wrong_value(numbers, "a list of numbers", name)
        for number in numbers:
            checked_count(number, name, least=1)
    if not ks:
        raise InvalidValue("expected one or more numbers of at least 1.", where="ks")
    return tuple(sorted(set(ks))), tuple(sorted(set(budgets)))


def _stored(
    collection: Collection, make_diary: Callable[[], Diary] | None, kind: StoredAs
) -> tuple[UserDiary, dict[str, list[str]]]:
    """Return a user with the entries of a collection, and the ids of the entries by the keys of hits."""
    make = make_diary or (lambda: Diary("memory:", max_prefs_per_category=10**9))
    diary = make()
    user = diary.user(_USER)
    ids: dict[str, list[str]] = {}
    with user.transaction():
        for entry in collection.entries:
            text = entry.text[: KINDS[kind].longest].strip()
            if not text:
                continue
            if kind == "episodes":
                key = f"episodes/{user.episodes.add(text, '', session_id=entry.session)}"
            else:
                category = diary.allowed[0]
                key = f"{category}/{user.upsert_preference(category, text)[0]}"
            ids.setdefault(key, []).append(entry.id)  # equal texts are stored as one preference
    user.recall("warm up", 1)
    return user, ids


def _keys(user: UserDiary) -> set[str]:
    """Return the keys of a user's entries of all kinds."""
    engine, name = user.diary.engine, user.user_id
    documents = {kind: engine.document(name, kind) for kind in engine.kinds(name)}
    return {entry.key for entry in entries_in(documents)}


def _lines(user: UserDiary) -> dict[str, str]:
    """Return the line of each preference in a prompt block, by key."""
    lines: dict[str, str] = {}
    for category, items in user.preferences().items():
        group = Group(category, 1, dict[str, Any])
        for key, item in items.items():
            line = PREFERENCES.line(key, item.model_dump(by_alias=True), group)
            lines[f"{category}/{key}"] = rendered(line) if line else ""
    return lines


def _asked(
    user: UserDiary,
    shown: UserDiary,
    collection: Collection,
    ids_of: Callable[[str], Iterable[str]],
    lines: dict[str, str],
    ks: tuple[int, ...],
    budgets: tuple[int, ...],
) -> list[Answer]:
    answers: list[Answer] = []
    for question in collection.questions:
        start = time.perf_counter()
        hits = user.recall(question.text, ks[-1])
        seconds = time.perf_counter() - start
        ranks = [
            rank
            for rank, hit in enumerate(hits, 1)
            for key in ids_of(hit.full_key)
            if key in question.gold
        ]
        covered = {
            budget: _covered(shown, question.text, question.gold, lines, budget)
            for budget in budgets
        }
        answers.append(
            Answer(
                collection.name, question.text, question.kind, tuple(ranks), len(question.gold),
                seconds, covered,
            )
        )  # fmt: skip
    return answers


def _covered(
    user: UserDiary, question: str, gold: frozenset[str], lines: dict[str, str], budget: int
) -> float:
    try:
        block = user.render(question, budget)
    except DiaryError as error:
        raise InvalidValue(str(error), where=f"budget {budget}") from error
    shown = {line.removeprefix("- ") for line in block.split("\n")}
    return sum(lines.get(key) in shown for key in gold) / len(gold)
