"""`alice.review`, the drafts of sessions, and the confirmation of entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tomldiary.entries.fields import check_unmanaged
from tomldiary.entries.kinds import FACTS, PREFERENCES, entry_key, entry_kind, find_entry
from tomldiary.entries.kinds.pending import (
    AppliedChanges,
    DroppedChanges,
    PendingChange,
    PendingChanges,
    Raw,
    held_entry,
    place_of,
    to_pending,
    waiting,
)
from tomldiary.entries.preferences import Preferences
from tomldiary.errors import InvalidValue, UnknownEntry
from tomldiary.history.record import Source
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.toml.values import (
    checked_flag,
    checked_names,
    checked_table,
    checked_text,
    timestamp,
)
from tomldiary.user.context import ListAccessor, UserPart, session_of_drafts
from tomldiary.user.pending.held import (
    DRAFTS,
    QUARANTINE,
    apply_pending,
    check_complete,
    check_fields,
    is_entry,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from tomldiary.engine.transaction import Transaction
    from tomldiary.entries.kind import Tables

_Choice = Callable[[PendingChanges], PendingChanges]
_HINT = "Give the `id` of the change."


class _Waiting(UserPart):
    """Pending changes of one user in one document."""

    into = ""

    def _all(self, document: Tables | None = None) -> PendingChanges:
        stored = self._context.document(self.into) if document is None else document
        found = waiting(stored, self.into, timestamp())
        return PendingChanges(self._change(name, entry) for name, entry in found.items())

    def _change(self, name: str, entry: Raw) -> PendingChange:
        document, path = place_of(entry)
        kind, before = entry_kind(document), None
        if is_entry(document, path) and not entry.get("is_new"):
            before = self._context.read(kind.name if kind.is_split else document).table(path)
        # Computed from the place, not read from the stored key, because a person decides by it.
        key = entry_key(path, kind.home(document)) if is_entry(document, path) else ""
        return to_pending(name, entry, key, entry_kind(self.into).text(entry), before)

    def _decide(
        self, choose: _Choice, source: Source, *, is_made: bool, force: bool = False
    ) -> PendingChanges:
        """Apply or drop some pending changes as one transaction, and return them."""
        checked_flag(force, "force")

        def decided(tx: Transaction) -> PendingChanges:
            # Read inside the transaction, because another review may have decided meanwhile.
            chosen = choose(self._all(tx.document(self.into)))
            if is_made:
                with tx.nested(source):
                    made = apply_pending(tx, chosen, self._diary, self.into, force=force)
                return AppliedChanges(made)
            for each in chosen:
                tx.edit(self.into).delete((self.into, each.id))
            return DroppedChanges(chosen)

        # `context.write` would hold a decision by an untrusted actor for review again.
        return self._context.engine.write(self._context.user_id, decided, source)


class UserReview(_Waiting, ListAccessor[PendingChange]):
    """Changes by untrusted actors, as `alice.review`. `alice.review()` lists them.

    Reads like this list: `for change in review`, `len(review)`; and by id: `review["2"]`, `"2" in review`.
    """

    into = QUARANTINE

    def __call__(self) -> PendingChanges:
        """Return the pending changes, oldest first; see `list`."""
        return self.list()

    def list(self) -> PendingChanges:
        """Return the pending changes, oldest first."""
        return self._all()

    alist = async_twin(list)  # noqa: A003 - the method above

    def get(self, id: str) -> PendingChange | None:  # noqa: A002 - the word of the list
        """Return one pending change, or None."""
        checked_text(id, "id", _HINT)
        return next((each for each in self._all() if each.id == id), None)

    aget = async_twin(get)

    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - the word of the list
        return UnknownEntry(f"{QUARANTINE}/{id}", "review() returns what waits.")

    def accept(
        self, *ids: str, force: bool = False, actor: str = "user", reason: str = ""
    ) -> PendingChanges:
        """Apply pending changes as one transaction, and return them with the keys at which they are stored.

        Args:
            ids: The ids of the changes.
            force: Whether to overwrite entries that were changed since, and to make different changes of one entry in
                the order of `ids`.
            actor: The person who decided, for history.
            reason: The reason for the change, for history.

        Raises:
            UnknownEntry: There is no pending change with an id.
            Conflict: An entry was changed since, or has different changes; `keys` lists them. Nothing was changed.
            LimitReached, ImmutableEntry, InvalidValue: A rule forbids it, or no id is given. Nothing was changed.
        """
        source = Source("accept", "", actor, reason, asked=ids)
        return self._decide(_named(ids), source, is_made=True, force=force)

    aaccept = async_twin(accept)

    def reject(self, *ids: str, actor: str = "user", reason: str = "") -> PendingChanges:
        """Drop pending changes and return them. History keeps them.

        Raises:
            UnknownEntry, InvalidValue: There is no pending change with an id, or no id is given.
        """
        return self._decide(
            _named(ids), Source("reject", "", actor, reason, asked=ids), is_made=False
        )

    areject = async_twin(reject)

    def edit(self, id: str, fields: Mapping[str, Any], *, actor: str = "user") -> PendingChange:  # noqa: A002 - the word of the list
        """Change the fields of a pending change and return it. It stays pending.

        Args:
            id: The id of the change.
            fields: New values by name, such as {"text": "…"}; None removes a field.
            actor: The author of the edit, for history.

        Raises:
            UnknownEntry: There is no pending change with this id.
            InvalidValue: A field is managed by the diary or does not fit the entry, or the change removes the entry
                or names none.
        """
        checked_text(id, "id", _HINT)
        check_unmanaged(checked_table(fields, "fields"))

        def change(tx: Transaction) -> PendingChange:
            edit, path = tx.edit(QUARANTINE), (QUARANTINE, id)
            known = waiting(edit, QUARANTINE, timestamp())
            stored = known.get(id)
            if stored is None:
                raise UnknownEntry(f"{QUARANTINE}/{id}", _these_wait(known))
            check_complete(id, stored)
            document, place = place_of(stored)
            held = held_entry(stored)
            if held is None:
                raise InvalidValue(
                    "the change removes the entry and has no fields. Accept or reject it.", where=id
                )
            fresh = {name: value for name, value in {**held, **fields}.items() if value is not None}
            if entry_kind(document) is PREFERENCES:
                book = Preferences(edit, self._diary.preference_rules)
                book.check_names(place[-2], fields)
            schema = self._diary.fact_schemas.get(place[1])
            if entry_kind(document) is FACTS and schema is not None:
                schema.check_fields([name for name, value in fields.items() if value is not None])
            check_fields(document, place, fresh, self._diary)
            edit.put(path, {**stored, "entry": fresh, "_updated": timestamp()})
            # Read inside the transaction, because another review may decide before a later read.
            return self._change(id, dict(edit.table(path) or {}))

        source = Source("edit", "", actor)
        return self._context.engine.write(self._context.user_id, change, source)

    aedit = async_twin(edit)


def _these_wait(ids: Iterable[str]) -> str:
    return f"These wait: {', '.join(ids) or 'none'}."


def _named(ids: Collection[str]) -> _Choice:
    """Return a function that selects changes by id; it raises an error for no ids and for unknown ones."""

    def choose(all_changes: PendingChanges) -> PendingChanges:
        known = {each.id: each for each in all_changes}
        for name in ids:
            checked_text(name, "ids", _HINT)
        missing = [name for name in ids if name not in known]
        hint = _these_wait(known)
        if not ids:
            raise InvalidValue(f"name the changes. {hint}", where="ids")
        if missing:
            raise UnknownEntry(f"{QUARANTINE}/{', '.join(missing)}", hint)
        return PendingChanges(known[name] for name in dict.fromkeys(ids))

    return choose


class UserDrafts(_Waiting):
    """The drafts of sessions, which are writes with `ephemeral=True`."""

    into = DRAFTS

    def drafts(self, session_id: str | None = None) -> PendingChanges:
        """Return the drafts of a session, or of all sessions, oldest first."""
        wanted = None if session_id is None else checked_text(session_id, "session_id")
        return PendingChanges(each for each in self._all() if wanted in {None, each.session})

    def promote_session(
        self,
        session_id: str,
        *,
        keys: Collection[str] | None = None,
        force: bool = False,
        actor: str = "",
        reason: str = "",
    ) -> PendingChanges:
        """Apply the drafts of a session as one transaction, and return them with the keys at which they are stored.

        `rollback` undoes it.

        Args:
            session_id: The session.
            keys: The keys of the entries whose drafts are selected; None is all.
            force: Whether to overwrite entries that were changed since.
            actor: The person who decided, for history.
            reason: The reason for the change, for history.

        Raises:
            UnknownEntry: The session has no draft of one of `keys`. Nothing was changed.
            Conflict: An entry was changed since; `keys` lists them. Nothing was changed.
            LimitReached, ImmutableEntry, InvalidValue: A rule forbids it. Nothing was changed.
        """
        session_id = session_of_drafts(session_id)
        source = Source("promote", session_id, actor, reason, asked=_asked(session_id, keys))
        return self._decide(_of_session(session_id, keys), source, is_made=True, force=force)

    def discard_session(
        self,
        session_id: str,
        *,
        keys: Collection[str] | None = None,
        actor: str = "",
        reason: str = "",
    ) -> PendingChanges:
        """Drop the drafts of a session, and return them; `rollback` restores them.

        Args:
            session_id: The session.
            keys: The keys of the entries whose drafts are selected; None is all.
            actor: The person who decided, for history.
            reason: The reason for the change, for history.

        Raises:
            UnknownEntry: The session has no draft of one of `keys`. Nothing was changed.
        """
        session_id = session_of_drafts(session_id)
        source = Source("discard", session_id, actor, reason, asked=_asked(session_id, keys))
        return self._decide(_of_session(session_id, keys), source, is_made=False)


def _asked(session_id: str, keys: Collection[str] | None) -> tuple[object, ...]:
    """Return the request to decide about drafts, to compare repetitions of an operation."""
    return session_id, None if keys is None else sorted(checked_names(keys, "keys"))


def _of_session(session_id: str, keys: Collection[str] | None) -> _Choice:
    """Return a function that selects a session's drafts, all or by key; it raises an error for missing ones."""
    wanted = frozenset(() if keys is None else checked_names(keys, "keys"))

    def choose(all_changes: PendingChanges) -> PendingChanges:
        mine = [each for each in all_changes if each.session == session_id]
        missing = wanted - {each.key for each in mine}
        if missing:
            hint = f"Drafts of this session: {', '.join(each.key for each in mine) or 'none'}."
            raise UnknownEntry(f"{DRAFTS}/{', '.join(sorted(missing))}", hint)
        return PendingChanges(each for each in mine if keys is None or each.key in wanted)

    return choose


class Verdict(UserPart):
    """The confirmation of one user's entries."""

    def confirm(self, key: str, *, actor: str = "user", reason: str = "") -> None:
        """Mark an entry as verified by a person; `why(key).is_verified` is then true.

        Args:
            key: The key as shown by `history`, which is the `full_key` of a hit of `recall`.
            actor: The person who confirmed it, for history.
            reason: The reason for the change, for history.

        Raises:
            UnknownEntry: There is no such entry.
            InvalidValue: It is a pending change, which is accepted or promoted instead.
        """
        path = self._context.path(key)
        kind = entry_kind(path[0])
        if kind.is_private:
            raise InvalidValue(f"{kind.unchanged_because} Nothing was changed.", where=key)

        def change(tx: Transaction) -> None:
            edit_of = tx.entries if kind.is_split else tx.edit
            found = find_entry(path, tx.listed(), edit_of)
            if found is None:
                raise UnknownEntry(key, "The history shows all keys.")
            name, place, entry = found
            edit_of(name).put(place, {**entry, "_verified": True})

        self._context.write(change, Source("confirm", "", actor, reason, asked=(key,)))
