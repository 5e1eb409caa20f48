"""The values of typed entries by collection and key, as stores of other frameworks give them.

A collection is `("preferences", category)`, `("conversations",)`, `("facts", type)`, `("blocks",)` or
`("episodes",)`. A value is an entry without the fields that begin with an underscore, which the diary
manages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fields import check_length, check_unmanaged, toml_word, wrong_fields
from tomldiary.entries.kinds import KINDS, typed_kinds
from tomldiary.errors import InvalidValue
from tomldiary.toml.values import storable_copy

if TYPE_CHECKING:
    from tomldiary.entries.kind import Collected, Rules


def collections(rules: Rules) -> list[Collected]:
    """Return all collections of a diary: one for each category, type of facts and other kind."""
    return [each for kind in typed_kinds() for each in kind.collections(rules)]


def checked_value(collection: Collected, key: str, value: Any) -> dict[str, Any]:
    """Return a copy of a value that fits its collection.

    Raises:
        InvalidValue: The text is missing, too long or not a string, the labels are not a list of strings, a flag is
            neither true nor false, or a field is reserved for the diary; the error names the field.
    """
    where = f"{collection[-1]}.{key}"
    if not isinstance(value, Mapping):
        raise InvalidValue(f"expected a table, found {toml_word(value)}.", where=where)
    copied = storable_copy(value, where)
    check_unmanaged(copied, f"{where}.")
    kind = KINDS[collection[0]]
    labels = [kind.labels] if kind.labels else []
    copied.update({name: [] for name in labels if name not in copied})
    given = {**dict.fromkeys(kind.texts), **copied}
    for problem in wrong_fields(where, given, kind.texts, labels, flags=kind.flags):
        raise InvalidValue(f"{problem.message}.", where=problem.where)
    if kind.longest is not None:
        for name in (*kind.texts, *labels):
            size = sum(map(len, copied[name])) if name in labels else len(copied[name])
            check_length(size, kind.longest, f"{where}.{name}", "it has")
    return copied
