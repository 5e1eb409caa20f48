"""`eval`: measures how well searches answer labelled questions."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import Annotated

from typer import Argument, Option

from tomldiary.agents.options import one_of
from tomldiary.cli.memory import known_user
from tomldiary.cli.options import (
    DEFAULT_PATH,
    EMBEDDERS,
    WORDS,
    AsJson,
    MemoryPath,
    check_absent,
    user_option,
)
from tomldiary.cli.output import print_json, print_text
from tomldiary.diary import Diary
from tomldiary.evaluation import Report, Run, evaluate, evaluate_stored, load_questions
from tomldiary.evaluation.questions import Collection, together
from tomldiary.retrieval.embedders import local_embedder


def evaluate_questions(
    questions: Annotated[
        Path,
        Argument(help="Your own .jsonl file, or a file or folder of LoCoMo, PrefEval or BEAM."),
    ],
    *,
    embedder: Annotated[
        list[str] | None, Option(help='"words" (no embedder) or "local"; repeat it to compare.')
    ] = None,
    k: Annotated[
        list[int] | None, Option("-k", help="The number of hits to count; may be repeated.", min=1)
    ] = None,
    budget: Annotated[
        list[int] | None,
        Option(help="The token budget of the prompt block; may be repeated.", min=1),
    ] = None,
    as_one: Annotated[
        bool, Option("--together", help="Store all collections as one user.")
    ] = False,
    plot: Annotated[
        Path | None, Option(help="Write a plot to this file (.png, .svg or .pdf).")
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    user: Annotated[
        str | None,
        user_option("The user of the questions that name none; by default the only user."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how well searches answer labelled questions.

    Prints recall, rank, coverage of the prompt block and time. Texts of the file are stored in a temporary diary. Without texts, the questions search the diary at --path, which is not changed.
    """
    for name in embedder or ():
        one_of("--embedder", name, EMBEDDERS)
    collections = load_questions(questions)
    has_texts = any(each.entries for each in collections)
    if not has_texts:
        check_absent(
            {"--embedder": embedder, "--together": as_one},
            "requires a file with texts; this file has only questions, which search the diary at --path",
        )
    if as_one:
        collections = [together(collections)]
    ks, budgets = k or [5, 10], budget or []
    if has_texts:
        runs = [_run(name, collections, ks, budgets) for name in embedder or [WORDS]]
    else:
        runs = [_run_stored(path, user, collections, ks, budgets)]
    report = Report(runs)
    if as_json:
        print_json(report.to_dict())
    else:
        print_text(report.to_text())
    if plot is not None:
        report.plot(plot)


def _run_stored(
    path: str, user: str | None, collections: list[Collection], ks: list[int], budgets: list[int]
) -> Run:
    """Evaluate the questions of each user on a diary with the categories of that user."""
    runs: list[Run] = []
    for each in collections:
        known = known_user(path, each.name or user)
        named = replace(each, name=known.user_id)
        runs.append(evaluate_stored(known.diary, [named], ks=ks, budgets=budgets))
    return replace(runs[0], answers=[answer for run in runs for answer in run.answers])


def _run(name: str, collections: list[Collection], ks: list[int], budgets: list[int]) -> Run:
    # A diary searches by words if its embedder cannot be loaded, so the figures would be those of words.
    embedder = None if name == WORDS else local_embedder()
    make = partial(Diary, "memory:", max_prefs_per_category=10**9, embedder=embedder)
    return evaluate(collections, make, name=name, ks=ks, budgets=budgets)
