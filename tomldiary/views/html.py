"""Renders a sheet as HTML without scripts, links or stored text in attributes.

The colours are translucent, so they fit light and dark pages; the browser cannot detect the theme of a notebook.
Selectors repeat the class three times, because JupyterLab's rules for tables and code have two classes and would align
text to the right. Two more classes of the outer element keep MathJax from rendering `$…$` in stored text as formulas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tomldiary.runtime.views import counted
from tomldiary.views.sheet import escaped

if TYPE_CHECKING:
    from tomldiary.views.sheet import Cell, Sheet, Table

__all__ = ["STYLE", "page"]

_LONG_WORD = 18  # characters

STYLE = """
.td{color:inherit;font:13px/1.45 system-ui,sans-serif;max-width:1000px;overflow-wrap:break-word;margin:4px 0}
.td header{font-size:15px;font-weight:600}
.td p{margin:2px 0;opacity:.75}
.td h4{font-size:13px;font-weight:600;margin:10px 0 2px}
.td table{table-layout:auto;border-collapse:collapse;width:auto;max-width:100%;margin:4px 0 0;font-size:inherit;color:inherit;background:none}
.td th,.td td{text-align:left;vertical-align:top;padding:3px 14px 3px 0;white-space:normal;color:inherit;background:none;border:0;border-bottom:1px solid rgba(128,128,128,.28);min-width:2.5em}
.td tr{background:none}
.td th{font-weight:500;opacity:.65;white-space:nowrap}
.td td{white-space:pre-wrap}
.td code,.td pre{font:12px/1.5 ui-monospace,monospace;color:inherit;background:none;padding:0;margin:0;white-space:pre-wrap}
.td td.td-w,.td pre{overflow-wrap:anywhere}
.td .td-q{opacity:.65}
.td .td-t{white-space:nowrap;font-variant-numeric:tabular-nums}
.td mark{background:rgba(255,193,7,.38);color:inherit;border-radius:2px;padding:0 1px}
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


def page(sheet: Sheet) -> str:
    """Return a sheet as one HTML element that contains its style."""
    badges = "".join(f" {badge.html()}" for badge in sheet.badges)
    parts = [
        '<div class="td tex2jax_ignore mathjax_ignore">',
        f"<style>{STYLE}</style><header>{escaped(sheet.title)}{badges}</header>",
        *(f"<p>{escaped(note)}</p>" for note in sheet.notes if note),
        *(_table(table) for table in sheet.tables if table.rows),
    ]
    if sheet.empty and not any(table.rows for table in sheet.tables):
        parts.append(f"<p>{escaped(sheet.empty)}</p>")
    return "".join([*parts, "</div>"])


def _cell(cell: Cell) -> str:
    """Return a cell; only cells with a long word break within words, so that short words stay whole."""
    words = re.split(r"[\s/]+", cell.text)
    is_long = max(map(len, words)) > _LONG_WORD
    return f"<td{' class=td-w' if is_long else ''}>{cell.html()}</td>"


def _table(table: Table) -> str:
    table = table.without_empty()
    heads = "".join(f"<th>{escaped(name)}</th>" for name in table.columns)
    head = f"<thead><tr>{heads}</tr></thead>" if any(table.columns) else ""
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows)
    title = f"<h4>{escaped(table.heading)}</h4>" if table.heading else ""
    more = f"<p>… {counted(table.left_out, 'more row')}</p>" if table.left_out else ""
    return f"{title}<table>{head}<tbody>{rows}</tbody></table>{more}"
