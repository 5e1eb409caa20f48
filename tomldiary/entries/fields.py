"""The fields of an entry: its data, its managed fields, and problems of fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, time
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from pydantic_core import to_jsonable_python

from tomldiary.errors import InvalidValue
from tomldiary.text.json_paths import texts_in
from tomldiary.toml.values import (
    NULL_FIELD,
    check_unicode,
    checked_table,
    decode_nulls,
    encode_nulls,
    moment,
    same_value,
    timestamp,
)

if TYPE_CHECKING:
    from tomldiary.entries.kind import EntryKind, Tables
    from tomldiary.toml.document import Path

MAX_KEY = 200
"""The maximum number of characters of a key."""
MAX_SESSION = 1_000
"""The maximum number of characters of a turn's session id, which each entry of the turn repeats."""
NEXT_IDS = "next_ids"
"""The field of `_meta` with the numbers of the next ids."""
COMPACTOR = "compactor"
"""The value of `_updated_by` that a compaction writes, as in TOMLDiary 0.9; it names no session."""
_MANAGED_TIMES = ("_created", "_updated", "_valid_from", "_valid_to", "_expires")
_TURNS = re.compile(r"(?s:(.+))#([0-9]{1,9})(?:-([0-9]{1,9}))?")
_WORDS = {bool: "true or false", str: "text", int: "number", float: "number"}
"""The TOML names of types; `bool` is first, because it is a subclass of `int`."""


class Problem(NamedTuple):
    """An entry or a field that breaks a rule."""

    where: str
    message: str
    remedy: str = "Correct it in the document."


