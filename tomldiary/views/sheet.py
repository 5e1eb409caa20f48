"""The content of a view before it is rendered: a title, notes, and tables of cells.

Each cell renders itself as HTML and as text. It escapes all stored text, so no control character or tag reaches a
browser or a terminal.
"""

from __future__ import annotations

import html
import re
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line, printable
from tomldiary.toml.values import moment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "Badge",
    "Bar",
    "Cell",
    "Change",
    "Code",
    "Key",
    "Listing",
    "Moment",
    "Several",
    "Sheet",
    "Table",
    "Text",
    "Tone",
    "card",
    "cut",
    "escaped",
    "listing",
    "minute",
    "quiet",
    "quote",
]

T = TypeVar("T")

MOST_ROWS = 50
"""The maximum number of rows of a table."""
MOST_CHARACTERS = 400
"""The maximum number of characters of a text in a cell."""

Tone = Literal["", "good", "bad", "warn"]


class Cell:
    """One cell of a table."""

    __slots__ = ()

    @property
    def text(self) -> str:
        """The cell as text on one line, without control characters."""
        raise NotImplementedError

    def html(self) -> str:
        """The cell as HTML; stored text in it is escaped."""
        raise NotImplementedError


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


@dataclass(frozen=True, slots=True)
class Text(Cell):
    """Stored text; words in it can be marked."""

    value: object
    words: Sequence[str] = ()
    is_quiet: bool = False
    most: int = MOST_CHARACTERS
    """The maximum number of characters in HTML."""

    @property
    def text(self) -> str:
        """The text on one line."""
        return cut(one_line(self.value))

    def html(self) -> str:
        """The text with line breaks, and the words marked."""
        parts = _parts(cut(printable(str(self.value)), self.most), self.words)
        found = "".join(
            f"<mark>{html.escape(part)}</mark>" if number % 2 else html.escape(part)
            for number, part in enumerate(parts)
        )
        return f'<span class="td-q">{found}</span>' if self.is_quiet else found


def _parts(text: str, words: Sequence[str]) -> list[str]:
    """Split a text at the words, without regard to case; every second part is one of them."""
    if not words:
        return [text]
    longest_first = sorted({*words}, key=len, reverse=True)
    choices = "|".join(re.escape(word) for word in longest_first if word)
    edged = rf"(?<![^\W_])(?:{choices})(?![^\W_])" if choices.isascii() else f"(?:{choices})"
    return re.split(f"({edged})", text, flags=re.IGNORECASE) if choices else [text]


def quiet(value: object) -> Text:
    """Return text that is less prominent."""
    return Text(value, is_quiet=True)


@dataclass(frozen=True, slots=True)
class Key(Cell):
    """The key of an entry; a line may break after a slash."""

    value: str

    @property
    def text(self) -> str:
        """The key."""
        return one_line(self.value)

    def html(self) -> str:
        """The key as code."""
        return f"<code>{escaped(cut(self.value, 200)).replace('/', '/<wbr>')}</code>"


@dataclass(frozen=True, slots=True)
class Moment(Cell):
    """A stored time, shown in UTC to the minute."""

    value: object

    @property
    def text(self) -> str:
        """The time."""
        return minute(self.value)

    def html(self) -> str:
        """The time, on one line."""
        return f'<span class="td-t">{html.escape(self.text)}</span>'


@dataclass(frozen=True, slots=True)
class Bar(Cell):
    """A share from 0 to 1 as a bar with its number."""

    share: float
    label: str = ""

    @property
    def text(self) -> str:
        """The number."""
        return self.label or f"{self.share:.2f}"

    def html(self) -> str:
        """The bar; its width is a whole number, never stored text."""
        width = round(100 * min(1.0, max(0.0, self.share)))
        return (
            f'<span class="td-t"><span class="td-bar"><i style="width:{width}%"></i></span>'
            f"{html.escape(self.text)}</span>"
        )


@dataclass(frozen=True, slots=True)
class Badge(Cell):
    """A short label of a state, coloured by its tone."""

    label: str
    tone: Tone = ""

    @property
    def text(self) -> str:
        """The word."""
        return one_line(self.label)

    def html(self) -> str:
        """The word in a coloured frame."""
        return f'<span class="td-badge td-{self.tone or "plain"}">{escaped(cut(self.label, 80))}</span>'


@dataclass(frozen=True, slots=True)
class Change(Cell):
    """The old and new text of a field; None if there is no text. `label` is the name of the field."""

    before: str | None
    after: str | None
    label: str = ""

    @property
    def text(self) -> str:
        """The old text, an arrow, and the new text."""
        head = f"{self.label}: " if self.label else ""
        if self.before is None:
            return f"{head}+ {cut(one_line(self.after))}"
        if self.after is None:
            return f"{head}- {cut(one_line(self.before))}"
        return f"{head}{cut(one_line(self.before))} → {cut(one_line(self.after))}"

    def html(self) -> str:
        """The old text struck in red, the new one in green."""
        old = "" if self.before is None else f"<del>{escaped(cut(self.before))}</del>"
        new = "" if self.after is None else f"<ins>{escaped(cut(self.after))}</ins>"
        head = f'<span class="td-q">{escaped(self.label)}</span> ' if self.label else ""
        return f"{head}{' → '.join(filter(None, (old, new)))}"


@dataclass(frozen=True, slots=True)
class Several(Cell):
    """Several cells, each below the previous one; empty ones are left out."""

    cells: Sequence[Cell]

    @property
    def text(self) -> str:
        """The cells on one line."""
        return "; ".join(cell.text for cell in self.cells if cell.text)

    def html(self) -> str:
        """The cells, one on each line."""
        return "<br>".join(cell.html() for cell in self.cells if cell.text)


@dataclass(frozen=True, slots=True)
class Code(Cell):
    """Lines of TOML, each with `-`, `+` or a space for removed, added and kept."""

    lines: Sequence[tuple[str, str]]

    @property
    def text(self) -> str:
        """The lines on one line."""
        return "; ".join(
            f"{sign} {cut(one_line(line), 80)}" for sign, line in self.lines if sign != " "
        )

    def html(self) -> str:
        """The lines, removed ones red and added ones green."""
        tags = {"-": "del", "+": "ins"}
        rows: list[str] = []
        for sign, line in self.lines:
            tag = tags.get(sign, "span")
            rows.append(f"<{tag}>{sign} {escaped(cut(one_line(line)))}</{tag}>")
        return f"<pre>{''.join(rows)}</pre>"


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


def card(values: Iterable[tuple[object, object]], heading: str = "") -> Table:
    """Return a table of names and values; None is left out."""
    return Table(("", ""), [each for each in values if each[1] is not None], heading)


def listing(
    noun: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    empty: str,
    several: str = "",
) -> Sheet:
    """Return the view of a list, with the number of its rows as the title."""
    every = list(rows)
    return Sheet(counted(len(every), noun, several), [Table(columns, every)], empty=empty)


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
        return Sheet(type(shown).__name__, [table], line=self.line(shown))

    def all(self, found: Iterable[T]) -> Sheet:
        """Return the view of a list."""
        return listing(self.noun, self.columns, map(self.row, found), self.empty, self.several)
