"""The content of a view before it is rendered: a title, notes, and tables of cells.

Each cell has HTML and text in which all stored text is escaped, so no control character or tag reaches a browser or a
terminal.
"""

from __future__ import annotations

import html
import re
from dataclasses import InitVar, dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line, printable
from tomldiary.toml.values import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

T = TypeVar("T")

MOST_ROWS = 50
"""The maximum number of rows of a table."""
MOST_CHARACTERS = 400
"""The maximum number of characters of a text in a cell."""

Tone = Literal["", "good", "bad", "warn"]


@dataclass(slots=True)
class Cell:
    """One cell of a table."""

    text: str
    """The cell as text on one line, without control characters."""
    html: str
    """The cell as HTML; stored text in it is escaped."""


def escaped(text: str) -> str:
    """Return stored text for HTML: tags are escaped, and hidden and control characters are visible."""
    return html.escape(printable(text))


def cut(text: str, most: int = MOST_CHARACTERS) -> str:
    """Return at most about `most` characters of a text, followed by the number of omitted ones."""
    rest = len(text) - most
    return text if rest <= 0 else f"{text[:most].rstrip()} … {rest:,} more"


def quote(text: object) -> str:
    """Return the beginning of a stored text in quotes, for an object on one line."""
    return f'"{cut(one_line(text), 60)}"'


def minute(written: object) -> str:
    """Return a stored time in UTC to the minute; any other value is returned as text."""
    when = moment(written)
    return one_line(written or "") if when is None else f"{when:%Y-%m-%d %H:%M}"


class Text(Cell):
    """Stored text; in HTML it has line breaks and at most `most` characters, and words in it are marked."""

    def __init__(
        self,
        value: object,
        words: Sequence[str] = (),
        *,
        is_quiet: bool = False,
        most: int = MOST_CHARACTERS,
    ) -> None:
        parts = _parts(cut(printable(str(value)), most), words)
        shown = "".join(
            f"<mark>{html.escape(part)}</mark>" if number % 2 else html.escape(part)
            for number, part in enumerate(parts)
        )
        super().__init__(
            cut(one_line(value)), f'<span class="td-q">{shown}</span>' if is_quiet else shown
        )


def _parts(text: str, words: Sequence[str]) -> list[str]:
    """Split a text at the words, without regard to case; every second part is one of them."""
    longest_first = sorted({*words}, key=len, reverse=True)
    choices = "|".join(re.escape(word) for word in longest_first if word)
    edged = rf"(?<![^\W_])(?:{choices})(?![^\W_])" if choices.isascii() else f"(?:{choices})"
    return re.split(f"({edged})", text, flags=re.IGNORECASE) if choices else [text]


def quiet(value: object) -> Text:
    """Return text that is less prominent."""
    return Text(value, is_quiet=True)


class Key(Cell):
    """The key of an entry; a line may break after a slash."""

    def __init__(self, value: str) -> None:
        shown = escaped(cut(value, 200)).replace("/", "/<wbr>")
        super().__init__(one_line(value), f"<code>{shown}</code>")


class Moment(Cell):
    """A stored time, shown in UTC to the minute."""

    def __init__(self, value: object) -> None:
        shown = minute(value)
        super().__init__(shown, f'<span class="td-t">{html.escape(shown)}</span>')


class Bar(Cell):
    """A share from 0 to 1 as a bar with its number; its width is a whole number, never stored text."""

    def __init__(self, share: float, label: str = "") -> None:
        shown = label or f"{share:.2f}"
        width = round(100 * min(1.0, max(0.0, share)))
        bar = f'<span class="td-bar"><i style="width:{width}%"></i></span>'
        super().__init__(shown, f'<span class="td-t">{bar}{html.escape(shown)}</span>')


class Badge(Cell):
    """A short label of a state, coloured by its tone."""

    def __init__(self, label: str, tone: Tone = "") -> None:
        shown = escaped(cut(label, 80))
        super().__init__(
            one_line(label), f'<span class="td-badge td-{tone or "plain"}">{shown}</span>'
        )


