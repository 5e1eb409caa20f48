"""Deletes what steps have replaced: parts of documents, and histories."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from tomldiary.storage.shared.firestore.connection import HISTORY, PARTS, Refused

if TYPE_CHECKING:
    from tomldiary.storage.shared.firestore.connection import Connection
    from tomldiary.storage.shared.firestore.head import FirestoreHead

__all__ = ["clear_trash"]

_MOST_DELETES = 400


def clear_trash(connection: Connection, user: str, head: FirestoreHead) -> bool:
    """Delete what earlier steps have replaced; return False if `head` is not the stored one."""
    if not head.trash:
        return True
    for entry in head.trash:
        _delete_replaced(connection, user, head, entry)
    place = connection.head(user)
    option = connection.client.write_option(last_update_time=head.time)
    emptied = partial(place.update, {"trash": []}, option=option, **connection.once)
    try:
        done = connection.run(emptied, is_conditional=True)
    except Refused:
        return False
    head.trash, head.time = [], done.update_time
    return True


def _delete_replaced(connection: Connection, user: str, head: FirestoreHead, entry: str) -> None:
    if entry.startswith(HISTORY):
        name, _, below = entry.partition("<")
        left = connection.head(user).collection(name)
        _delete_all(
            connection, left.end_before({"seq": int(below)}).order_by("seq") if below else left
        )
        return
    name, _, part = entry.rpartition("/")
    parts = connection.user(user).document(name).collection(PARTS)
    if part != "*":
        targets = [parts.document(part)]
    else:  # a part that is newer than the head belongs to a later step
        listed = parts.select([])
        found = connection.run(lambda: list(listed.stream(**connection.once)))
        targets = [each.reference for each in found if each.create_time <= head.time]
    kept = head.parts.get(name, ())
    for target in targets:
        if target.id not in kept:
            connection.run(partial(target.delete, **connection.once))


def _delete_all(connection: Connection, query: Any) -> None:
    """Delete the history records that a query finds, and their parts."""
    query = query.limit(_MOST_DELETES).select([PARTS])
    while found := connection.run(lambda: list(query.stream(**connection.once))):
        batch = connection.client.batch()
        for each in found:
            for part in each.to_dict().get(PARTS) or ():
                batch.delete(each.reference.collection(PARTS).document(part))
            batch.delete(each.reference)
        connection.run(lambda b=batch: b.commit(**connection.once))
