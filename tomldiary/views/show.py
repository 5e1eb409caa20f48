"""Renders an object as HTML or as text, with the function that makes its sheet.

The HTML has no scripts, no links, and no stored text in attributes. Its colours are translucent, so they fit light and
dark pages; the browser cannot detect the theme of a notebook. Selectors repeat the class three times, because
JupyterLab's rules for tables and code have two classes and would align text to the right. Two more classes of the outer
element keep MathJax from rendering `$…$` in stored text as formulas.
"""

from __future__ import annotations

import re
import unicodedata
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tomldiary.errors import DiaryError
from tomldiary.runtime.views import counted
from tomldiary.text.visible import one_line
from tomldiary.views.sheet import Badge, Sheet, cut, escaped

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tomldiary.views.sheet import Cell, Table

_MODULES = ("entries", "history", "reports", "memory")
"""The modules with the makers. The maker of a class is the function `view_` with its name in snake case."""
_MOST_ROWS = 12
_LINE = 72  # the maximum number of characters of an object on one line
_COLUMN = 60  # the maximum number of characters of a cell
_LONG_WORD = 18  # characters
_LEFT = ' style="text-align:left"'
"""JupyterLab removes `<style>` from a notebook that is not trusted, such as another person's, but not this attribute."""
_CAPITAL = re.compile("(?=[A-Z])")

STYLE = """
.td{color:inherit;font:13px/1.45 system-ui,sans-serif;max-width:1000px;overflow-wrap:break-word;margin:4px 0}
.td header{font-size:15px;font-weight:600}
.td p{margin:2px 0;opacity:.75}
.td h4{font-size:13px;font-weight:600;margin:10px 0 2px}
.td table{table-layout:auto;border-collapse:collapse;width:auto;max-width:100%;margin:4px 0 0;font-size:inherit;color:inherit;background:none}
.td th,.td td{text-align:left;vertical-align:top;padding:3px 14px 3px 0;white-space:normal;color:inherit;background:none;border:0;border-bottom:1px solid rgba(128,128,128,.28);min-width:2.5em}
.td tr{background:none}
.td th{font-weight:500;opacity:.65;white-space:nowrap}
.td td{white-space:pre-wrap;unicode-bidi:plaintext}
.td code,.td pre{font:12px/1.5 ui-monospace,monospace;color:inherit;background:none;padding:0;margin:0;white-space:pre-wrap}
.td td.td-w,.td pre{overflow-wrap:anywhere;word-break:normal!important}
.td .td-q{opacity:.65}
.td .td-t{white-space:nowrap;font-variant-numeric:tabular-nums}
.td mark{background:rgba(255,193,7,.38);color:inherit;border-radius:2px;padding:0 1px}
.td ins,.td del{unicode-bidi:isolate}
.td ins{background:rgba(46,160,67,.2);text-decoration:none}
.td del{background:rgba(248,81,73,.2);text-decoration:line-through;text-decoration-color:rgba(248,81,73,.8)}
.td pre ins,.td pre del,.td pre span{display:block;text-decoration:none;padding:0 4px}
.td .td-bar{display:inline-block;width:44px;height:7px;border-radius:4px;background:rgba(128,128,128,.25);margin-right:6px;vertical-align:1px}
.td .td-bar i{display:block;height:100%;border-radius:4px;background:#4c8dd6}
.td .td-badge{display:inline-block;border-radius:9px;padding:0 8px;font-size:12px;font-weight:500;background:rgba(128,128,128,.22)}
.td .td-good{background:rgba(46,160,67,.28)}
.td .td-bad{background:rgba(248,81,73,.3)}
.td .td-warn{background:rgba(255,193,7,.34)}
""".replace("\n", "").replace(".td ", ".td.td.td ")


def sheet_of(shown: Any) -> Sheet:
    """Return the sheet of an object; a subclass is shown like its base.

    Raises:
        TypeError: There is no view for objects of this class.
    """
    makers = [f"view{_CAPITAL.sub('_', kind.__name__).lower()}" for kind in type(shown).__mro__]
    for maker in makers:
        for name in _MODULES:
            make = getattr(import_module(f"tomldiary.views.{name}"), maker, None)
            if make is not None:
                try:
                    return make(shown)
                except DiaryError as error:  # only views of a diary and of a user read the storage
                    badge = Badge("cannot be read", "bad")
                    return Sheet(repr(shown), [], [str(error)], badges=[badge])
    raise TypeError(
        f"there is no view of {type(shown).__name__}. Write {makers[0]} in a module of tomldiary/views."
    )


