"""Renders values as TOML text that parses back to equal values, reads times, and checks arguments.

TOML has no null. `encode_nulls` removes None from a table and stores its positions as JSON Pointers (RFC 6901) in
the entry's `_null` field; `decode_nulls` restores it.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from json.encoder import encode_basestring
from math import isfinite, isnan
from numbers import Integral
from sys import float_info, maxsize
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tomldiary.errors import InvalidValue, attribute_hint, wrong_type, wrong_value
from tomldiary.toml.parse import MAX_DEPTH

if TYPE_CHECKING:
    from collections.abc import Callable

K = TypeVar("K")
When = datetime | date | str
"""A time, or a date for its start, also as ISO 8601 text. A time without a zone is in UTC."""
NULL_FIELD = "_null"
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile("[0-9]{1,9}")  # Python converts no text of more than 4300 digits
# Control characters, and those that display text differently from how it is stored
# (bidirectional overrides, line separators, a byte order mark inside the text).
_UNSAFE = (
    "\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028\\u2029\\u202a-\\u202e\\u2066-\\u2069\\ufeff"
)
_ESCAPE = re.compile(f"[{_UNSAFE}]")
_ESCAPE_LINES = re.compile(f'\\\\|"""|"\\Z|(?![\\n\\t])[{_UNSAFE}]')
_SHORT = {
    '"': '\\"',
    "\\": "\\\\",
    "\b": "\\b",
    "\t": "\\t",
    "\f": "\\f",
    "\r": "\\r",
    '"""': '""\\"',
}
# How Python passes on bytes of the command line and of file names that it cannot decode (PEP 383).
_ESCAPED_BYTES = range(0xDC80, 0xDD00)
_MAX_DIGITS = 4000  # Python refuses to read integers of more than 4300 digits
_DEEPEST = MAX_DEPTH - 4  # levels of the value of an entry
_TIMES = (datetime, date, time)
_A_MINUTE = timedelta(minutes=1)
_STARTS = {4: "-01-01", 7: "-01"}
"""What makes a date of a year or a month, by their lengths."""
LONGEST_WAIT = int(TIMEOUT_MAX)
"""The seconds that a thread can wait at most."""
_LISTS = (list, tuple)
_TABLES = (dict, Mapping)  # `dict` first, because the check of an abstract class is slow
# The function that `JSONEncoder(ensure_ascii=False).encode` uses for text.
_quoted = encode_basestring


def _escaped(match: re.Match[str]) -> str:
    found = match.group()
    return _SHORT.get(found) or f"\\u{ord(found):04x}"


