"""The rules of the preferences document: ids, counts, limits, and layouts.

The rules are applied twice: to a draft while a model edits it, and to fresh state at the commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

from pydantic import ValidationError

from tomldiary.entries.fields import (
    NEXT_IDS,
    check_key,
    check_length,
    count_of,
    entry_text,
    number_of,
    replaced,
    reserved_ids,
    signed,
    text_list,
    updated_at,
)
from tomldiary.entries.incremental_index import IncrementalIndex, Marked, ask, put_indexed
from tomldiary.entries.models import FORMAT_VERSION, PreferenceItem
from tomldiary.entries.schema import names_read
from tomldiary.errors import InvalidValue, LimitReached, UnknownCategory, UnknownEntry
from tomldiary.text.similarity import identity, normalise, same_text
from tomldiary.text.visible import escape_for_model
from tomldiary.toml.values import checked_names, checked_text

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from tomldiary.entries.kind import EditedTables, Tables
    from tomldiary.text.similarity import Match, Similarity

F = TypeVar("F", bound=IncrementalIndex)
T = TypeVar("T")
MAX_TEXT = 10_000
"""The maximum number of characters of a preference."""
NEW = "new"
"""The id that requests a new entry even if a similar one is stored."""
Action = Literal["created", "updated", "boosted", "merged"]
_ROOT = "preferences"


@dataclass(frozen=True, slots=True)
class PreferenceRules:
    """The options that preferences obey."""

    categories: tuple[str, ...]
    limit: int = 100
    item_types: Mapping[str, type[PreferenceItem]] = field(
        default_factory=dict[str, type[PreferenceItem]], compare=False
    )
    """The types of entries by category; entries that do not fit are refused."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an upsert: the action and its entry."""

    action: Action
    path: tuple[str, ...]
    entry: Mapping[str, Any]
    """The fields of the entry, as stored."""

    @property
    def id(self) -> str:
        """The id of the entry in its category."""
        return self.path[-1]

    @property
    def count(self) -> int:
        """How often the entry was said."""
        return entry_count(self.entry)


class Catalog(Marked):
    """Indexes the texts and the numbers of a category, to find equal texts and unused ids."""

    def _clear(self) -> None:
        super()._clear()
        self._highest: int | None = 0

    @property
    def highest(self) -> int:
        """The highest N of the ids of the form prefN; 0 if there is none."""
        if self._highest is None:
            self._highest = max([number_of(key) or 0 for key in self._keys], default=0)
        return self._highest

    @property
    def normalised(self) -> tuple[list[str], list[str | None]]:
        """Copies of the ids and of the normalised texts, which are None for values that are not entries."""
        texts = [
            None if number in self._strays else normalise(entry_text(entry))
            for number, entry in enumerate(self._entries)
        ]
        return self._keys.copy(), texts

    def same(self, text: str, but: str = "") -> str | None:
        """Return the id of the first entry, except `but`, whose text has the same `identity`, or None."""
        places = sorted(self._marked.get(identity(text), ()))
        return next((self._keys[place] for place in places if self._keys[place] != but), None)

    def _marks_of(self, key: str, entry: Mapping[str, Any]) -> tuple[Hashable, ...]:  # noqa: ARG002 - found by its text
        return (identity(entry_text(entry)),)

    def _put(self, number: int, key: str, entry: Any) -> None:
        super()._put(number, key, entry)
        # A value that is not an entry has an id as well: a new entry cannot be stored in its place.
        if self._highest is not None:
            self._highest = max(self._highest, number_of(key) or 0)

    def _forget(self, known: int) -> None:
        super()._forget(known)
        self._highest = None if known else 0