def entry_data(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an entry that are data, without the managed fields."""
    return {
        key: value for key, value in entry.items() if key == NULL_FIELD or not key.startswith("_")
    }


def same_data(left: Mapping[str, Any] | None, right: Mapping[str, Any] | None) -> bool:
    """Return whether two entries have equal data; None is a missing entry."""
    if left is None or right is None:
        return left is right
    return same_value(entry_data(left), entry_data(right))


def data_text(entry: Mapping[str, Any]) -> str:
    """Return the data of an entry as one text, field by field."""
    fields = decode_nulls(entry_data(entry)).items()
    return ", ".join(
        f"{name} = {_plain_text(value)}" for name, value in fields if value is not None
    )


def _plain_text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(_plain_text, cast("list[Any]", value)))
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return " ".join(f"{key} {_plain_text(each)}" for key, each in inner.items())
    return str(value)


def _native(value: Any) -> Any:
    """Return a number, a flag or an array of a DataFrame as the like of Python; pydantic converts all other values."""
    if getattr(getattr(value, "dtype", None), "kind", None) in ("b", "i", "u", "f"):
        return value.tolist()
    raise TypeError(f"Unable to serialize unknown type: {type(value)}")


def plain(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return values in the form that files store.

    Raises:
        InvalidValue: `values` is not a table, or a value cannot be stored.
    """
    stored: dict[str, Any] = {}
    for name, value in checked_table(values, where).items():
        place = f"{where}.{name}" if name else where
        try:
            stored[name] = to_jsonable_python(value, by_alias=True, fallback=_native)
        except UnicodeEncodeError as error:
            check_unicode(error.object, place)
        # A TypeError is raised for NaT of pandas, and a ValueError for bytes and for what contains itself.
        except (ValueError, TypeError) as error:
            raise InvalidValue(
                f"{type(value).__name__} cannot be stored ({error}). Convert it to text, numbers,"
                " lists and tables.",
                where=place,
            ) from None
        for text in texts_in({name: stored[name]}):
            check_unicode(text, place)
    return stored


def tables_at(tables: Tables, *path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the tables below a path by key, in the order of the file; other values are omitted."""
    for key, value in (tables.table(path) or {}).items():
        if isinstance(value, Mapping):
            yield key, cast("Mapping[str, Any]", value)


def with_value(data: dict[str, Any], old: Mapping[str, Any], now: str) -> dict[str, Any]:
    """Return an entry with new data and the managed fields of the old one."""
    kept = {key: item for key, item in old.items() if key.startswith("_") and key != NULL_FIELD}
    kept["_updated"] = updated_at(old, now)
    return encode_nulls({**data, **kept})


def replaced(old: Mapping[str, Any], *, is_part: bool = False) -> dict[str, Any]:
    """Return an entry whose content will be replaced, without the verification and the source of the old content.

    With `is_part`, a part of the old content stays, and with it the source.
    """
    gone = {"_verified"} if is_part else {"_verified", "_source"}
    return {name: value for name, value in old.items() if name not in gone}


def keeps_part(old: Mapping[str, Any], fresh: Mapping[str, Any]) -> bool:
    """Return whether new data have a part of the old: a field with the same value, or a text within a list or table."""
    is_field = any(
        said is not None and name in fresh and same_value(fresh[name], said)
        for name, said in old.items()
    )
    texts = {*texts_in(old, names=False)}
    return is_field or not texts.isdisjoint(texts_in(fresh, names=False))


def updated_at(old: Mapping[str, Any], now: str) -> str:
    """Return the time of the last change of an entry that is changed now; a valid later time stays."""
    known, at = moment(old.get("_updated")), moment(now)
    return now if known is None or at is None or known <= at else timestamp(known)


def last_used(entry: Mapping[str, Any]) -> str:
    """Return the stored time of the last change of an entry; "" if there is none."""
    return str(entry.get("_updated") or entry.get("_created") or "")


def source_of(session: str, first: int, last: int) -> str:
    """Return the turns of a session as `_source` names them: `session#turn`, or `session#first-last`."""
    return f"{session}#{last}" if first == last else f"{session}#{first}-{last}"


SOURCE_HINT = "Give the `source` of a hit, or the id of an episode after `episodes/`."
"""The hint of the error about a source that is not text."""


def bare_source(source: str) -> str:
    """Return a source, of an episode without `episodes/`."""
    return source.removeprefix("episodes/") or source


def shares_turn(source: str, other: str) -> bool:
    """Return whether two sources are equal or name a common turn, as `s1#2-4` and `s1#3` do.

    The id of an episode also names it without `episodes/`.
    """
    if bare_source(source) == bare_source(other):
        return True
    found, named = _TURNS.fullmatch(source), _TURNS.fullmatch(other)
    if found is None or named is None or found[1] != named[1]:
        return False
    first, last, start, end = (
        int(each) for turns in (found, named) for each in (turns[2], turns[3] or turns[2])
    )
    return first <= end and start <= last


def last_turn(source: str, session: str) -> int:
    """Return the number of the last turn that a source names; 0 if it names no turn of the session."""
    found = _TURNS.fullmatch(source)
    return int(found[3] or found[2]) if found is not None and found[1] == session else 0


def author(entry: Mapping[str, Any]) -> str:
    """Return the session that last wrote an entry; "" if none is stored. A compaction is no session."""
    is_compacted = entry.get("_updated_by") == COMPACTOR
    if is_compacted and "_said_by" in entry:  # TOMLDiary 0.9 writes none
        return (said_by(entry) or [""])[-1]
    for name in ("_created_by",) if is_compacted else ("_updated_by", "_created_by"):
        if name in entry:
            return str(entry[name])
    return str(entry.get("_source", "")).rpartition("#")[0]


def said_by(entry: Mapping[str, Any]) -> list[str]:
    """Return the sessions that each wrote a part of an entry; empty for an entry of one session."""
    return text_list(entry.get("_said_by"))


def compacted_from(*entries: Mapping[str, Any]) -> list[str]:
    """Return the sessions whose words are in preferences of which a compaction makes one.

    If a session wrote one after a compaction, the list is none of its own: TOMLDiary 0.9 keeps it.
    """
    named: list[str] = []
    for entry in entries:
        said = said_by(entry) if entry.get("_updated_by") == COMPACTOR else []
        named += said or [author(entry)]
    return [name for name in dict.fromkeys(named) if name]


def also_said_by(entry: Mapping[str, Any], session: str) -> list[str]:
    """Return the sessions that wrote a part of an entry, after `session` changed a part of it."""
    before = said_by(entry) or [author(entry)]
    said = list(dict.fromkeys(name for name in (*before, session) if name))
    return said if said != [session] else []


def signed(
    entry: Mapping[str, Any], old: Mapping[str, Any] | None, session: str, *, is_part: bool
) -> dict[str, Any]:
    """Return an entry that a session changed, with its name.

    Args:
        entry: The changed entry.
        old: The entry before the change, or None.
        session: The session; if "", the entry names no earlier session as the last one either.
        is_part: Whether a part of the old content stays, so that its sessions stay as well.
    """
    fresh = {name: value for name, value in entry.items() if name != "_said_by"}
    if session or "_updated_by" in fresh:
        fresh["_updated_by"] = session
    said = also_said_by(old, session) if is_part and old is not None else []
    return {**fresh, "_said_by": said} if said else fresh


def sessions(kind: EntryKind, path: Path, entry: Mapping[str, Any]) -> set[str]:
    """Return the sessions that are named in an entry."""
    found = {str(entry.get("_created_by", "")), str(entry.get("_updated_by", ""))}
    found.add(str(entry.get("_source", "")).rpartition("#")[0])
    found |= {*said_by(entry), kind.session(path[-1])}
    return found - {"", COMPACTOR}


def toml_word(value: Any) -> str:
    """Return the TOML name of the type of a value."""
    if value is None:
        return "nothing"
    for type_, word in _WORDS.items():
        if isinstance(value, type_):
            return word
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    return "a date or time" if isinstance(value, date | time) else type(value).__name__


_COUNT = "a whole number of at least 0"


def count_of(value: object, default: int) -> int:
    """Return a stored count, or a default for a value that is no whole number of at least 0."""
    return value if type(value) is int and value >= 0 else default


def wrong_fields(
    where: str,
    entry: Mapping[str, Any],
    texts: Iterable[str] = (),
    lists: Iterable[str] = (),
    numbers: Iterable[str] = (),
    flags: Iterable[str] = (),
) -> Iterator[Problem]:
    """Yield the fields of an entry that are not of the type that they must have, such as a time."""
    wanted: list[tuple[Iterable[str], str, Callable[[Any], bool]]] = [
        (texts, "text", lambda value: isinstance(value, str)),
        (lists, "a list of text", lambda value: isinstance(value, list)),
        (numbers, _COUNT, lambda value: count_of(value, -1) >= 0),
        (flags, "true or false", lambda value: isinstance(value, bool)),
        (_MANAGED_TIMES, "a time", lambda value: value == "" or moment(value) is not None),
    ]
    found = [
        (f"{where}.{name}", word, entry[name])
        for names, word, fits in wanted
        for name in names
        if name in entry and not fits(entry[name])
    ]
    for name in lists:
        value: Any = entry.get(name)
        items = cast("list[Any]", value) if isinstance(value, list) else []
        found += [
            (f"{where}.{name}.{number}", "text", item)
            for number, item in enumerate(items)
            if not isinstance(item, str)
        ]
    for place, word, value in found:
        is_negative = word is _COUNT and type(value) is int
        shown = str(value) if is_negative else toml_word(value)
        yield Problem(place, f"expected {word}, found {shown}")


def check_length(
    size: int, longest: int, where: str, what: str = "the text has", hint: str = "Shorten it."
) -> None:
    """Raise InvalidValue if a text has more characters than allowed."""
    if size > longest:
        raise InvalidValue(
            f"{what} {size:,} characters, {longest:,} are allowed. {hint}", where=where
        )


def check_key(key: str, what: str, where: str) -> None:
    """Raise InvalidValue if the key of an entry is empty or too long; `what` begins the sentence."""
    if not 0 < len(key) <= MAX_KEY:
        found = f"{key[:20]!r} with {len(key) - 20:,} more" if key else "none"
        message = f"{what} has 1 to {MAX_KEY} characters, found {found}. Give another one."
        raise InvalidValue(message, where=where)


def check_unmanaged(names: Iterable[str], place: str = "") -> None:
    """Raise InvalidValue for the first name of a managed field; the error begins with `place` and the name."""
    for name in names:
        if name.startswith("_"):
            raise InvalidValue(
                "fields that begin with an underscore belong to the diary. Leave it out.",
                where=f"{place}{name}",
            )


def without_managed(problems: Iterable[Problem]) -> Iterator[InvalidValue]:
    """Yield problems as errors, without those of managed fields, because a person may have changed these."""
    for problem in problems:
        if not problem.where.rpartition(".")[2].startswith("_"):
            yield InvalidValue(f"{problem.message}.", where=problem.where)


def session_turn(place: str, entry: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the session that first wrote an entry, with its position in it; None if there was no session."""
    session = entry.get("_created_by")
    return (session, place) if isinstance(session, str) and session else None


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return the text of an entry, also if it was written as a number by hand; "" if it has none."""
    text = entry.get("text", "")
    return text if isinstance(text, str) else str(text)


def text_list(value: Any) -> list[str]:
    """Return the elements of a list as text; an empty list for another value."""
    return list(map(str, cast("list[Any]", value))) if isinstance(value, list) else []


def escaped_part(key: str) -> str:
    """Return a key as one part of another key, in which slashes separate the parts."""
    return key.replace("%", "%25").replace("/", "%2f")


def reserved_ids(meta: Mapping[str, Any] | None) -> dict[str, int]:
    """Return the numbers of the next ids of the form prefN by category, as the table `_meta` of a document has them."""
    found: Any = (meta or {}).get(NEXT_IDS)
    table = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    return {name: number for name, number in table.items() if isinstance(number, int)}


def number_of(key: str) -> int | None:
    """Return N of an id of the form prefN, or None."""
    digits = key[4:]
    if key.startswith("pref") and digits.isdecimal() and digits.isascii() and len(digits) <= 9:  # noqa: PLR2004
        return int(digits)
    return None
