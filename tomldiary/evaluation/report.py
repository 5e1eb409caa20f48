"""Reports of runs as a table, JSON values or a plot, and the comparison of two runs."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from statistics import fmean, quantiles
from typing import TYPE_CHECKING, Any

from tomldiary.errors import InvalidValue, wrong_value
from tomldiary.runtime.installation import optional
from tomldiary.runtime.views import Viewed, counted
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tomldiary.evaluation.measure import Run

_FEWEST_COLLECTIONS = 3
_SLOWEST = 20


@dataclass(frozen=True, slots=True, repr=False)
class Report(Viewed):
    """Runs over the same questions; the others are compared with the first one."""

    runs: Sequence[Run]

    def __post_init__(self) -> None:
        if not isinstance(self.runs, list | tuple) or not self.runs:
            raise wrong_value(self.runs, "a list of one or more runs", "runs")

    def differences(self) -> list[tuple[str, Difference]]:
        """Return the difference of each further run from the first one, for each metric except the time."""
        first, *others = self.runs
        return [
            (run.name, compare(first, run, metric))
            for run in others
            for metric in run.metrics
            if metric != "ms"
        ]

    def kinds(self) -> list[str]:
        """Return the kinds of questions, sorted; empty if there is only one."""
        kinds = sorted({answer.kind for answer in self.runs[0].answers})
        return kinds if len(kinds) > 1 else []

    def rows(self) -> list[list[str]]:
        """Return the table as rows of text, the head first."""
        metrics = self.runs[0].metrics
        table = [["run", *metrics[:-1], "ms median", "ms p95"]]
        for run in self.runs:
            shown = [_number(run.mean(metric)) for metric in metrics[:-1]]
            table.append([run.name, *shown, f"{run.mean('ms'):.2f}", f"{_slow(run):.2f}"])
        return table

    def to_text(self) -> str:
        """Return the table, the kinds of questions and the differences, for people."""
        first = self.runs[0]
        collections = len({answer.collection for answer in first.answers})
        parts = [
            f"{counted(len(first.answers), 'question')}, {counted(collections, 'collection')}",
            _aligned(self.rows()),
        ]
        if kinds := self.kinds():
            k = first.ks[-1]
            table = [["kind", "questions", *(f"{run.name} recall@{k}" for run in self.runs)]]
            for kind in kinds:
                of_kind = [n for n, answer in enumerate(first.answers) if answer.kind == kind]
                means = [fmean(run.answers[n].recall(k) for n in of_kind) for run in self.runs]
                table.append([kind or "-", str(len(of_kind)), *map(_number, means)])
            parts.append(_aligned(table))
        if differences := self.differences():
            head = ["metric", "difference", "95 % interval", "by collection", "better", "worse"]
            table = [[f"less {first.name}", *head]]
            for name, each in differences:
                cluster = each.by_collection
                table.append(
                    [name, each.metric, f"{each.mean:+.3f}", f"[{each.low:+.3f}, {each.high:+.3f}]",
                     f"[{cluster[0]:+.3f}, {cluster[1]:+.3f}]" if cluster else "-",
                     str(each.better), str(each.worse)]
                )  # fmt: skip
            parts.append(_aligned(table))
        return "\n\n".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Return the means, the differences and the answers as JSON values."""
        return {
            "runs": [
                {
                    "name": run.name,
                    "questions": len(run.answers),
                    "means": {metric: run.mean(metric) for metric in run.metrics},
                    "ms_p95": _slow(run),
                    "answers": [asdict(answer) for answer in run.answers],
                }
                for run in self.runs
            ],
            "differences": [{"run": name, **asdict(each)} for name, each in self.differences()],
        }

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Write a plot of recall by the number of hits, and of coverage by the budget.

        Raises:
            InvalidValue: matplotlib cannot write a file with the suffix of the path.
            MissingExtra: matplotlib is not installed.
        """
        matplotlib = optional("matplotlib.figure", "A plot", "notebook")
        budgets = self.runs[0].budgets
        figure = matplotlib.Figure(figsize=(10 if budgets else 5, 4), layout="constrained")
        axes: Any = figure.subplots(1, 2 if budgets else 1, squeeze=False)[0]
        for run in self.runs:
            ks = range(1, run.ks[-1] + 1)
            axes[0].plot(ks, [run.mean(f"recall@{k}") for k in ks], label=run.name)
            if budgets:
                covered = [run.mean(f"coverage@{budget}") for budget in run.budgets]
                axes[1].plot(run.budgets, covered, marker="o", label=run.name)
        axes[0].set(xlabel="hits", ylabel="recall", ylim=(0, 1))
        if budgets:
            axes[1].set(xlabel="tokens of the prompt block", ylabel="coverage", ylim=(0, 1))
        axes[0].legend()
        try:
            figure.savefig(path)
        except ValueError as error:
            raise InvalidValue(str(error), where=str(path)) from error


def _slow(run: Run) -> float:
    values = run.values("ms")
    return quantiles(values, n=_SLOWEST)[-1] if len(values) > 1 else values[0]


def _number(value: float) -> str:
    return f"{value:.3f}"


def _aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
    return "\n".join(lines)


# Paired bootstrap intervals

# Efron & Tibshirani, An Introduction to the Bootstrap, chapter 13 (percentile intervals). Questions are drawn
# with replacement. Questions of a collection are alike, so with three or more, collections are drawn too.


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of a metric, the second run minus the first, with 95 % intervals."""

    metric: str
    mean: float
    low: float
    high: float
    better: int
    """The number of questions for which the second run has the higher value."""
    worse: int
    by_collection: tuple[float, float] | None = None
    """The interval from drawing whole collections; None for fewer than three collections."""


def compare(
    first: Run, second: Run, metric: str, *, samples: int = 2000, seed: int = 1
) -> Difference:
    """Return the difference of a metric between two runs.

    Args:
        first: A run.
        second: A run over the same questions.
        metric: One of `Run.metrics`.
        samples: The number of bootstrap samples.
        seed: The seed of the random generator, for a repeatable result.

    Raises:
        InvalidValue: The runs do not have the same questions, the metric does not exist, or `samples` is below 1.
    """
    checked_count(samples, "samples", least=1)
    asked = [(answer.collection, answer.question) for answer in first.answers]
    if asked != [(answer.collection, answer.question) for answer in second.answers]:
        raise InvalidValue(
            "the runs have different questions. Evaluate both on the same questions.",
            where="compare",
        )
    pairs = zip(first.values(metric), second.values(metric), strict=True)
    gains = [b - a for a, b in pairs]
    groups: dict[str, list[float]] = {}
    for (collection, _), gain in zip(asked, gains, strict=True):
        groups.setdefault(collection, []).append(gain)
    choose = random.Random(seed)  # noqa: S311 - statistics
    low, high = _interval([(gain, 1) for gain in gains], samples, choose)
    by_collection = None
    if len(groups) >= _FEWEST_COLLECTIONS:
        sums = [(sum(group), len(group)) for group in groups.values()]
        by_collection = _interval(sums, samples, choose)
    return Difference(
        metric, fmean(gains), low, high,
        sum(gain > 0 for gain in gains), sum(gain < 0 for gain in gains), by_collection,
    )  # fmt: skip


def _interval(
    parts: Sequence[tuple[float, int]], samples: int, choose: random.Random
) -> tuple[float, float]:
    """Return the central 95 % of the means of samples; a part is a sum and a count."""
    means: list[float] = []
    for _ in range(samples):
        drawn = choose.choices(parts, k=len(parts))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    edge = max(0, round(0.025 * samples) - 1)
    return means[edge], means[-edge - 1]
