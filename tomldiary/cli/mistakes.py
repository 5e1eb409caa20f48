"""Mistakes in an edited document, each with its line number, the line and a remedy."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from tomldiary.entries.kinds import problems_in
from tomldiary.errors import DocumentError
from tomldiary.hand_edits.detect import check_version, is_blank
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from tomldiary.diary import Diary
    from tomldiary.entries.fields import Problem


class Mistake(NamedTuple):
    """One mistake, with its line and a mark below its column."""

    explained: str
    problem: str = ""
    """The entry and what is wrong with it; "" if the document cannot be parsed, so that it cannot be stored."""


def _explained(message: str, text: str, line: int | None, column: int | None = None) -> str:
    lines = text.split("\n")
    if line is None:
        return one_line(message)
    front = f"  {line} | "
    mark = f"\n{' ' * (len(front) + column - 1)}^" if column else ""
    shown = one_line(lines[line - 1].removesuffix("\r"))
    return f"{one_line(message)}\n{front}{shown}{mark}"


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
        return [Mistake(_explained(str(error), text, error.line, error.column))]
    known: set[Problem] = set()
    with suppress(DocumentError):
        known.update(problems_in(document, Document.parse(before), diary))
    found: list[Mistake] = []
    for each in problems_in(document, parsed, diary):
        if each not in known:
            problem = f"{each.where}: {each.message}. {each.remedy}"
            told = f"{parsed.place_of(each.where, name)}: {problem}"
            found.append(Mistake(_explained(told, text, parsed.line_of(each.where)), problem))
    return found