def check_unicode(text: str, where: str) -> None:
    """Raise InvalidValue if a text has half of a surrogate pair, which cannot be encoded."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        what = f"half of a surrogate pair (U+{code:04X})"
        if code in _ESCAPED_BYTES:
            what = f"a byte that is not UTF-8 (0x{code - 0xDC00:02X})"
        raise InvalidValue(
            f"the text holds {what} at character {error.start}, which no file can store. Replace or remove it.",
            where=where.encode("utf-8", "replace").decode(),
        ) from None


def render_text(text: str, *, where: str = "") -> str:
    """Return text as a TOML string on one line.

    Raises:
        InvalidValue: The text has half of a surrogate pair; `where` names the field.
    """
    if text.isascii() and "\x7f" not in text:
        return _quoted(text)  # JSON and TOML escape these characters in the same way
    check_unicode(text, where)
    # The frequent escapes come first, because a pattern is slower.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{_ESCAPE.sub(_escaped, escaped)}"'


def render_key(key: str) -> str:
    """Return one key as TOML, quoted only if TOML requires it."""
    # An ASCII identifier is a bare key, and `isidentifier` is faster than the pattern.
    is_name = key.isascii() and key.isidentifier()
    return key if is_name or is_bare(key) else render_text(key, where=key)


def is_bare(key: str) -> bool:
    """Return whether TOML takes a key without quotes."""
    return _BARE_KEY.fullmatch(key) is not None


def render_path(path: Sequence[str]) -> str:
    """Return a dotted path of keys, as in a table header."""
    return ".".join(map(render_key, path))


def render_value(value: Any, *, where: str = "", lines: bool = False, depth: int = 0) -> str:
    """Return one value as TOML, on one line unless `lines` allows multi-line strings.

    Raises:
        InvalidValue: The type does not exist in TOML, a text has half of a surrogate pair, or the nesting is deeper
            than the parser accepts; `where` names the field.
    """
    if isinstance(value, str):
        if lines and "\n" in value:
            check_unicode(value, where)
            return f'"""\n{_ESCAPE_LINES.sub(_escaped, value)}"""'
        return render_text(value, where=where)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if abs(value) >> 64 and value.bit_length() > _MAX_DIGITS * 3.32:
            raise InvalidValue(
                f"an integer of more than {_MAX_DIGITS} digits. Store it as text.", where=where
            )
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)  # also nan, inf and -inf, which TOML writes as Python does
    if isinstance(value, _TIMES):
        return _render_time(value, where)
    if depth >= MAX_DEPTH - 1:
        raise InvalidValue(f"nested deeper than {MAX_DEPTH - 1}. Flatten it.", where=where)
    if isinstance(value, _LISTS):
        items = [
            render_value(item, where=_join(where, str(index)), depth=depth + 1)
            for index, item in enumerate(cast("Sequence[Any]", value))
        ]
        return f"[{', '.join(items)}]"
    if isinstance(value, _TABLES):
        items = [
            f"{_checked_key(key, where)} = {render_value(item, where=_join(where, key), depth=depth + 1)}"
            for key, item in cast("Mapping[Any, Any]", value).items()
        ]
        return f"{{ {', '.join(items)} }}" if items else "{}"
    kind = cast("type[object]", type(value))
    found = "nothing (null)" if value is None else kind.__name__
    if hasattr(builtins, found) and kind.__module__ != "builtins":  # such as numpy's bool
        found = f"{kind.__module__}.{found}"
    raise InvalidValue(
        f"expected text, a number, true or false, a list or a table, found {found}. Use one of these.",
        where=where,
    )


def json_value(value: Any) -> Any:
    """Return a value as JSON values: times as ISO 8601, `nan`, `inf` and other objects as text."""
    if isinstance(value, _TABLES):
        table = cast("Mapping[Any, Any]", value)
        return {key: json_value(item) for key, item in table.items()}
    if isinstance(value, _LISTS):
        return [json_value(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, _TIMES):
        return value.isoformat()
    is_number = isinstance(value, int) or (isinstance(value, float) and isfinite(value))
    return value if value is None or is_number or isinstance(value, str) else str(value)


def storable_copy(value: Any, where: str) -> dict[str, Any]:
    """Return a deep copy of a table that can be stored and is read back equal.

    Raises:
        InvalidValue: It is no table, or contains a value that TOML cannot represent; names the place.
    """
    if not isinstance(value, _TABLES):
        raise wrong_type(value, "a table", where)
    return _as_read_back(value, where, 0)


def _as_read_back(value: Any, where: str, depth: int) -> Any:
    if depth > _DEEPEST and isinstance(value, (*_LISTS, Mapping)):
        # Also reached by a value that contains itself.
        raise InvalidValue(f"nested deeper than {_DEEPEST}. Flatten it.", where=where[:200])
    if isinstance(value, _TABLES):
        table: dict[str, Any] = {}
        for key, item in cast("Mapping[Any, Any]", value).items():
            if not isinstance(key, str):
                raise wrong_type(key, "text as a key", where)
            name = key if type(key) is str and key.isascii() else _scalar(key, f"{where}.{key}")
            # Checked here first, because most values are plain, and the text of a place is slow to make.
            is_plain = _is_plain(item)
            table[name] = item if is_plain else _as_read_back(item, f"{where}.{key}", depth + 1)
        return table
    if isinstance(value, _LISTS):
        return [
            item if _is_plain(item) else _as_read_back(item, f"{where}.{index}", depth + 1)
            for index, item in enumerate(cast("Sequence[Any]", value))
        ]
    return _scalar(value, where)


def _is_plain(value: Any) -> bool:
    """Return whether a value surely can be stored and is read back equal; the check is fast."""
    kind: type[Any] = type(value)  # pyright: ignore[reportUnknownVariableType] - any JSON value
    if kind is str:
        return bool(value.isascii())
    if kind is float:
        return bool(value == value)  # noqa: PLR0124 - False for NaN
    return kind is bool or value is None or (kind is int and -maxsize <= value <= maxsize)


def _scalar(value: Any, where: str) -> Any:
    """Return a scalar as it is read back from a file, without its subclass and its named zone."""
    if isinstance(value, float):
        if isnan(value):
            raise InvalidValue(f"{value!r} is not a number. Use null or a text.", where=where)
        return float(value)
    if isinstance(value, str):
        check_unicode(value, where)
        return str.__str__(value)
    text = render_value(value, where=where)  # raises an error for other types
    if isinstance(value, int):
        return int(value)
    kind = next(each for each in _TIMES if isinstance(value, each))
    return kind.fromisoformat(text)


def render_block(path: tuple[str, ...], data: Mapping[str, Any], *, newline: str = "\n") -> str:
    """Return a table as TOML: its header and one `key = value` line for each key."""
    head = f"[{render_path(path)}]\n" if path else ""
    return f"{head}{''.join(render_lines(path, data).values())}".replace("\n", newline)


def render_lines(path: tuple[str, ...], data: Mapping[str, Any]) -> dict[str, str]:
    """Return the `key = value` line for each key of a table, which ends with a line break."""
    place = f"{'.'.join(path)}." if path else ""
    lines: dict[str, str] = {}
    for key, value in data.items():
        name = render_key(key)  # its error comes first, because that of the value contains the key
        # Checked here first, because most values are such texts, and two calls for each are slow.
        if type(value) is str and value.isascii() and "\n" not in value and "\x7f" not in value:
            text = _quoted(value)
        else:
            text = render_value(value, where=place + key, lines=True)
        lines[key] = f"{name} = {text}\n"
    return lines


_IDS = ("id", "key", "keys", "name")
"""Names of arguments that name an entry."""


def checked_text(value: object, where: str, hint: str = "") -> str:
    """Return a text as a plain `str`, because subclasses such as enums may print as another text.

    Raises:
        InvalidValue: The value is not a string; the message ends with `hint`, or names the attribute to give.
    """
    if not isinstance(value, str):
        names = ("full_key", "key", "id") if where in _IDS else (where,)
        hint = hint or attribute_hint(value, *names)
        raise wrong_type(value, "text", where, hint)
    return value if type(value) is str else str.__str__(value)


def checked_table(value: object, where: str) -> Mapping[str, Any]:
    """Return a table unchanged.

    Raises:
        InvalidValue: The value is not a table, or one of its keys is not a string.
    """
    if not isinstance(value, Mapping):
        raise wrong_type(value, "a table", where)
    for name in cast("Mapping[Any, Any]", value):
        checked_text(name, where)
    return cast("Mapping[str, Any]", value)


def checked_count(value: object, where: str, *, least: int = 0) -> int:
    """Return a whole number as an int.

    Raises:
        InvalidValue: The value is not a whole number, or less than `least`.
    """
    # A DataFrame has whole numbers of other types than int.
    is_whole = type(value) is int or (not isinstance(value, bool) and isinstance(value, Integral))
    if not is_whole or cast("int", value) < least:
        raise wrong_value(value, f"a whole number of at least {least}", where)
    return int(cast("int", value))


def checked_flag(value: object, where: str) -> bool:
    """Return True or False unchanged; a text such as "no" would count as True.

    Raises:
        InvalidValue: The value is neither.
    """
    if not isinstance(value, bool):
        raise wrong_value(value, "True or False", where)
    return value


def checked_names(value: object, where: str) -> tuple[str, ...]:
    """Return the names that an option gives as a single string or as an iterable.

    Raises:
        InvalidValue: The value is neither, or one of its elements is not a string.
    """
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Iterable) or isinstance(names, bytes):
        raise wrong_value(value, "a list of names", where)
    return tuple(checked_text(name, where) for name in cast("Iterable[object]", names))


def check_instance(value: object, where: str) -> None:
    """Raise InvalidValue for a class, which has the methods of its instances and fails when they are called."""
    if isinstance(value, type):
        name = value.__name__
        raise InvalidValue(f"{name} is a class. Give an instance of it: {name}(…).", where=where)


def checked_limit(value: object, where: str = "limit", *, least: int = 0) -> int | None:
    """Return a limit, which is a whole number of at most `sys.maxsize`, or None for no limit.

    Raises:
        InvalidValue: The value is neither, or less than `least`.
    """
    return None if value is None else min(checked_count(value, where, least=least), maxsize)


def checked_number(value: Any, where: str, expected: str, fits: Callable[[float], bool]) -> float:
    """Return a finite number unchanged.

    Raises:
        InvalidValue: The value is not a finite number, or `fits` returns False for it.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not abs(value) <= float_info.max or not fits(value):
        raise wrong_value(value, expected, where)
    return value


