"""Measure recall, rank and prompt coverage of a memory on labelled questions.

`load_questions` reads your own questions, LoCoMo, PrefEval or BEAM. `evaluate` measures a diary on them.
`compare` tests whether two runs differ by more than chance.
"""

from tomldiary.evaluation.measure import Answer, Run, evaluate, evaluate_stored
from tomldiary.evaluation.questions import Collection, Entry, Question, load_questions
from tomldiary.evaluation.report import Difference, Report, compare

__all__ = [
    "Answer",
    "Collection",
    "Difference",
    "Entry",
    "Question",
    "Report",
    "Run",
    "compare",
    "evaluate",
    "evaluate_stored",
    "load_questions",
]
