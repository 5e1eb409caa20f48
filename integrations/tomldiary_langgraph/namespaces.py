"""Which namespaces exist, and which part of a diary each one shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tomldiary.errors import InvalidValue

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tomldiary.typed_entries import Collection

__all__ = ["Place", "check_prefix", "is_label", "parse_namespace", "places"]

Namespace = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """One collection of entries of one user."""

    user: str
    collection: Collection

    @property
    def namespace(self) -> Namespace:
        """The namespace that shows these entries."""
        return (self.user, "diary", *self.collection)


def places(user: str, categories: Iterable[str]) -> list[Place]:
    """Return all places of a user."""
    found = [Place(user, ("preferences", category)) for category in categories]
    return [*found, Place(user, ("conversations",))]


def is_label(user: str) -> bool:
    """Tell whether LangGraph accepts a user id as a label; one with a dot, such as an address, is none."""
    return bool(user) and "." not in user and "\0" not in user


def parse_namespace(namespace: Sequence[str], categories: Sequence[str]) -> Place:
    """Return the place that a whole namespace names.

    Raises:
        InvalidValue: There is no such namespace; names those that exist.
    """
    if namespace:
        for place in places(namespace[0], categories):
            if place.namespace == tuple(namespace):
                return place
    raise _no_namespace(namespace, categories)


def check_prefix(prefix: Sequence[str], categories: Sequence[str]) -> None:
    """Raise InvalidValue unless some namespace could begin with `prefix`."""
    if prefix and not any(
        place.namespace[: len(prefix)] == tuple(prefix) for place in places(prefix[0], categories)
    ):
        raise _no_namespace(prefix, categories)


def _no_namespace(namespace: Sequence[str], categories: Sequence[str]) -> InvalidValue:
    known = " | ".join(f'"{category}"' for category in categories)
    return InvalidValue(
        f"there is no namespace {tuple(namespace)!r}. This store has"
        f' (user, "diary", "preferences", {known}) and (user, "diary", "conversations").'
    )