def checked_seconds(value: object, where: str) -> float | None:
    """Return a duration in seconds, or None, unchanged.

    Raises:
        InvalidValue: The value is not a number above 0, or larger than `LONGEST_WAIT`.
    """
    return None if value is None else checked_pause(value, where, ", or None")


def checked_pause(value: object, where: str, also: str = "") -> float:
    """Return a duration in seconds unchanged.

    Args:
        value: The duration.
        where: The name of the argument.
        also: Further allowed values, for the error.

    Raises:
        InvalidValue: The value is not a number above 0, or larger than `LONGEST_WAIT`.
    """
    expected = f"more than 0 seconds and at most {LONGEST_WAIT:,}{also}"
    return checked_number(value, where, expected, lambda each: 0 < each <= LONGEST_WAIT)


def check_timeout(value: object) -> None:
    """Raise InvalidValue for a `timeout` that is neither a number of seconds up to `LONGEST_WAIT` nor None."""
    if value is not None:
        expected = f"a number of seconds, at most {LONGEST_WAIT:,}, or None"
        checked_number(value, "timeout", expected, lambda each: each <= LONGEST_WAIT)


def _checked_key(key: Any, where: str) -> str:
    if not isinstance(key, str):
        raise wrong_type(key, "text as a key", where)
    return render_key(key)


