"""The rules of a type of facts: its model and its constraint.

The key of a fact is derived from its singleton key, so that there is at most one fact for each singleton key. Keys are
readable: text values are unchanged, except for `%` and `/`, which are percent-encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args, get_origin

from pydantic import BaseModel, Secret, SecretBytes, SecretStr, ValidationError
from pydantic_core import PydanticSerializationError

from tomldiary.entries.fields import MAX_KEY, check_unmanaged, escaped_part, plain, toml_word
from tomldiary.entries.schema import names_read, weight_of
from tomldiary.errors import InvalidValue, SchemaError, wrong_type, wrong_value
from tomldiary.text.json_paths import inner_value
from tomldiary.text.visible import compatible
from tomldiary.toml.values import (
    checked_flag,
    checked_limit,
    checked_names,
    checked_table,
    checked_text,
    decode_nulls,
    encode_nulls,
    render_value,
)

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SECRET: tuple[Any, ...] = (Secret, SecretBytes, SecretStr)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_WORDS = re.compile(r"[^\W_]+")

_DEEPEST = 2
"""How many objects within each other a description of a type shows, because types that name each other have no end."""
_EXPECTED = {
    "string": "text",
    "int": "a whole number",
    **dict.fromkeys(("float", "decimal"), "a number"),
    "bool": "true or false",
    **dict.fromkeys(("list", "tuple", "set"), "a list"),
    **dict.fromkeys(("model", "dict", "mapping"), "a table"),
    "datetime": "a time",
    "date": "a date",
    "time": "a time of day",
}
"""The expected type of pydantic's errors, by the first word of their types."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """The constraint of a type of facts, in addition to its model, or of another collection of entries.

    Args:
        singleton_key: The field or fields that identify a fact. There is one fact for equal values, and committing
            another one replaces it. Inner fields are written with dots.
        immutable: Whether facts can be changed or removed only by `forget`.
        temporal: Whether each fact is valid for an interval. A new fact ends the previous one instead of
            overwriting it.
        limit: The maximum number of facts that hold at once; None for no limit.
        multi_valued: The values of the last field of the singleton key for which several facts may hold. Each maps to
            the field that distinguishes these facts: `{"likes": "object"}`.
        normalise: The fields whose text is compared without case, spaces and punctuation: `Name-Is`, `nameIs` and
            `name_is` are equal. A fact that is said again keeps its spelling. Inner fields are not supported.
        append_only: Whether texts and lists can only grow. Only `forget` removes a part of them.
        required: The fields that must have a value. Inner fields are written with dots.
        ttl: The lifetime of an entry after its last change; None for no limit. Expired entries are neither recalled
            nor rendered, and the user's next write removes them.

    Raises:
        SchemaError: The options contradict each other, or one has an invalid value.
    """

    singleton_key: str | Sequence[str] | None = None
    immutable: bool = False
    temporal: bool = False
    limit: int | None = None
    multi_valued: Mapping[str, str] | None = None
    normalise: str | Sequence[str] = ()
    append_only: bool = False
    required: str | Sequence[str] = ()
    ttl: timedelta | None = None

    def __post_init__(self) -> None:
        try:
            self._check_types()
        except InvalidValue as error:
            raise SchemaError(str(error)) from None
        if self.immutable and self.temporal:
            raise SchemaError(
                "immutable and temporal exclude each other: what replaces a fact has to end it."
            )
        if self.append_only and self.temporal:
            raise SchemaError(
                "append_only and temporal exclude each other: a fact ends where another begins."
            )
        if self.multi_valued and not self.keys:
            raise SchemaError(
                "multi_valued needs a singleton_key: it maps values of its last field."
            )

    def _check_types(self) -> None:
        """Raise InvalidValue for an option of another type."""
        single = () if self.singleton_key is None else self.singleton_key
        named = {"singleton_key": single, "normalise": self.normalise, "required": self.required}
        for name, given in named.items():
            if isinstance(given, Iterator):  # it can be read only once
                raise wrong_type(given, "a list of names", name)
            checked_names(given, name)
        for name in ("immutable", "temporal", "append_only"):
            checked_flag(getattr(self, name), name)
        several = checked_table(
            {} if self.multi_valued is None else self.multi_valued, "multi_valued"
        )
        for value, field in several.items():
            checked_text(field, f"multi_valued.{value}")
        checked_limit(self.limit, least=1)
        ttl: Any = self.ttl
        if ttl is not None and (not isinstance(ttl, timedelta) or ttl <= timedelta(0)):
            raise wrong_value(ttl, "a timedelta longer than zero", "ttl")

    @property
    def keys(self) -> tuple[str, ...]:
        """The fields of the singleton key, if any."""
        return _names(self.singleton_key)

    @property
    def required_fields(self) -> tuple[str, ...]:
        """The fields that must have a value."""
        return _names(self.required)

    @property
    def limits_fields(self) -> bool:
        """Whether an option limits the fields of one entry, which each commit checks for facts too."""
        return self.append_only or bool(self.required_fields)

    @property
    def normalised(self) -> tuple[str, ...]:
        """The fields whose text is compared in its normal form."""
        return _names(self.normalise)


def _names(given: str | Sequence[str] | None) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given or ())


def checked_constraint(given: object) -> Constraint:
    """Return a constraint unchanged.

    Raises:
        SchemaError: The value is not a `Constraint`.
    """
    if not isinstance(given, Constraint):
        raise SchemaError(f"expected a Constraint(…), found {given!r}.")
    return given


def names_type(name: object) -> bool:
    """Return whether a type of facts may have this name."""
    return isinstance(name, str) and bool(name) and "/" not in name and not name.startswith("_")


@dataclass(frozen=True)
class FactSchema:
    """One registered type of facts: its name, pydantic model and constraint.

    Raises:
        SchemaError: The name, the model or its weight is invalid, or the model lacks a field of the constraint.
    """

    name: str
    model: type[BaseModel]
    constraint: Constraint

    def __post_init__(self) -> None:
        model: Any = self.model
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or model is BaseModel:
            raise SchemaError(f"{self.name}: expected a pydantic model class, found {model!r}.")
        if self.model.__pydantic_root_model__:
            raise SchemaError(
                f"{self.name}: {model.__name__} has no fields. Use a model with fields."
            )
        if not names_type(self.name):
            raise SchemaError(
                f"{self.name!r} cannot name a type of facts. Use a word without a slash that does not"
                " begin with an underscore."
            )
        wrong = [name for name in self.fields if name.startswith("_")]
        if wrong:
            raise SchemaError(
                f"{self.name}.{wrong[0]}: fields that begin with an underscore belong to the diary."
                " Choose another alias."
            )
        hidden = [
            name
            for name, field in self.model.model_fields.items()
            if field.exclude or any(each in _SECRET for each in _types(field.annotation))
        ]
        if hidden:
            raise SchemaError(
                f"{self.name}.{hidden[0]}: pydantic hides its value when it writes the fact, so it would be lost."
                " Use no secret type and no exclude=True."
            )
        rules = checked_constraint(self.constraint)
        named = {"singleton key": rules.keys, "normalised field": rules.normalised}
        named["field of multi_valued"] = tuple((rules.multi_valued or {}).values())
        if not self.is_open:
            named["required field"] = tuple(k for k in rules.required_fields if k[:1] != "_")
        for what, keys in named.items():
            for key in keys:
                field = key if what == "normalised field" else self.field_of(key)
                if field not in self.fields:
                    raise SchemaError(
                        f"{self.name}: the {what} {key!r} is no field of {model.__name__}. It has:"
                        f" {', '.join(self.fields)}."
                    )

        self.weight  # noqa: B018 - raises an error if it is invalid

    @cached_property
    def weight(self) -> float:
        """The weight of the type, which decides its share of a budget.

        Set it in the model with `model_config = ConfigDict(json_schema_extra={"weight": 3})`; the default is 1.
        """
        return weight_of(self.model.model_config.get("json_schema_extra"), self.name)

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields by their names in the file, with their defaults."""
        return {
            field.serialization_alias or name: field.get_default(call_default_factory=False)
            for name, field in self.model.model_fields.items()
        }

    @cached_property
    def always_stored(self) -> set[str]:
        """The fields that every entry of this version of the model has in the file: those whose default is not None."""
        fields = self.model.model_fields.items()
        return {
            field.serialization_alias or name for name, field in fields if field.default is not None
        }

    @property
    def is_open(self) -> bool:
        """Whether the model allows extra fields."""
        return self.model.model_config.get("extra") == "allow"

    @cached_property
    def described(self) -> str:
        """The description of the type for a model, in one line: its name, docstring and fields."""
        notes = ["temporal" if self.constraint.temporal else "", self.model.__doc__ or ""]
        about = " ".join("; ".join(filter(None, notes)).split())
        schema = self.model.model_json_schema(by_alias=True)
        named: dict[str, Any] = schema.get("$defs", {})
        # A model that contains itself is a definition, too.
        schema = named.get(_reference(schema), schema)
        known: dict[str, Any] = schema.get("properties", {})
        needed: list[str] = schema.get("required", [])
        fields = "; ".join(
            _described(name, each, named, is_needed=name in needed) for name, each in known.items()
        )
        return f"{self.name}{f' ({about})' if about else ''}: {fields}"

    def only_text(self) -> str | None:
        """Return the only text field that does not identify a fact; None if there is not exactly one."""
        texts = [
            each.serialization_alias or name
            for name, each in self.model.model_fields.items()
            if each.annotation is str and name not in self.constraint.keys
        ]
        return texts[0] if len(texts) == 1 else None

    def field_of(self, path: str) -> str:
        """Return the field that a dotted path begins with; the alias of a field may have dots itself."""
        return path if path in self.fields else path.partition(".")[0]

    def check_fields(self, names: Sequence[str]) -> None:
        """Raise InvalidValue if the model lacks a field, because its value would be lost without an error."""
        for name in names:
            if name not in self.fields and not self.is_open:
                raise InvalidValue(
                    f"{self.model.__name__} has no such field. It has: {', '.join(self.fields)}.",
                    where=f"{self.name}.{name}",
                )

    def checked_fields(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Validate given fields as `checked` does; raise InvalidValue also for one that is managed or that the model lacks."""
        check_unmanaged(fields, f"{self.name}.")
        self.check_fields(list(fields))
        return self.checked(fields)

    def data(self, fact: BaseModel) -> dict[str, Any]:
        """Return the fields of a fact as stored in the file; the fact is not changed.

        Raises:
            InvalidValue: Fields do not fit the model, and the error names all of them; or the fact is an instance of
                a subclass with a field that the model lacks.
        """
        try:
            data = _as_json(fact)
        except (PydanticSerializationError, TypeError, UnicodeError):
            plain(fact.model_dump(by_alias=True, warnings=False), self.name)  # names the field
            raise
        except ValueError:  # a value contains itself, so pydantic cannot dump it
            plain(dict(fact), self.name)
            raise
        fields = plain(data, self.name)
        check_unmanaged(fields, f"{self.name}.")
        # A subclass may have further fields.
        return self.checked(fields) if type(fact) is self.model else self.checked_fields(fields)

    def checked(self, data: Mapping[str, Any], *, is_stored: bool = False) -> dict[str, Any]:
        """Validate data with the model, and return it as stored in the file.

        Args:
            data: The fields.
            is_stored: Keep the fields that the model lacks, which another version of the program may have stored.

        Raises:
            InvalidValue: Fields do not fit the model; the error names all of them.
        """
        stored = _as_json(self.parse(data))
        if is_stored:
            known = {*self.fields, *names_read(self.model)}
            stored = {**{key: data[key] for key in data if key not in known}, **stored}
        # None is not stored if it is the default of the field.
        return encode_nulls(
            {
                key: value
                for key, value in stored.items()
                if not (value is None and key in self.fields and self.fields[key] is None)
            }
        )

    def parse(self, entry: Mapping[str, Any], where: str = "") -> Any:
        """Return an entry as an instance of the model.

        Args:
            entry: The fields; those that begin with an underscore are ignored.
            where: The place of the entry for errors; the type's name if empty.

        Raises:
            InvalidValue: Fields do not fit the model; the error names all of them with their TOML types.
        """
        known = {key: value for key, value in decode_nulls(entry).items() if key[:1] != "_"}
        try:
            text = json.dumps(known, default=lambda each: each.isoformat())
        except ValueError as error:
            # An integer of more digits than Python converts.
            message = f"an integer cannot be stored ({error}). Store it as text."
            raise InvalidValue(message, where=where or self.name) from None
        try:
            # As JSON, because then strict models also accept a date as text.
            return self.model.model_validate_json(text)
        except ValidationError as error:
            raise explained(error, where or self.name) from None

    def types_at(self, name: str) -> list[Any]:
        """Return the types that the annotation of a field consists of; for a path into a table, those of the table.

        Inner fields are dotted paths. An unknown field has none.
        """
        types: list[Any] = [self.model]
        for part in [name] if name in self.fields else name.split("."):
            models = [
                each for each in types if isinstance(each, type) and issubclass(each, BaseModel)
            ]
            if not models:
                break
            types = [
                each
                for model in models
                for key, field in model.model_fields.items()
                if (field.serialization_alias or key) == part
                for each in _types(field.annotation)
            ]
        return types

    def as_read(
        self, entry: Mapping[str, Any], names: Iterable[str], read: dict[str, Any] | None
    ) -> Mapping[str, Any]:
        """Return an entry with the values that its model reads, if its file may lack one of the fields `names`.

        Args:
            entry: A valid entry.
            names: Fields; inner fields are dotted paths. Fields whose default is None count as empty, not as missing,
                unless the entry has a field that the model lacks, which may be an earlier name.
            read: Keeps the values that the model reads for the next call; None keeps none.
        """
        for name in names:
            outer, value = self.field_of(name), inner_value(entry, name)
            if value is not None and not isinstance(value, Mapping):
                continue
            if outer in entry or outer in self.always_stored or self._lacks_field_of(entry):
                read = {} if read is None else read
                if not read:
                    read.update(self.checked(entry))
                return {**entry, **read}
        return entry

    def _lacks_field_of(self, entry: Mapping[str, Any]) -> bool:
        return any(name[:1] != "_" and name not in self.fields for name in entry)

    def key_fields(self, data: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the fields of a fact from which its key is derived."""
        names, compared = self.constraint.keys, self.compared(data)
        several = self.constraint.multi_valued or {}
        if several:
            normal = names[-1] in self.constraint.normalised
            known = {
                normal_form(value) if normal else value: field for value, field in several.items()
            }
            value = compared.get(names[-1])
            if isinstance(value, str) and value in known:
                return (*names, known[value])
        return names

    def singleton(self, data: Mapping[str, Any]) -> str | None:
        """Return the key of a fact from its singleton key; None if the type has none.

        Raises:
            InvalidValue: A field of the key is empty, a list or a table, or too long.
        """
        if not self.constraint.keys:
            return None
        names, compared = self.key_fields(data), self.compared(data)
        key = "/".join(_key_part(compared, name, f"{self.name}.{name}") for name in names)
        if len(key) > MAX_KEY:
            raise InvalidValue(
                f"a singleton key has at most {MAX_KEY} characters, this one has {len(key)}. Shorten the value.",
                where=f"{self.name}.{self.constraint.keys[0]}",
            )
        return key

    def compared(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return data in the form in which facts are compared, with texts in normal form."""
        found = dict(data)
        for name in self.constraint.normalised:
            if isinstance(found.get(name), str):
                found[name] = normal_form(found[name])
        return found


def _as_json(fact: BaseModel) -> Any:
    """Return the fields of a fact as JSON values; infinity and NaN, which JSON lacks, stay numbers."""
    stored = fact.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    # pydantic turns them into None where a field has no type, and a call cannot prevent it.
    return _with_infinity(stored, fact.model_dump(by_alias=True, round_trip=True, warnings=False))


def _with_infinity(stored: Any, given: Any) -> Any:
    """Return a JSON value, with infinity and NaN of the value that it was made from in place of None."""
    if stored is None and isinstance(given, float) and not isfinite(given):
        return float(given)
    # By position, because keys become text.
    if isinstance(stored, dict) and isinstance(given, Mapping):
        table, old = cast("dict[str, Any]", stored), cast("Mapping[Any, Any]", given)
        if len(table) == len(old):
            return dict(zip(table, map(_with_infinity, table.values(), old.values()), strict=True))
    elif isinstance(stored, list) and isinstance(given, Collection):
        items, others = cast("list[Any]", stored), cast("Collection[Any]", given)
        if len(items) == len(others):
            return list(map(_with_infinity, items, others))
    return stored  # pyright: ignore[reportUnknownVariableType] - any JSON value


def _described(
    name: str, field: Mapping[str, Any], named: Mapping[str, Any], *, is_needed: bool
) -> str:
    """Return the description of a field of a JSON schema, whose `$defs` are `named`."""
    said = " ".join(str(field.get("description", "")).split())
    kind = _described_type(field, named)
    notes = [kind, *([] if is_needed else ["optional"]), *([said] if said else [])]
    return f"{name} ({', '.join(notes)})"


def _reference(field: Mapping[str, Any]) -> str:
    """Return the name of the definition that a JSON schema refers to, or ""."""
    return str(field.get("$ref", "")).rpartition("/")[2]


def _described_type(field: Mapping[str, Any], named: Mapping[str, Any], depth: int = 0) -> str:
    """Return the type of a field in words, without null, which "optional" says; `depth` counts the objects around it."""
    if name := _reference(field):
        inner = {key: each for key, each in named.items() if key != name}  # it may contain itself
        return _described_type(named.get(name, {}), inner, depth)
    choices = field.get("enum") or ([field["const"]] if "const" in field else None)
    if choices:
        return f"one of {', '.join(map(str, choices))}"
    joined = [each for key in ("anyOf", "oneOf", "allOf") for each in field.get(key, ())]
    if joined:
        several = [_described_type(each, named, depth) for each in joined]
        return " or ".join(dict.fromkeys(each for each in several if each != "null")) or "value"
    if "items" in field:
        return f"array of {_described_type(field['items'], named, depth)}"
    if field.get("properties") and depth < _DEEPEST:
        fields = field["properties"].items()
        inside = [f"{name} ({_described_type(each, named, depth + 1)})" for name, each in fields]
        return f"object of {', '.join(inside)}"
    return str(field.get("format") or field.get("type", "value"))


def normal_form(text: str) -> str:
    """Return the words of a text in lower case, without punctuation, joined by underscores: `nameIs` is `name_is`."""
    words = _WORDS.findall(_HUMP.sub(" ", compatible(text)))
    return "_".join(words).casefold() or text


def _key_part(data: Mapping[str, Any], name: str, where: str) -> str:
    value = inner_value(data, name)
    if value is None or value == "" or isinstance(value, Mapping | list):
        raise InvalidValue(
            f"expected one value, found {toml_word(value) if value != '' else 'empty text'}: it"
            " identifies the fact.",
            where=where,
        )
    return escaped_part(value if isinstance(value, str) else render_value(value))


def explained(error: ValidationError, where: str) -> InvalidValue:
    """Return an error with one sentence for the errors of all fields, with TOML types and without values."""
    found = error.errors(include_url=False)
    first = found[0]
    place = ".".join(map(str, (where, *first["loc"])))
    others = [f"{'.'.join(map(str, (where, *one['loc'])))}: {_reason(one)}" for one in found[1:]]
    return InvalidValue("; ".join([_reason(first), *others]) + ".", where=place)


def _reason(error: ErrorDetails) -> str:
    kind, found = error["type"], toml_word(error["input"])
    if kind == "missing":
        return "expected a value, found nothing"
    if kind == "extra_forbidden":
        return "there is no such field"
    if kind in {"literal_error", "enum"}:
        return f"expected {error.get('ctx', {}).get('expected', 'another value')}"
    word = kind.removeprefix("frozen_").partition("_")[0]
    if word in _EXPECTED and kind.endswith(("_type", "_parsing")):
        return f"expected {_EXPECTED[word]}, found {found}"
    return error["msg"].removeprefix("Value error, ").rstrip(".")


def _types(annotation: Any) -> Iterator[Any]:
    """Yield the types that an annotation consists of."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        inner = inner[:1]  # without the metadata, which may be anything
    else:
        yield origin or annotation
    for each in inner:
        yield from _types(each)
