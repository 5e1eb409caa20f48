"""Measure how well a memory finds and shows what a question needs, on labelled questions.

`load_questions` reads one's own questions, LoCoMo, PrefEval or BEAM; `evaluate` measures diaries on them;
`compare` says whether two differ by more than chance.
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
