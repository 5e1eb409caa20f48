"""The owners of namespaces, and the namespaces of the diary's typed entries.

Namespaces such as `(user, "diary", "preferences", "likes")` contain typed entries, written under the diary's
rules. A namespace with "diary" as its second label is typed or does not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from tomldiary.engine.transaction import open_here
from tomldiary.entries.collections import Collection, TypedEntries, collections
from tomldiary.entries.kinds import KINDS, typed_kinds
from tomldiary.errors import IdentifierError, InvalidValue
from tomldiary.identifiers.namespaces import SHARED, Namespace
from tomldiary.runtime.lru import PerUser
from tomldiary.storage.protocol import ListsFolders
from tomldiary.store.item import Entry
from tomldiary.store.snapshot import Snapshot

if TYPE_CHECKING:
    from tomldiary.diary import Diary

__all__ = ["MARK", "Owners", "TypedNamespaces", "UserLabel", "is_typed", "may_expire"]

MARK = "diary"
_MOST_USERS = 10_000  # the maximum number of cached users, to limit memory
_PREFIX = 2  # the labels before the collection: the user and "diary"


def is_typed(namespace: Sequence[str]) -> bool:
    """Return whether a namespace is reserved for typed entries."""
    return len(namespace) >= _PREFIX and namespace[1] == MARK


def may_expire(namespace: object) -> bool:
    """Return whether items of a namespace may have a time to live; typed entries may not."""
    return not (isinstance(namespace, tuple | list) and is_typed(cast("Sequence[str]", namespace)))


class _TypedEntry(Entry):
    """A typed entry as an item; its searched text is the same as for `recall`."""

    __slots__ = ("_kind", "_name")

    def __init__(self, collection: Collection, key: str, table: Mapping[str, Any]) -> None:
        super().__init__(key, table)
        self._kind = KINDS[collection[0]]
        self._name = "/".join((*collection[1:], key))

    @property
    def searched_text(self) -> str:
        return self._kind.body(self.table)

    @property
    def searched_names(self) -> str:
        return self._kind.names(self._name, self.table)

    @property
    def turn(self) -> tuple[str, str] | None:
        return self._kind.turn(self._name, self.table)


class TypedNamespaces:
    """The typed namespaces of all users of a diary."""

    def __init__(self, diary: Diary) -> None:
        self._diary = diary
        backend = diary.engine.backend
        self._lists = backend if isinstance(backend, ListsFolders) else None
        self._seen = PerUser[dict[Namespace, Snapshot]](lambda _: {})
        """The last snapshots of a user, from which unchanged entries are taken."""
        self._without: dict[str, Any] = {}
        """The folder time of each user who had no typed entries at that time."""

    def collection(self, namespace: Namespace) -> Collection:
        """Return the collection that a typed namespace shows.

        Raises:
            InvalidValue: The namespace does not exist; the message lists the existing ones.
        """
        found = tuple(namespace[_PREFIX:])
        if found in collections(self._diary):
            return found
        known = ", ".join(
            "(user, " + ", ".join(f'"{label}"' for label in (MARK, *each)) + ")"
            for each in collections(self._diary)
        )
        raise InvalidValue(
            f"there is no namespace {namespace!r}. The namespaces with {MARK!r} as the second label are {known}."
        )

    def check_prefix(self, prefix: Namespace) -> None:
        """Raise InvalidValue if no typed namespace begins with a prefix."""
        rest = prefix[_PREFIX:]
        if not any(each[: len(rest)] == rest for each in collections(self._diary)):
            self.collection(prefix)

    def find(self, namespace: Namespace, key: str) -> tuple[Snapshot, Entry | None]:
        """Return the namespace and the current entry with a key, or None for the entry."""
        collection = self.collection(namespace)
        table = TypedEntries.stored(self._diary, namespace[0]).get(collection, key)
        entry = None if table is None else Entry(key, table)
        return Snapshot(namespace[0], namespace, entries={}), entry

    def snapshots(self, user: str, prefix: Namespace) -> list[Snapshot]:
        """Return the non-empty typed namespaces of a user that begin with a prefix."""
        if not user or "." in user or "\0" in user:
            return []  # no application can use it, because it is not a valid label
        if not self._has_documents(user):
            return []
        seen = self._seen.of(user, self._diary.engine.backend.epoch(user))
        stored = TypedEntries.stored(self._diary, user)
        size = len(prefix)
        found = [
            _snapshot(seen, stored, (user, MARK, *each), each)
            for each in collections(self._diary)
            if (user, MARK, *each)[:size] == prefix
        ]
        return [each for each in found if each.entries]

    def _has_documents(self, user: str) -> bool:
        """Return whether the user may have typed entries; usually a few file names suffice."""
        backend = self._lists
        if backend is None or open_here() is not None:
            return True
        now = backend.folder_times(user, [""])
        if now is not None and now == self._without.get(user):
            return False  # the folder is unchanged since
        names = [kind.name for kind in typed_kinds()]
        if any(backend.tokens(user, names)):
            return True
        folders = backend.folder_times(user, names)
        if folders is None or any(folders):
            return True
        if len(self._without) > _MOST_USERS:
            self._without.clear()
        self._without[user] = now
        return False


def _snapshot(
    seen: dict[Namespace, Snapshot],
    stored: TypedEntries,
    namespace: Namespace,
    collection: Collection,
) -> Snapshot:
    """Return the current snapshot of a namespace, which is the last one if nothing has changed."""
    before = seen.get(namespace)
    known: Mapping[str, Entry] = before.entries if before is not None else {}
    entries: dict[str, Entry] = {}
    for key, table in stored.entries(collection):
        entry = known.get(key)
        entries[key] = (
            entry
            if entry is not None and entry.table is table
            else _TypedEntry(collection, key, table)
        )
    if before is not None and known == entries:  # entries compare by identity
        return before
    made = seen[namespace] = Snapshot(namespace[0], namespace, entries=entries)
    return made


UserLabel = int | Callable[[Namespace, str], str | None] | None
"""The position of the label that is the user; or a function of namespace and key that returns the user, or
None for shared items; or None if all items are shared. A namespace too short for the position is shared."""


class Owners:
    """Finds the user that a namespace belongs to.

    Raises:
        InvalidValue: `user_label` is not a number from 0, a function or None.
    """

    def __init__(self, user_label: UserLabel) -> None:
        is_number = isinstance(user_label, int) and not isinstance(user_label, bool)
        if not (user_label is None or callable(user_label) or (is_number and user_label >= 0)):
            raise InvalidValue(
                f"expected the position of a label, a function or None, found {user_label!r}.",
                where="user_label",
            )
        self._label = user_label

    def owner(self, namespace: Namespace, key: str, signed_in: str | None = None) -> str:
        """Return the user that an item or a typed entry belongs to.

        Args:
            namespace: The namespace of the item.
            key: The key of the item.
            signed_in: The user that a server authenticated; None allows every owner.

        Raises:
            InvalidValue: The `user_label` function did not return a user id or None.
            IdentifierError: The owner is not signed in.
        """
        found = namespace[0] if is_typed(namespace) else self._owner(namespace, key)
        if signed_in is not None and found not in (signed_in, SHARED):
            raise _foreign_namespace()
        return found

    def check_prefix(self, prefix: Namespace, signed_in: str | None) -> None:
        """Raise an error if all namespaces below a prefix belong to a user who is not signed in.

        Raises:
            IdentifierError: It is such a prefix.
        """
        if signed_in is None:
            return
        found = prefix[0] if is_typed(prefix) else self._named(prefix)
        if found not in (None, signed_in):
            raise _foreign_namespace()

    def _named(self, labels: Namespace) -> str | None:
        """Return the owner of all namespaces that begin with some labels; None if these do not show it."""
        if isinstance(self._label, int) and len(labels) > self._label:
            return labels[self._label]
        return None

    def _owner(self, namespace: Namespace, key: str) -> str:
        if isinstance(self._label, int):
            named = self._named(namespace)
            return SHARED if named is None else named
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
        """Return the owner of a namespace that is not validated yet; None if its label does not show it."""
        if not isinstance(self._label, int) or type(namespace) is not tuple:
            return None
        labels = cast("tuple[object, ...]", namespace)
        label = labels[self._label] if len(labels) > self._label else None
        return label if type(label) is str and label else None

    @property
    def are_in_order(self) -> bool:
        """Whether sorted namespaces are in the order of their owners, because each begins with its owner."""
        return self._label == 0

    def is_open(self, prefix: Namespace) -> bool:
        """Return whether namespaces that begin with a prefix may belong to any user."""
        return self._label is not None and self._named(prefix) is None

    def below(self, prefix: Namespace, everybody: list[str]) -> list[str]:
        """Return the users who may own a namespace that begins with a prefix."""
        if self._label is None:
            return [SHARED]
        found = self._named(prefix)
        return everybody if found is None else [found]


def _foreign_namespace() -> IdentifierError:
    return IdentifierError(
        "the namespace belongs to another user than the one that the server signed in. Use a namespace of"
        " that user; user_label defines which label is the user, and which namespaces are shared."
    )
