"""Whose memory a namespace is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tomldiary.errors import InvalidValue
from tomldiary.items.naming import SHARED, Namespace

__all__ = ["Owners", "UserLabel"]

UserLabel = int | Callable[[Namespace, str], str | None] | None
"""Which label of a namespace is the user; a function of namespace and key that names the user, or None
for nobody; or None: all is shared. A namespace that is too short for the label is shared."""


class Owners:
    """Says which user a namespace belongs to.

    Raises:
        InvalidValue: `user_label` is neither a number from 0 on, a function, nor None.
    """

    def __init__(self, user_label: UserLabel) -> None:
        is_number = isinstance(user_label, int) and not isinstance(user_label, bool)
        if not (user_label is None or callable(user_label) or (is_number and user_label >= 0)):  # pyright: ignore[reportOperatorIssue] - a number by then
            raise InvalidValue(
                f"expected the number of a label, a function or None, found {user_label!r}.",
                where="user_label",
            )
        self._label = user_label

    def owner(self, namespace: Namespace, key: str) -> str:
        """Return the user that an item belongs to.

        Raises:
            InvalidValue: The function that names the owner returned no name.
        """
        if isinstance(self._label, int):
            return namespace[self._label] if len(namespace) > self._label else SHARED
        found = None if self._label is None else self._label(namespace, key)
        if found is None:
            return SHARED
        if not isinstance(found, str) or not found.strip() or found == SHARED:  # pyright: ignore[reportUnnecessaryIsInstance] - a function of the caller's
            raise InvalidValue(
                f"user_label returned {found!r} for {namespace!r}. Return the user's id, or None.",
                where="user_label",
            )
        return found

    def known_owner(self, namespace: object) -> str | None:
        """Return who owns the items of a namespace that nobody has checked; None if that is not sure at once."""
        if not isinstance(self._label, int) or type(namespace) is not tuple:
            return None
        labels = cast("tuple[object, ...]", namespace)
        label = labels[self._label] if len(labels) > self._label else None
        return label if type(label) is str and label else None

    def is_open(self, prefix: Namespace) -> bool:
        """Tell whether any user may own a namespace that begins like this."""
        if self._label is None:
            return False
        return not (isinstance(self._label, int) and len(prefix) > self._label)

    def below(self, prefix: Namespace, everybody: list[str]) -> list[str]:
        """Return the users who may own a namespace that begins like this."""
        if self._label is None:
            return [SHARED]
        if isinstance(self._label, int) and len(prefix) > self._label:
            return [prefix[self._label]]
        return everybody
