"""Which entries of a document have fields that are wrong or missing, in words of TOML."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from tomldiary.doctor.findings import Finding
from tomldiary.entries.conversations import Conversations
from tomldiary.entries.facts import Facts
from tomldiary.entries.preferences import entry_to_item
from tomldiary.entries.schema import item_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tomldiary.diary import Diary
    from tomldiary.toml.document import Document

__all__ = ["check_entries"]


def check_entries(diary: Diary, place: str, kind: str, document: Document) -> Iterator[Finding]:
    """Find the entries of one document that do not fit the schema or their constraint."""
    if kind == "conversations":
        wrong = (
            problem
            for key, entry in Conversations(document).entries()
            for problem in _wrong_fields(
                f"conversations.{key}", entry, ("summary",), ("keywords",), ("_turns",)
            )
        )
    elif kind == "preferences":
        wrong = _wrong_preferences(diary, document)
    elif kind == "facts":
        for problem in Facts(document, diary.fact_schemas).problems():
            yield Finding("warning", place, str(problem), "Correct it; until then it is not read.")
        return
    else:
        return
    for where, message in wrong:
        yield Finding(
            "warning", place, f"{where}: {message}", "Correct it; reads do what they can."
        )


def _wrong_preferences(diary: Diary, document: Document) -> Iterator[tuple[str, str]]:
    everything = document.table(()) or {}
    short = {key: value for key, value in everything.items() if key not in {"_meta", "preferences"}}
    is_own = (document.table(("_meta",)) or {}).get("schema_name") == diary.schema_name
    for head, tables in (("preferences.", document.table(("preferences",)) or {}), ("", short)):
        for category, entries in tables.items():
            where = f"{head}{category}"
            if not isinstance(entries, Mapping):
                yield where, f"expected a category, found {_word(entries)}"
                continue
            if is_own and category not in diary.allowed:
                yield where, f"{diary.schema_name} has no such category, so nothing reads it"
            for key, entry in cast("Mapping[str, Any]", entries).items():
                if not isinstance(entry, Mapping):
                    yield (
                        f"{where}.{key}",
                        f"expected an entry, found {_word(entry)}; it is left out",
                    )
                    continue
                yield from _wrong_entry(
                    diary, category, f"{where}.{key}", cast("Mapping[str, Any]", entry)
                )


def _wrong_entry(
    diary: Diary, category: str, where: str, entry: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    yield from _wrong_fields(where, entry, ("text",), ("contexts",), ("_count",))
    if "text" not in entry:
        yield f"{where}.text", "expected text, found nothing"
    if category in diary.allowed:
        try:
            entry_to_item(entry, item_type(diary.pref_table_cls, category))
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_input=False):
                field = ".".join(map(str, (where, *problem["loc"])))
                yield field, f"{problem['msg']}; the entry is left out"


def _wrong_fields(
    where: str,
    entry: Mapping[str, Any],
    texts: Iterable[str],
    lists: Iterable[str],
    numbers: Iterable[str],
) -> Iterator[tuple[str, str]]:
    wanted: list[tuple[Iterable[str], str, Callable[[Any], bool]]] = [
        (texts, "text", lambda value: isinstance(value, str)),
        (lists, "a list of text", _is_text_list),
        (numbers, "a number", lambda value: type(value) is int),
        (("_created", "_updated"), "a time", _is_time),
    ]
    for names, word, fits in wanted:
        for name in names:
            if name in entry and not fits(entry[name]):
                yield f"{where}.{name}", f"expected {word}, found {_word(entry[name])}"


def _is_text_list(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(item, str) for item in cast("list[object]", value)
    )


def _is_time(value: Any) -> bool:
    try:
        datetime.fromisoformat(str(value))
    except ValueError:
        return value == ""
    return True


def _word(value: Any) -> str:
    """Return what TOML calls a value of this type."""
    words = {bool: "true or false", str: "text", int: "number", float: "number", list: "a list"}
    if isinstance(value, Mapping):
        return "a table"
    return next((word for kind, word in words.items() if isinstance(value, kind)), "a date or time")
