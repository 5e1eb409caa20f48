"""Whose memory a namespace is part of."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.store.namespaces import SHARED, Namespace
from tomldiary.store.typed_namespaces import is_typed

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

    def owner(self, namespace: Namespace, key: str, signed_in: str | None = None) -> str:
        """Return the user that an item or a typed entry belongs to.

        Args:
            namespace: The item's.
            key: The item's.
            signed_in: The user that a server authenticated; None allows every owner.

        Raises:
            InvalidValue: The function that names the owner returned no name.
            IdentifierError: The owner is another user than the one signed in.
        """
        found = namespace[0] if is_typed(namespace) else self._owner(namespace, key)
        if signed_in is not None and found not in (signed_in, SHARED):
            raise _not_theirs()
        return found

    def check_prefix(self, prefix: Namespace, signed_in: str | None) -> None:
        """Refuse a prefix below which all namespaces belong to another user than the one signed in.

        Raises:
            IdentifierError: It is such a prefix.
        """
        if signed_in is None:
            return
        if is_typed(prefix):
            found = prefix[0]
        elif isinstance(self._label, int) and len(prefix) > self._label:
            found = prefix[self._label]
        else:
            return
        if found != signed_in:
            raise _not_theirs()

    def _owner(self, namespace: Namespace, key: str) -> str:
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

    @property
    def are_in_order(self) -> bool:
        """Whether namespaces come in the order of their owners, as each begins with its owner."""
        return self._label == 0

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


def _not_theirs() -> IdentifierError:
    return IdentifierError(
        "the namespace belongs to another user than the one that the server signed in. Use a namespace of"
        " that user; user_label says which label is the user, and which namespaces are shared."
    )
