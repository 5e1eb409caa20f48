"""Whether two runs differ by more than chance: paired bootstrap intervals.

Efron & Tibshirani, An Introduction to the Bootstrap, chapter 13 (percentile intervals). Questions are drawn
again with replacement; with three collections or more, also whole collections, as their questions are alike.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tomldiary.evaluation.measure import Run

__all__ = ["Difference", "compare"]

_FEWEST_COLLECTIONS = 3


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference of a metric, second run less first, with 95 % intervals."""

    metric: str
    mean: float
    low: float
    high: float
    better: int
    """Questions on which the second run has the higher value."""
    worse: int
    by_collection: tuple[float, float] | None = None
    """The interval if whole collections are drawn; None for fewer than three."""

    @property
    def is_clear(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def compare(
    first: Run, second: Run, metric: str, *, samples: int = 2000, seed: int = 1
) -> Difference:
    """Return how much the second run differs from the first in a metric.

    Args:
        first: A run.
        second: A run over the same questions.
        metric: One of `Run.metrics`.
        samples: How often questions are drawn.
        seed: Makes the result repeatable.

    Raises:
        InvalidValue: The runs are not about the same questions, or there is no such metric.
    """
    asked = [(answer.collection, answer.question) for answer in first.answers]
    if asked != [(answer.collection, answer.question) for answer in second.answers] or not asked:
        raise InvalidValue("the runs are not about the same questions.", where="compare")
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
    """Return the middle 95 % of the means of samples; a part is a sum and a count."""
    means: list[float] = []
    for _ in range(samples):
        drawn = choose.choices(parts, k=len(parts))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    means.sort()
    edge = max(0, round(0.025 * samples) - 1)
    return means[edge], means[-edge - 1]