def as_html(shown: Any) -> str:
    """Return an object as HTML that needs no script; stored text in it is escaped."""
    return _page(sheet_of(shown))


def as_text(shown: Any) -> str:
    """Return an object as text without control characters: one line, or a table for a collection."""
    return _text(shown, sheet_of(shown))


def as_bundle(shown: Any) -> dict[str, str]:
    """Return an object as text and as HTML, by their media types; both are of one moment."""
    sheet = sheet_of(shown)
    return {"text/plain": _text(shown, sheet), "text/html": _page(sheet)}


def _text(shown: Any, sheet: Sheet) -> str:
    return _card(sheet) if sheet.line is None else _line(type(shown).__name__, sheet.line)


# Text for a console


def _line(name: str, text: str) -> str:
    """Return an object on one line: its class and a short text."""
    return f"<{name} {_short(one_line(text), _LINE)}>"


def _card(sheet: Sheet) -> str:
    """Return a sheet with its first rows."""
    marks = "".join(f" [{badge.text}]" for badge in sheet.badges)
    lines = [f"{one_line(sheet.title)}{marks}"]
    lines += [one_line(note) for note in sheet.notes if note]
    for table in sheet.tables:
        if table.cells:
            lines += _text_rows(table)
    if sheet.is_empty and len(lines) == 1:
        lines.append(one_line(sheet.empty))
    return "\n".join(lines)


def _text_rows(table: Table) -> Iterator[str]:
    table = table.without_empty()
    if table.heading:
        yield f"{one_line(table.heading)}:"
    # A line that says "1 more" would be no shorter than the row.
    is_one_more = len(table.cells) == _MOST_ROWS + 1 and not table.left_out
    shown = table.cells if is_one_more else table.cells[:_MOST_ROWS]
    cells = [[_short(cell.text, _COLUMN) for cell in row] for row in shown]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = [
            text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)
        ]
        yield f"  {'  '.join(padded)}".rstrip()
    left_out = table.left_out + len(table.cells) - len(shown)
    if left_out:
        yield f"  … {left_out:,} more"


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else cut(text, most).partition(" … ")[0] + "…"


def _width(text: str) -> int:
    """Return the number of console columns that a text needs."""
    return sum(
        2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in text
        if unicodedata.category(char) not in {"Mn", "Me", "Cf"}  # marks and joiners
    )


# HTML


def _page(sheet: Sheet) -> str:
    """Return a sheet as one HTML element that contains its style."""
    badges = "".join(f" {badge.html}" for badge in sheet.badges)
    parts = [
        '<div class="td tex2jax_ignore mathjax_ignore">',
        f"<style>{STYLE}</style><header>{escaped(sheet.title)}{badges}</header>",
        *(f"<p>{escaped(note)}</p>" for note in sheet.notes if note),
        *(_table(table) for table in sheet.tables if table.cells),
    ]
    if sheet.is_empty:
        parts.append(f"<p>{escaped(sheet.empty)}</p>")
    return "".join([*parts, "</div>"])


def _cell(cell: Cell) -> str:
    """Return a cell; only cells with a long word break within words, so that short words stay whole."""
    words = re.split(r"[\s/]+", cell.text)
    is_long = max(map(len, words)) > _LONG_WORD
    breaks = ' class=td-w style="text-align:left;word-break:break-all"'
    return f"<td{breaks if is_long else _LEFT}>{cell.html}</td>"


def _table(table: Table) -> str:
    table = table.without_empty()
    heads = "".join(f"<th{_LEFT}>{escaped(name)}</th>" for name in table.columns)
    head = f"<thead><tr>{heads}</tr></thead>" if any(table.columns) else ""
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.cells)
    title = f"<h4>{escaped(table.heading)}</h4>" if table.heading else ""
    more = f"<p>… {counted(table.left_out, 'more row')}</p>" if table.left_out else ""
    return f"{title}<table>{head}<tbody>{rows}</tbody></table>{more}"