def _join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def _render_time(value: date | time, where: str) -> str:
    # The methods of the base classes, because a subclass could return any text.
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise InvalidValue(
                "TOML cannot write a time of day with a zone. Add the date, or leave out the zone.",
                where=where,
            )
        return time.isoformat(value)
    if not isinstance(value, datetime):
        return date.isoformat(value)
    if value != value:  # noqa: PLR0124 - NaT of pandas
        raise InvalidValue(f"{value!r} is not a time. Use null or a text.", where=where)
    offset = value.utcoffset()
    if offset is not None and offset % _A_MINUTE:
        raise InvalidValue(
            f"TOML cannot write the zone {offset}, because it has seconds. Convert the time to UTC.",
            where=where,
        )
    return datetime.isoformat(value)


def moment(written: Any) -> datetime | None:
    """Return a time of type `When` in UTC, or None if it is invalid; a date means its start."""
    found = written
    try:
        if isinstance(found, str):
            found = datetime.fromisoformat(found)
        elif isinstance(found, datetime):
            # Without the methods of a subclass: a Timestamp of pandas writes nanoseconds, and NaT is no time.
            found = datetime.combine(found.date(), found.timetz())
        elif isinstance(found, date):
            found = datetime.combine(found, time())
        if isinstance(found, datetime):
            return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        pass  # not a time, or outside of the years 1 to 9999 in UTC
    return None


def in_utc(given: When, where: str = "") -> datetime:
    """Return a time of type `When` in UTC, like `moment`.

    Raises:
        InvalidValue: The value is not a time; the error begins with `where`.
    """
    found = moment(given)
    if found is None:
        raise wrong_value(given, "a time such as 2026-11-20T12:00", where)
    return found


def start_of(given: When, where: str = "") -> datetime:
    """Return a time as `in_utc` does; a year or a month, as in "2026" or "2026-11", means its start.

    Raises:
        InvalidValue: The value is not a time; the error begins with `where`.
    """
    text = given if isinstance(given, str) else ""
    missing = _STARTS.get(len(text), "")
    found = moment(f"{text}{missing}") if missing and moment(text) is None else None
    return in_utc(given, where) if found is None else found


def in_own_zone(given: When, where: str = "") -> datetime:
    """Return a time of type `When` with its own distance from UTC, or in UTC if it has none.

    Raises:
        InvalidValue: The value is not a time; the error begins with `where`.
    """
    found = in_utc(given, where)
    own = datetime.fromisoformat(given) if isinstance(given, str) else given
    distance = own.utcoffset() if isinstance(own, datetime) else None
    return found if distance is None else found.astimezone(timezone(distance))