class Change(Cell):
    """The old and new text of a field; None if there is no text. `label` is the name of the field."""

    def __init__(self, before: str | None, after: str | None, label: str = "") -> None:
        old, new = (None if each is None else cut(one_line(each)) for each in (before, after))
        shown = f"+ {new}" if old is None else f"- {old}" if new is None else f"{old} → {new}"
        tagged = [
            f"<{tag}>{escaped(cut(each))}</{tag}>"
            for tag, each in (("del", before), ("ins", after))
            if each is not None
        ]
        head = f'<span class="td-q">{escaped(label)}</span> ' if label else ""
        super().__init__(
            f"{one_line(label)}: {shown}" if label else shown, f"{head}{' → '.join(tagged)}"
        )


class Several(Cell):
    """Several cells, each below the previous one; empty ones are left out."""

    def __init__(self, cells: Iterable[Cell]) -> None:
        filled = [cell for cell in cells if cell.text]
        super().__init__(
            "; ".join(cell.text for cell in filled), "<br>".join(cell.html for cell in filled)
        )


class Code(Cell):
    """Lines of TOML, each with `-`, `+` or a space for removed, added and kept."""

    def __init__(self, lines: Sequence[tuple[str, str]]) -> None:
        tags = {"-": "del", "+": "ins"}
        rows: list[str] = []
        for sign, line in lines:
            tag = tags.get(sign, "span")
            rows.append(f"<{tag}>{sign} {escaped(cut(one_line(line)))}</{tag}>")
        changed = (f"{sign} {cut(one_line(line), 80)}" for sign, line in lines if sign != " ")
        super().__init__("; ".join(changed), f"<pre>{''.join(rows)}</pre>")


@dataclass(slots=True)
class Table:
    """A table: column headings, the first rows, and the number of omitted rows. A value that is no cell is text."""

    columns: Sequence[str]
    rows: InitVar[Iterable[Sequence[object]]]
    heading: str = ""
    left_out: int = 0
    cells: list[list[Cell]] = field(init=False)

    def __post_init__(self, rows: Iterable[Sequence[object]]) -> None:
        every = list(rows)
        self.left_out += max(0, len(every) - MOST_ROWS)
        self.cells = [
            [each if isinstance(each, Cell) else Text(each) for each in row]
            for row in every[:MOST_ROWS]
        ]

    def without_empty(self) -> Table:
        """Return the table without columns that are empty in all rows."""
        shown = [
            at for at in range(len(self.columns)) if any(row[at].text.strip() for row in self.cells)
        ]
        columns = [self.columns[at] for at in shown]
        rows = [[row[at] for at in shown] for row in self.cells]
        return Table(columns, rows, self.heading, self.left_out)


@dataclass(slots=True)
class Sheet:
    """The content of a view.

    title  : the heading, which may contain stored names
    notes  : sentences below the title
    tables : the tables
    line   : the object on one line, for its repr; with None, the repr is the whole sheet
    empty  : the text if no table has a row
    """

    title: str
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()
    line: str | None = None
    empty: str = ""
    badges: Sequence[Badge] = field(default_factory=tuple)

    @property
    def is_empty(self) -> bool:
        """Whether no table has a row, and there is a text for this case."""
        return bool(self.empty) and not any(table.cells for table in self.tables)


def card(values: Iterable[tuple[object, object]]) -> Table:
    """Return a table of names and values; None is left out."""
    return Table(("", ""), (each for each in values if each[1] is not None))


def listing(
    noun: str,
    columns: Sequence[str],
    found: Collection[T],
    row: Callable[[T], Sequence[object]],
    empty: str,
    several: str = "",
) -> Sheet:
    """Return the view of a collection, with its size as the title; only the first rows are made."""
    rows, left_out = map(row, islice(found, MOST_ROWS)), max(0, len(found) - MOST_ROWS)
    table = Table(columns, rows, left_out=left_out)
    return Sheet(counted(len(found), noun, several), [table], empty=empty)


@dataclass(frozen=True, slots=True)
class Listing(Generic[T]):
    """The views of a list of objects, and of one of them as a table with one row."""

    noun: str
    columns: Sequence[str]
    row: Callable[[T], Sequence[object]]
    line: Callable[[T], str]
    """The object on one line."""
    empty: str
    several: str = ""

    def one(self, shown: T) -> Sheet:
        """Return the view of one object."""
        table = Table(self.columns, [self.row(shown)])
        return Sheet(self.noun.capitalize(), [table], line=self.line(shown))

    def all(self, found: Collection[T]) -> Sheet:
        """Return the view of a list."""
        return listing(self.noun, self.columns, found, self.row, self.empty, self.several)