class Preferences:
    """Reads the preferences document; with an edit of it, also changes it."""

    def __init__(self, tables: Tables, rules: PreferenceRules) -> None:
        self._tables = tables
        self.rules = rules

    # Reading

    def check_category(self, category: str) -> None:
        """Raise UnknownCategory if the schema does not have `category`."""
        # A column of a DataFrame has no truth value, so it is not compared.
        if not isinstance(category, str) or category not in self.rules.categories:  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
            raise UnknownCategory(category, list(self.rules.categories))

    def find(self, category: str, key: str) -> tuple[tuple[str, ...], Mapping[str, Any]] | None:
        """Return the path and the fields of an entry in either layout, or None."""
        for path in ((_ROOT, category, key), (category, key)):
            if path[0] != _ROOT or len(path) == 3:  # noqa: PLR2004 - a category may be called "preferences"
                table = self._tables.table(path)
                if table is not None:
                    return path, table
        return None

    def named(self, category: str, key: str) -> str:
        """Return the id of an entry from `key`, which is the id or `category/id`."""
        prefix = f"{category}/"
        if checked_text(key, "id").startswith(prefix) and self.find(category, key) is None:
            return key[len(prefix) :]
        return key

    def wanted(self, category: str, key: str | None) -> str | None:
        """Return the id for an upsert like `named`; None for "new", which requests a new entry.

        Raises:
            InvalidValue: `key` is the `category/id` of an entry in another category.
        """
        if key is None or key == NEW:
            return None
        named = self.named(category, key)
        other, _, rest = named.partition("/")
        is_elsewhere = rest and other in self.rules.categories and self.find(other, rest)
        if is_elsewhere and self.find(category, named) is None:
            raise InvalidValue(
                f"{named!r} is an entry of the category {other!r}. Change it there, or remove it there and"
                " store a new one here.",
                where=f"{category}.id",
            )
        return named

    def items(self, category: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the entries of a category in the order of the file, without values that are not tables."""
        return [item for item in self.table(category).items() if type(item[1]) is dict]

    def count(self, category: str) -> int:
        """Return the number of entries of a category."""
        return self.following(category, Catalog, lambda catalog: catalog.count)

    def same(self, category: str, text: str, *, but: str = "") -> str | None:
        """Return the id of the entry with the same text, except the entry `but`, or None."""
        return self.following(category, Catalog, lambda catalog: catalog.same(text, but))

    def similar(
        self, similarity: Similarity, category: str, text: str, *, limit: int = 5
    ) -> list[Match]:
        """Return the entries of a category that resemble `text`, best first."""
        keys, normalised = self.following(category, Catalog, lambda catalog: catalog.normalised)

        def text_of(key: str) -> str:
            found = self.find(category, key)
            return entry_text(found[1]) if found is not None else ""

        return similarity.find(category, text, keys, normalised, text_of, limit=limit)

    def following(self, category: str, kind: type[F], question: Callable[[F], T]) -> T:
        """Return the result of a query to an incremental index of a category, updated to its present entries."""
        key = (kind, category)
        return ask(
            self._tables, key, lambda: kind(category), lambda: self.table(category), question
        )

    def table(self, category: str) -> Mapping[str, Any]:
        """Return the values of a category by id, including values that are not tables."""
        found = self._tables.table((_ROOT, category)) or {}
        short = self._tables.table((category,)) if category != _ROOT else None
        if short:
            found = {**found, **{key: short[key] for key in short if key not in found}}
        return found

    def elsewhere(self, category: str, text: str) -> list[tuple[str, str]]:
        """Return the category and id of the first entry with the same text in each other category."""
        found = [(other, self.same(other, text)) for other in self.rules.categories]
        return [(other, key) for other, key in found if other != category and key is not None]

    # Writing

    @property
    def _edit(self) -> EditedTables:
        return cast("EditedTables", self._tables)

    def upsert(
        self,
        category: str,
        key: str | None,
        text: str | None,
        contexts: Iterable[str],
        *,
        now: str,
        session: str,
        count_up: bool = True,
        fields: Mapping[str, Any] | None = None,
        source: str = "",
        may_repeat: bool = False,
    ) -> Outcome:
        """Create an entry, or change or confirm an existing one.

        With the `key` of an existing entry, `text` replaces its text, contexts are added, and its count is
        incremented; `may_repeat` accepts a text that another entry has. Without `key`, or with one that does not
        exist, an entry with equal text is confirmed; if there is none, a new entry is created. `source` is the turn
        that contains `text`, if any. Fields whose names begin with an underscore are only stored in new entries.

        Raises:
            UnknownCategory: The schema does not have the category.
            UnknownEntry: `key` does not exist, and there is no text for a new entry.
            LimitReached: The category is full.
            InvalidValue: The text is blank, text or contexts are too long or cannot be stored, another entry has the
                text, or the entry does not fit its type.
        """
        self.check_category(category)
        self.check_names(category, fields or ())
        given = [context.strip() for context in checked_names(contexts, "contexts")]
        contexts = list(dict.fromkeys(filter(None, given)))
        if text is not None:
            text = _stored_text(text, f"{category}.{key}.text" if key else f"{category}.text")
        said_in = {"_source": source} if source else {}
        found = None if key is None else self.find(category, key)
        action: Action = "boosted"
        if found is None and text is None:
            if key is not None:
                raise unknown_preference(category, key)
            raise InvalidValue("a new preference needs text.", where=category)
        if found is None and text is not None:
            same = self.same(category, text)
            if same is None:
                entry = {
                    "text": text,
                    "contexts": contexts,
                    "_count": 1,
                    "_created": now,
                    "_updated": now,
                    "_created_by": session,
                    "_updated_by": session,
                    **said_in,
                    **(fields or {}),
                }
                return self._create(category, key, entry)
            action, found, text = "merged", self.find(category, same), None
        path, old = cast("tuple[tuple[str, ...], Mapping[str, Any]]", found)
        own = {name: value for name, value in (fields or {}).items() if not name.startswith("_")}
        entry = {**old, **own}
        if text is not None and text != entry_text(old):
            action = "updated"
            if not same_text(text, entry_text(old)):
                other = None if may_repeat else self.same(category, text)
                if other is not None:
                    raise InvalidValue(
                        f"{category}/{other} has the same text. Remove {category}/{path[-1]} instead, or give"
                        " another text.",
                        where=f"{category}/{path[-1]}",
                    )
                entry = replaced(entry)
            entry |= {"text": text, **said_in}
        known = _contexts(old)
        added = [context for context in contexts if context not in known]
        if added:
            _check_contexts(known + added, f"{category}/{path[-1]}")
            entry["contexts"] = known + added
        if count_up:
            entry["_count"] = entry_count(old) + 1
        if entry != old:
            entry["_updated"] = updated_at(old, now)
            entry = signed({**entry, "_updated_by": session}, old, session, is_part=False)
        return self._stored(action, path, entry)

    def _create(self, category: str, key: str | None, entry: Mapping[str, Any]) -> Outcome:
        if self.count(category) >= self.rules.limit:
            raise LimitReached(category, self.rules.limit, "max_prefs_per_category")
        _check_contexts(entry["contexts"], category)
        return self._stored("created", (_ROOT, category, self._new_id(category, key)), entry)

    def _stored(self, action: Action, path: tuple[str, ...], entry: Mapping[str, Any]) -> Outcome:
        self.check_fit(path[-2], path[-1], entry)
        return Outcome(action, path, put_indexed(self._edit, path, entry))

    def check_names(self, category: str, names: Iterable[str]) -> None:
        """Raise InvalidValue if the type of a category has no field of one of the names."""
        kind = self.rules.item_types.get(category)
        if kind is None or kind.model_config.get("extra") == "allow":
            return
        own_fields = {*kind.model_fields, "pinned"} - PreferenceItem.model_fields.keys()
        for name in names:
            if not name.startswith("_") and name not in {"pinned", *names_read(kind)}:
                own = ", ".join(sorted(own_fields))
                raise InvalidValue(
                    f"there is no such field. Those that you can set are: {own}. Declare others in a subclass"
                    " of PreferenceItem. Nothing was stored.",
                    where=f"{category}.{name}",
                )

    def check_fit(self, category: str, key: str, entry: Mapping[str, Any]) -> None:
        """Check that an entry fits the type of its category.

        Raises:
            InvalidValue: The entry does not fit; the error names the first wrong field.
        """
        kind = self.rules.item_types.get(category, PreferenceItem)
        if kind is not PreferenceItem:
            try:
                entry_to_item(entry, kind)
            except ValidationError as error:
                wrong = error.errors(include_url=False, include_input=False)[0]
                place = ".".join(map(str, (category, key, *wrong["loc"])))
                raise InvalidValue(f"{wrong['msg']}. Nothing was stored.", where=place) from None

    def forget(self, category: str, key: str) -> Mapping[str, Any]:
        """Remove an entry and return it; its id is not assigned again.

        Raises:
            UnknownCategory: The schema does not have the category.
            UnknownEntry: The id does not exist.
        """
        self.check_category(category)
        found = self.find(category, key)
        if found is None:
            raise unknown_preference(category, key)
        path, entry = found
        self._edit.delete(path)
        reserve_ids(self._edit, [(category, number_of(key) or 0)])
        return entry

    def _new_id(self, category: str, wanted: str | None) -> str:
        following = self.next_number(category)
        if wanted is not None:
            check_key(wanted, "an id", category)
            # A forgotten entry may have had this id of the form prefN.
            number = number_of(wanted)
            if number is None or number >= following:
                return wanted
        # Numbers above those that `number_of` reads are not counted.
        while self.find(category, f"pref{following:03d}") is not None:
            following += 1
        return f"pref{following:03d}"

    def next_number(self, category: str) -> int:
        """Return the number of the next id of the form prefN."""
        highest = self.following(category, Catalog, lambda catalog: catalog.highest)
        reserved = reserved_ids(self._tables.table(("_meta",)))
        return max(highest + 1, reserved.get(category, 0))


def reserve_ids(edit: EditedTables, removed: Iterable[tuple[str, int]]) -> None:
    """Reserve the ids of removed preferences, so that they are not assigned again.

    Args:
        edit: The preferences document without the removed entries.
        removed: The category and the number of each removed entry; 0 for an id of another form.
    """
    meta = edit.table(("_meta",)) or {"version": FORMAT_VERSION}
    known = reserved_ids(meta)
    fresh = dict(known)
    for category, number in removed:
        if number >= fresh.get(category, 1):
            left = Preferences(edit, PreferenceRules((category,))).table(category)
            # The last entry usually has the highest number.
            if all((number_of(key) or 0) < number for key in reversed(list(left))):
                fresh[category] = number + 1
    if fresh != known:
        edit.put(("_meta",), {**meta, NEXT_IDS: fresh})


def by_category(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preferences of a parsed document by category, in both layouts; other values are unchanged.

    In the short layout, categories are top-level tables.
    """
    main: Any = data.get(_ROOT, {})
    found: dict[str, Any] = {**main} if isinstance(main, dict) else {}
    for category, entries in data.items():
        if isinstance(entries, dict) and category not in {"_meta", _ROOT}:
            known = found.setdefault(category, {})
            if isinstance(known, dict):
                found[category] = {**entries, **known}
    return found


def entry_count(entry: Mapping[str, Any]) -> int:
    """Return the count of an entry; 1 if it is missing or malformed."""
    return count_of(entry.get("_count"), 1)


def entry_to_item(
    entry: Mapping[str, Any], item_type: type[PreferenceItem] = PreferenceItem
) -> PreferenceItem:
    """Return an entry as a typed item, with defaults for missing and malformed fields.

    Raises:
        pydantic.ValidationError: A field of a custom item type has a wrong value.
    """
    known = {key: value for key, value in entry.items() if key[:1] != "_"}
    known["text"] = entry_text(entry)
    known["contexts"] = _contexts(entry)
    known["_count"] = entry_count(entry)
    for key in ("_created", "_updated", "_created_by", "_updated_by"):
        known[key] = str(entry.get(key, ""))
    return item_type.model_validate(known)


def _contexts(entry: Mapping[str, Any]) -> list[str]:
    found = entry.get("contexts")
    return [found] if isinstance(found, str) else text_list(found)


def _check_contexts(contexts: list[str], where: str) -> None:
    size = sum(map(len, contexts))
    check_length(size, MAX_TEXT, where, "the contexts have", "Give few and short ones.")


def unknown_preference(category: str, key: str) -> UnknownEntry:
    """Return the error for an id that the category does not have."""
    return UnknownEntry(
        f"{category}/{key}", f"preferences({category!r}) returns the entries of the category by id."
    )


def _stored_text(text: str, where: str) -> str:
    text = checked_text(text, where).strip()
    if not escape_for_model(text):
        raise InvalidValue("the text is blank. Give a text with visible characters.", where=where)
    check_length(len(text), MAX_TEXT, where)
    return text
