"""Mistakes in an edited document, each with its line number, the line and a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tomldiary.entries.kinds import problems_in
from tomldiary.errors import DocumentError
from tomldiary.hand_edits.detect import check_version, is_blank
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.diary import Diary


class Mistake(NamedTuple):
    """One mistake, with its line and a mark below its column."""

    explained: str
    is_fatal: bool = False
    """Whether the document cannot be parsed; otherwise only its entry is ignored."""


def _mistake(
    message: str, text: str, line: int | None, column: int | None = None, *, is_fatal: bool = False
) -> Mistake:
    lines = text.split("\n")
    if line is None or line > len(lines):
        return Mistake(one_line(message), is_fatal)
    front = f"  {line} | "
    mark = f"\n{' ' * (len(front) + column - 1)}^" if column else ""
    shown = one_line(lines[line - 1].removesuffix("\r"))
    return Mistake(f"{one_line(message)}\n{front}{shown}{mark}", is_fatal)


def readable(text: str, path: str) -> Document:
    """Parse an edited text, in which surrogates represent bytes that are not UTF-8.

    Raises:
        DocumentError: The text cannot be parsed, or it is empty, as after a failed save.
    """
    decode_utf8(text.encode("utf-8", "surrogateescape"), path=path)
    document = Document.parse(text, path=path)
    check_version(document, path)
    if is_blank(text):
        raise DocumentError(
            "the text is empty, which counts as a failed save; to erase the content, use `tomldiary forget`.",
            path=path,
        )
    return document


def mistakes(diary: Diary, document: str, text: str, before: str) -> list[Mistake]:
    """Return the mistakes of an edited document that it did not have before the edit.

    Args:
        diary: Provides the preference table and the types of facts and items.
        document: The name of the document.
        text: The text to check.
        before: The text before the edit.
    """
    name = f"{document}.toml"
    try:
        parsed = readable(text, name)
    except DocumentError as error:
        return [_mistake(str(error), text, error.line, error.column, is_fatal=True)]
    known = set(_problems(diary, document, before))
    found: list[Mistake] = []
    for where, message in _problems(diary, document, text):
        if (where, message) not in known:
            line = parsed.line_of(where)
            place = name if line is None else f"{name}:{line}"
            found.append(_mistake(f"{place}: {where}: {message}", text, line))
    return found


def _problems(diary: Diary, document: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        parsed = Document.parse(text)
    except DocumentError:
        return
    for problem in problems_in(document, parsed, diary):
        yield problem.where, f"{problem.message}. {problem.remedy}"
