"""A connection that listens for notices of PostgreSQL, and the messages of its errors."""

from __future__ import annotations

import re
import secrets
from selectors import EVENT_READ, DefaultSelector
from typing import TYPE_CHECKING, LiteralString

from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.storage.shared.postgres import statements

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    import psycopg
    from psycopg import sql

    from tomldiary.storage.shared.heads import Notice

_LOST = re.compile(
    r"Connection refused|[Tt]imeout expired|Name or service not known|No route to host|no answer within [^?]+\?|FATAL: .+"
    r"|(?:(?<=failed: )|(?<=is bad: ))(?!connection ).+"
)


class PostgresListener:
    """A connection that listens on a channel, to which a trigger of a table sends notices."""

    def __init__(
        self, connection: psycopg.Connection[Any], channel: str, table: str, trigger: str
    ) -> None:
        self._connection = connection
        self._channel = channel
        self._trigger = table, trigger
        self._received: list[str] = []
        connection.add_notify_handler(lambda notice: self._received.append(notice.payload))

    def execute(self, statement: sql.Composed | LiteralString, *values: str) -> None:
        """Run a statement, and receive the notices that have arrived."""
        import psycopg  # noqa: PLC0415 - an optional dependency

        try:
            self._connection.execute(statement, values)
        except psycopg.Error as error:
            raise DatabaseLost(reason(error)) from error

    def wait(self, seconds: float) -> Sequence[Notice]:
        """Return the next notices, or nothing after `seconds`."""
        with DefaultSelector() as selector:  # `select.select` fails beside many open files
            selector.register(self._connection.fileno(), EVENT_READ)
            has_arrived = bool(selector.select(seconds))
        if has_arrived:
            self.execute("SELECT 1")  # receives the notices
        return self._taken()

    def check(self) -> Sequence[Notice]:
        """Send a notice and return all earlier ones, because notices arrive in the order of their sending.

        Raises:
            DatabaseLost: The notice did not arrive. A connection pooler delivers no notices, and a restore replaces or
                disables the trigger.
        """
        mark = secrets.token_hex(8)
        self.execute(statements.CONFIRM, self._channel, mark, *self._trigger)
        if mark not in self._received:
            self.execute("SELECT 1")
        if mark not in self._received:
            raise DatabaseLost(
                "notices do not arrive; are the tables being restored, or is there a connection pooler?"
            )
        self._received.remove(mark)
        return self._taken()

    def _taken(self) -> list[Notice]:
        received = self._received[:]
        del self._received[: len(received)]
        pairs = [each.partition(" ") for each in received]
        return [(key, int(revision)) for key, _, revision in pairs if revision]

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def reason(error: Exception) -> str:
    """Return the server's short message, which quotes no value, or the type of the error."""
    import psycopg  # noqa: PLC0415 - an optional dependency

    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    known = _LOST.search(str(error))
    return message or (known[0] if known is not None else type(error).__name__)
