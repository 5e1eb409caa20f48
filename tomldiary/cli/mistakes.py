"""Mistakes in an edited document, each with its line number, the line and a remedy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tomldiary.entries.kinds import problems_in
from tomldiary.errors import DocumentError
from tomldiary.hand_edits.detect import check_version, is_blank
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.diary import Diary

__all__ = ["Mistake", "mistakes", "readable"]


@dataclass(frozen=True, slots=True)
class Mistake:
    """One mistake. If `is_fatal`, the document cannot be parsed; otherwise only its entry is ignored."""

    message: str
    line: int | None = None
    column: int | None = None
    text: str = ""
    """The text of the line."""
    is_fatal: bool = False

    @property
    def explained(self) -> str:
        """The message, followed by the line with a mark below the column."""
        shown = one_line(self.message)
        if self.line is None:
            return shown
        front = f"  {self.line} | "
        mark = f"\n{' ' * (len(front) + self.column - 1)}^" if self.column else ""
        return f"{shown}\n{front}{one_line(self.text)}{mark}"


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
        lines = text.split("\n")
        line = error.line if error.line is not None and error.line <= len(lines) else None
        shown = lines[line - 1].removesuffix("\r") if line is not None else ""
        return [Mistake(str(error), line, error.column, shown, is_fatal=True)]
    known = set(_problems(diary, document, before))
    return [
        _located(name, parsed, where, message)
        for where, message in _problems(diary, document, text)
        if (where, message) not in known
    ]


def _problems(diary: Diary, document: str, text: str) -> Iterator[tuple[str, str]]:
    try:
        parsed = Document.parse(text)
    except DocumentError:
        return
    for problem in problems_in(document, parsed, diary):
        yield problem.where, f"{problem.message}. {problem.remedy}"


def _located(name: str, document: Document, where: str, message: str) -> Mistake:
    """Return a mistake with the line of the field or table at `where`, a path in TOML syntax."""
    line = document.line_of(where)
    if line is None:
        return Mistake(f"{name}: {where}: {message}")
    return Mistake(
        f"{name}:{line}: {where}: {message}", line, text=document.text.split("\n")[line - 1]
    )