def timestamp(now: When | None = None) -> str:
    """Return an ISO 8601 time in UTC with microseconds, as stored in the files."""
    when = datetime.now(UTC) if now is None else in_utc(now, "now")
    # The default format is faster, and omits the microseconds only if they are zero.
    return when.isoformat() if when.microsecond else when.isoformat(timespec="microseconds")


def same_value(left: Any, right: Any) -> bool:
    """Return whether two parsed values are equal in value and type; NaN equals NaN, and -0.0 is not 0.0."""
    if left is right:
        return True
    kind: type[Any] = type(left)  # pyright: ignore[reportUnknownVariableType] - any TOML value
    if kind is not type(right):
        # A tuple is compared as a list, and any mapping as a table.
        if isinstance(left, _LISTS) and isinstance(right, _LISTS):
            return _same_items(list(left), list(right))  # pyright: ignore[reportUnknownArgumentType] - any TOML value
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            return same_value(dict(left), dict(right))  # pyright: ignore[reportUnknownArgumentType] - any TOML value
        return False
    if kind is dict:
        others = map(right.__getitem__, left)  # pyright: ignore[reportUnknownArgumentType] - any TOML value
        return left.keys() == right.keys() and all(map(same_value, left.values(), others))
    if kind is list or kind is tuple:
        return _same_items(left, right)
    if kind is float:
        return repr(left) == repr(right)
    return bool(left == right)


def _same_items(left: Sequence[Any], right: Sequence[Any]) -> bool:
    return len(left) == len(right) and all(map(same_value, left, right))


def changed_keys(old: Mapping[K, Any], new: Mapping[K, Any]) -> list[K]:
    """Return the keys whose values differ, first those of `old`; a missing value is None."""
    return [key for key in {**old, **new} if not same_value(old.get(key), new.get(key))]


_SCALARS = frozenset({str, int, float, bool})
"""Types of values that are not null and have no null in them."""


def encode_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` without None; the positions of None are stored in `_null`."""
    if _SCALARS.issuperset(map(type, data.values())):
        return dict(data)
    found: list[str] = []
    encoded: dict[str, Any] = _without_nulls(data, "", found)
    if found:
        encoded[NULL_FIELD] = found
    return encoded


def decode_nulls(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with the None values that `encode_nulls` removed; invalid pointers are ignored."""
    if NULL_FIELD not in data:
        return dict(data)
    # Copies, because a null must never be written into the cached document.
    decoded = {key: copied(value) for key, value in data.items() if key != NULL_FIELD}
    pointers = data[NULL_FIELD]
    for pointer in cast("list[Any]", pointers) if isinstance(pointers, list) else []:
        if isinstance(pointer, str) and pointer.startswith("/"):
            parts = pointer[1:].split("/")
            _place_null(decoded, [each.replace("~1", "/").replace("~0", "~") for each in parts])
    return decoded


_GONE = object()


def _token(key: Any) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _without_nulls(value: Any, pointer: str, found: list[str]) -> Any:
    if value is None:
        found.append(pointer)
        return _GONE
    if isinstance(value, Mapping):
        table = {
            key: _without_nulls(item, f"{pointer}/{_token(key)}", found)
            for key, item in cast("Mapping[str, Any]", value).items()
        }
        return {key: item for key, item in table.items() if item is not _GONE}
    if isinstance(value, _LISTS):
        items = [
            _without_nulls(item, f"{pointer}/{index}", found)
            for index, item in enumerate(cast("Sequence[Any]", value))
        ]
        # A list keeps its length, so an empty text replaces the null.
        return ["" if item is _GONE else item for item in items]
    return value


def copied(value: Any) -> Any:
    """Return a deep copy of a value from a document."""
    if isinstance(value, dict):
        return {key: copied(item) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [copied(item) for item in cast("list[Any]", value)]
    return value


def _place_null(target: Any, parts: list[str]) -> None:
    for part in parts[:-1]:
        if isinstance(target, dict):
            target = cast("dict[str, Any]", target).get(part)
        elif isinstance(target, list) and _INDEX.fullmatch(part):
            items = cast("list[Any]", target)
            target = items[int(part)] if int(part) < len(items) else None
        else:
            return
    last = parts[-1]
    if isinstance(target, dict):
        cast("dict[str, Any]", target).setdefault(last, None)
    elif isinstance(target, list) and _INDEX.fullmatch(last):
        items = cast("list[Any]", target)
        if int(last) < len(items) and items[int(last)] == "":
            items[int(last)] = None
