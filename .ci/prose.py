"""Check the prose of the packages and of the documentation.

Usage: python .ci/prose.py [PACKAGE ...]

Checks docstrings, comments and messages of `tomldiary/` and `integrations/`, and docstrings and comments of tests,
benchmarks and examples, for words that the glossary replaces; README.md and all pages of docs/ also for long sentences. Prints each finding, then the number for each package.
Exits with 1 if there is one.
"""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
MEDIAN_WORDS, MOST_WORDS = 20, 30

# A pattern and the standard term to use.
WORDS = {
    r"whoever|nobody|somebody|somebody's|what is told|of ours": "name the subject",
    r"g(?:ive|ives|ave|iving) way|t(?:ake|akes|ook|aking) turns": "publish, exchange",
    r"put in(?:to)? (?:its|their) place": "publish",
    r"t(?:ake|akes|aken|ook|aking) in(?! (?:order|a|an|the|one|its|turn|steps|full|which|that)\b)(?= |$|[.,;:])": "merge, admit",
    r"what (?:a person|people|somebody) (?:save|saves|saved|change|changes|changed|wrote|writes)|outside saves?": "hand edit",
    r"spares?(?= |$|[.,;:)]|')": "temporary file",
    r"(?:history|log)? ?laid out|(?:its|the|more|no|with|user's) room|room for|tails": "log tail, segment",
    r"settl(?:e|es|ed|ing)": "checkpoint, wait until stable",
    r"(?:a|each|every|one|the next|the last|the first|another|second) look": "read, check",
    r"(?:lock|our|own|another's|somebody's|process's) marks?|epochs?": "fencing token",
    r"known documents|done operations|past engine|late saves|bases": "document cache, idempotency key, base version",
    r"reception|intake lines?|put(?:s|ting)? (?:it|them|turns|a turn|what failed)? ?back": "admission, requeue",
    r"figures of (?:the|a) (?:writer|queue|store)": "metrics",
    r"erasure tables?|prun(?:e|es|ed|ing)|a losing": "redaction, retention, erase",
    r"gatherings?": "batch",
}
PATTERNS = [
    (re.compile(rf"(?<![\w-])(?:{words})(?![\w-])", re.IGNORECASE), term)
    for words, term in WORDS.items()
]
LOGGING = {"debug", "info", "warning", "error", "exception", "critical", "log", "warn"}

FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"``.+?``|`[^`\n]+`")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
END = re.compile(r"(?<=[.!?])[)*_\"]*\s+")


class Finding(NamedTuple):
    package: str
    place: str
    text: str


def package(path: Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "integrations":
        return parts[1]
    if parts[0] == "tomldiary":
        return parts[1] if len(parts) > 2 else "tomldiary"
    return parts[0] if path.suffix == ".py" else "docs"


def python_texts(source: str, *, messages: bool = True) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of each docstring, comment and, if asked for, message."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if ast.get_docstring(node) is not None:
                yield node.body[0].lineno, node.body[0].value.value
        elif messages and (
            isinstance(node, ast.Raise)
            or (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in LOGGING
            )
        ):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value


def words_of(path: Path, line: int, text: str) -> Iterator[Finding]:
    for number, row in enumerate(CODE.sub("`…`", text).splitlines()):
        for pattern, term in PATTERNS:
            for found in pattern.finditer(row):
                place = f"{path.relative_to(ROOT)}:{line + number}"
                yield Finding(package(path), place, f'"{found[0].strip()}": {term}')


def sentences(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, each sentence, and whether it stands in a table."""
    text = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    paragraph, start = "", 0
    for number, row in enumerate([*text.splitlines(), ""], 1):
        begins = not row.strip() or re.match(r"\s*(?:[-*|>#]|\d+\.) ?", row)
        if begins and paragraph:
            yield from ((start, part, False) for part in END.split(paragraph.strip()))
            paragraph = ""
        if row.startswith("#"):
            continue
        if row.lstrip().startswith("|"):
            for cell in re.split(r"(?<!\\)\|", row.strip().strip("|")):
                yield from ((number, part, True) for part in END.split(cell.strip()))
        elif row.strip():
            start = number if not paragraph else start
            paragraph += " " + re.sub(r"^\s*(?:[-*>]|\d+\.) ", "", row)


def count(sentence: str) -> int:
    plain = LINK.sub(r"\1", CODE.sub("code", sentence))
    return len(re.findall(r"[\w'’.,/-]*\w[\w'’.,/-]*", plain))


def page(path: Path) -> Iterator[Finding]:
    text = path.read_text("utf-8")
    prose = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    yield from words_of(path, 1, LINK.sub(r"\1", prose))
    lengths = []
    for line, sentence, in_table in sentences(text):
        length = count(sentence)
        if length > MOST_WORDS:
            place = f"{path.relative_to(ROOT)}:{line}"
            yield Finding("docs", place, f"{length} words: {sentence.strip()[:60]}…")
        if length > 1 and not in_table:
            lengths.append(length)
    if lengths and statistics.median(lengths) > MEDIAN_WORDS:
        median = statistics.median(lengths)
        yield Finding(
            "docs", str(path.relative_to(ROOT)), f"the median sentence has {median} words"
        )


def findings() -> Iterator[Finding]:
    for root in ("tomldiary", "integrations", "tests", "benchmarks", "examples"):
        for path in sorted((ROOT / root).rglob("*.py")):
            seen = set()
            messages = root in {"tomldiary", "integrations"}
            for line, text in python_texts(path.read_text("utf-8"), messages=messages):
                for finding in words_of(path, line, text):
                    if finding not in seen:
                        seen.add(finding)
                        yield finding
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield from page(path)


def main(arguments: list[str]) -> int:
    only = set(arguments)
    found = [finding for finding in findings() if not only or finding.package in only]
    for finding in found:
        print(f"{finding.place}: {finding.text}")
    counts: dict[str, int] = {}
    for finding in found:
        counts[finding.package] = counts.get(finding.package, 0) + 1
    for name, number in sorted(counts.items(), key=lambda pair: -pair[1]):
        print(f"{number:5} {name}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
