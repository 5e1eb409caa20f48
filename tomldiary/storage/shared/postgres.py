"""Memories in a PostgreSQL database: one statement reads a user's state, one statement commits."""

from __future__ import annotations

import re
import secrets
import select
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, LiteralString, TypeVar

from tomldiary.errors import BackendError, MissingExtra
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import DatabaseLost, Head, Step, without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import psycopg
    from psycopg import sql
    from psycopg_pool import ConnectionPool

    from tomldiary.storage.protocol import Durability, Token
    from tomldiary.storage.shared.watch import Listener, Notice

__all__ = ["PostgresBackend", "PostgresDatabase"]

R = TypeVar("R")
_VERSION = 1
_SCHEMA_LOCK = 7_046_151_318_604_118_370  # an advisory lock: one process creates the tables
_PAGE = 1000
_PATIENCE = 5000  # milliseconds until a connection that is not acknowledged counts as broken
# The reason why the server refuses a connection for good; at other reasons, such as a start of the server, we wait.
_REFUSED = re.compile(
    r"(?:FATAL: +|fe_sendauth: )((?!.*(?:starting up|shutting down|recovery|too many|remaining)).+)"
)
_INVALID = re.compile(
    r"invalid (?:integer value|port|connection option|\w+ value)|Servname not supported"
)
_LOST = re.compile(
    r"Connection refused|[Tt]imeout expired|Name or service not known|No route to host|FATAL: .+"
)
_CREATE: LiteralString = """
CREATE SCHEMA IF NOT EXISTS {schema};
CREATE TABLE IF NOT EXISTS {schema}.users (
    user_id text COLLATE "C" PRIMARY KEY, revision bigint NOT NULL, epoch bigint NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.documents (
    user_id text COLLATE "C", kind text COLLATE "C", version bigint NOT NULL, content text NOT NULL,
    PRIMARY KEY (user_id, kind));
CREATE INDEX IF NOT EXISTS hidden ON {schema}.documents (kind, user_id) WHERE starts_with(kind, '.');
CREATE TABLE IF NOT EXISTS {schema}.history (
    user_id text COLLATE "C", seq bigint, record text NOT NULL, PRIMARY KEY (user_id, seq));
CREATE TABLE IF NOT EXISTS {schema}.tomldiary (version int PRIMARY KEY)"""
_FOUND: LiteralString = "SELECT to_regclass(%s)"
_HAS_LZ4: LiteralString = """
SELECT FROM pg_settings WHERE name = 'default_toast_compression' AND 'lz4' = ANY(enumvals)"""
# The default method takes longer to compress a document than the rest of a commit.
_USE_LZ4: LiteralString = """
ALTER TABLE {schema}.documents ALTER COLUMN content SET COMPRESSION lz4;
ALTER TABLE {schema}.history ALTER COLUMN record SET COMPRESSION lz4"""
_SET_VERSION: LiteralString = """
INSERT INTO {schema}.tomldiary SELECT %s WHERE NOT EXISTS (SELECT FROM {schema}.tomldiary)"""
_IS_WATCHED: LiteralString = """
SELECT FROM pg_trigger WHERE tgrelid = to_regclass(%s) AND tgname = 'tomldiary_watch'"""
# Only databases that are watched pay for notices: in PostgreSQL, commits with a notice wait for each other.
_WATCH: LiteralString = """
CREATE OR REPLACE FUNCTION {schema}.notify_watchers() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    PERFORM pg_notify(TG_ARGV[0], encode(sha256(convert_to(NEW.user_id, 'UTF8')), 'hex') || ' ' || NEW.revision);
    RETURN NULL;
END $$;
CREATE TRIGGER tomldiary_watch AFTER INSERT OR UPDATE ON {schema}.users
    FOR EACH ROW EXECUTE FUNCTION {schema}.notify_watchers({channel})"""
_LISTEN: LiteralString = "LISTEN {channel}"
_GET_VERSION: LiteralString = "SELECT version FROM {schema}.tomldiary"
_HEAD: LiteralString = """
SELECT revision, epoch,
    (SELECT json_object_agg(kind, version) FROM {schema}.documents d WHERE d.user_id = u.user_id),
    (SELECT record FROM {schema}.history h WHERE h.user_id = u.user_id ORDER BY seq DESC LIMIT 1),
    (SELECT json_object_agg(kind, content) FROM {schema}.documents d
        WHERE d.user_id = u.user_id AND kind = ANY(%s))
FROM {schema}.users u WHERE user_id = %s"""
_READ: LiteralString = """
SELECT kind, content, version FROM {schema}.documents WHERE user_id = %s AND kind = ANY(%s)"""
_READ_ONE: LiteralString = """
SELECT kind, content, version FROM {schema}.documents WHERE user_id = %s AND kind = %s"""
_RECORDS: LiteralString = """
SELECT seq, record FROM {schema}.history WHERE user_id = %s AND seq < %s ORDER BY seq DESC LIMIT %s"""
_USERS: LiteralString = """
SELECT user_id FROM {schema}.users u
WHERE user_id > %s
    AND EXISTS (SELECT FROM {schema}.documents d WHERE d.user_id = u.user_id AND NOT starts_with(kind, '.'))
ORDER BY user_id LIMIT %s"""
_ERASED: LiteralString = """
SELECT user_id FROM {schema}.users u
WHERE epoch > 0 AND user_id > %s
    AND NOT EXISTS (SELECT FROM {schema}.documents d WHERE d.user_id = u.user_id AND NOT starts_with(kind, '.'))
ORDER BY user_id LIMIT %s"""
_HOLDERS: LiteralString = """
SELECT user_id FROM {schema}.documents
WHERE kind = %s AND starts_with(kind, '.') AND user_id > %s ORDER BY user_id LIMIT %s"""
# One statement is one atomic transaction. Every part reads `head`, which is empty after a conflict.
_APPLY: LiteralString = """
WITH head AS (
    INSERT INTO {schema}.users AS u VALUES (%(user)s, 1, %(erasures)s)
    ON CONFLICT (user_id) DO UPDATE SET revision = u.revision + 1, epoch = u.epoch + %(erasures)s
        WHERE u.revision = %(revision)s
    RETURNING revision),
written AS (
    INSERT INTO {schema}.documents
    SELECT %(user)s, kind, head.revision, content
    FROM head, unnest(%(kinds)b::text[], %(contents)b::text[]) AS new (kind, content)
    ON CONFLICT (user_id, kind) DO UPDATE SET version = excluded.version, content = excluded.content),
logged AS (
    INSERT INTO {schema}.history
    SELECT %(user)s, seq, record
    FROM head, unnest(%(seqs)b::bigint[], %(records)b::text[]) AS new (seq, record))
SELECT revision FROM head"""
# Before `_APPLY` in one transaction; the row lock keeps other writers out in between.
_LOCK: LiteralString = "SELECT revision FROM {schema}.users WHERE user_id = %s FOR UPDATE"
_TOUCH: LiteralString = "UPDATE {schema}.users SET revision = revision + 1 WHERE user_id = %s"
_REMOVE: LiteralString = "DELETE FROM {schema}.documents WHERE user_id = %s AND kind = ANY(%s)"
_DROP: LiteralString = "DELETE FROM {schema}.history WHERE user_id = %s AND seq <= %s"


class PostgresDatabase:
    """One schema of a PostgreSQL database.

    Args:
        url: `postgresql://user@host/database`. The password may come from PGPASSWORD or a password file.
        schema: The schema of the tables. It is created at the first access if it does not exist.
        connections: The largest number of open connections.
        timeout: Seconds to wait for a connection.
    """

    durability: Durability = "full"

    def __init__(
        self, url: str, *, schema: str = "tomldiary", connections: int = 8, timeout: float = 5.0
    ) -> None:
        try:
            import psycopg_pool  # noqa: PLC0415 - an optional dependency
        except ImportError as error:
            raise MissingExtra("a PostgreSQL backend", "postgres") from error
        self._url = url
        self._schema = schema
        self._is_ready = False
        self._composed: dict[str, bytes] = {}
        self._settings: dict[str, Any] = {
            "autocommit": True,
            "connect_timeout": max(1, int(timeout)),
            "application_name": "tomldiary",
        }
        self._new_pool = partial(
            psycopg_pool.ConnectionPool,
            url,
            min_size=0,
            max_size=connections,
            timeout=timeout,
            kwargs=self._settings,
            open=False,
            name="tomldiary",
        )
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new pool: a forked child must not use the connections of its parent."""
        self._pool: ConnectionPool[psycopg.Connection[Any]] = self._new_pool()

    def __str__(self) -> str:
        """Return the address without user, password and parameters."""
        return without_secrets(self._url)

    # Statements

    def _sql(self, text: LiteralString) -> bytes:
        """Return a statement with the schema's name in it; each is composed once."""
        found = self._composed.get(text)
        if found is None:
            from psycopg import sql  # noqa: PLC0415 - an optional dependency

            found = sql.SQL(text).format(schema=sql.Identifier(self._schema)).as_bytes(None)
            self._composed[text] = found
        return found

    def _rows(self, text: LiteralString, *values: Any) -> list[tuple[Any, ...]]:
        return self._run(lambda connection: connection.execute(self._sql(text), values).fetchall())

    def _run(self, work: Callable[[psycopg.Connection[Any]], R]) -> R:
        import psycopg  # noqa: PLC0415 - an optional dependency
        import psycopg_pool  # noqa: PLC0415 - see above

        try:
            if not self._is_ready:
                self._prepare()
            if self._pool.closed:
                self._pool.open()
            with self._pool.connection() as connection:
                return work(connection)
        except (
            psycopg.OperationalError,
            psycopg.InterfaceError,
            psycopg_pool.PoolTimeout,
        ) as error:
            if not self._pool.closed:
                self._pool.check()  # a restarted server has closed the other connections too
            raise DatabaseLost(_reason(error)) from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise BackendError(
                f"{self}: a permission is missing ({_reason(error)}). Grant it, or let an owner create the schema"
                f" {self._schema!r}."
            ) from error
        except psycopg.Error as error:
            raise BackendError(f"{self}: the database refused ({_reason(error)}).") from error

    def _prepare(self) -> None:
        """Create the tables over a connection of its own, as the pool hides why it cannot connect.

        Raises:
            BackendError: The address is wrong, or the server refuses the user, the password or the database.
        """
        import psycopg  # noqa: PLC0415 - an optional dependency

        try:
            connection = psycopg.connect(self._url, **self._settings)
        except psycopg.ProgrammingError as error:
            raise self._not_an_address() from error
        except psycopg.OperationalError as error:
            message = str(error)
            if _INVALID.search(message):
                raise self._not_an_address() from error
            refused = _REFUSED.search(message)
            if refused is None:
                raise
            raise BackendError(
                f"{self}: the server refused the connection ({refused[1]}). Check the user, the password (PGPASSWORD"
                " or a password file) and the name of the database."
            ) from error
        with connection:
            self._create(connection)
        self._is_ready = True

    def _not_an_address(self) -> BackendError:
        # The message of the client may quote a part of the password.
        return BackendError(
            f"{self}: is not an address of PostgreSQL. Write postgresql://user@host:5432/database; percent-encode"
            " other signs."
        )

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the tables unless they exist.

        Raises:
            BackendError: The tables are of another version of this package.
        """
        found = connection.execute(_FOUND, [f'"{self._schema}".tomldiary']).fetchone()
        if found is None or found[0] is None:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
                connection.execute(self._sql(_CREATE))
                if connection.execute(_HAS_LZ4).fetchone() is not None:
                    connection.execute(self._sql(_USE_LZ4))
                connection.execute(self._sql(_SET_VERSION), [_VERSION])
        version = connection.execute(self._sql(_GET_VERSION)).fetchone()
        if version != (_VERSION,):
            raise BackendError(
                f"{self}: the tables in the schema {self._schema!r} have version {version and version[0]}; this"
                f" package uses {_VERSION}. Upgrade tomldiary-kit, or use another schema."
            )

    # Reading

    def head(self, user: str, kinds: Sequence[str] = ()) -> Head:
        """Return the state of a user, with the texts of `kinds`, in one statement."""
        rows = self._rows(_HEAD, list(kinds), user)
        if not rows:
            return Head()
        revision, epoch, versions, record, texts = rows[0]
        return Head(revision, epoch, versions or {}, record, texts or {})

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        if len(kinds) == 1:  # most reads; an array would take longer to send than the rest
            rows = self._rows(_READ_ONE, user, kinds[0])
        else:
            rows = self._rows(_READ, user, list(kinds))
        return {row[0]: (row[1], row[2]) for row in rows}

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        return [(row[0], row[1]) for row in self._rows(_RECORDS, user, below, limit)]

    def users(self) -> Iterator[str]:
        """Yield the ids of all users with documents, read in pages."""
        return self._ids(_USERS)

    def erased(self) -> Iterator[str]:
        """Yield the ids of all users without documents of whom data was erased."""
        return self._ids(_ERASED)

    def holders(self, kind: str) -> Iterator[str]:
        """Yield the ids of all users with a hidden document, read in pages."""
        return self._ids(_HOLDERS, kind)

    def _ids(self, text: LiteralString, *values: str) -> Iterator[str]:
        rows = self._rows(text, *values, "", _PAGE)
        while rows:
            yield from (row[0] for row in rows)
            rows = self._rows(text, *values, rows[-1][0], _PAGE)

    # Writing

    def apply(self, user: str, head: Head, step: Step) -> dict[str, Token] | None:
        """Apply a step if the revision is still that of `head`."""
        values = {
            "user": user,
            "revision": head.revision,
            "erasures": step.erasures,
            "kinds": list(step.contents),
            "contents": list(step.contents.values()),
            "seqs": [seq for seq, _ in step.records],
            "records": [text for _, text in step.records],
        }

        def run(connection: psycopg.Connection[Any]) -> tuple[Any, ...] | None:
            if not step.removed and not step.dropped:
                return connection.execute(self._sql(_APPLY), values).fetchone()
            with connection.transaction():
                found = connection.execute(self._sql(_LOCK), [user]).fetchone()
                if (found[0] if found is not None else 0) != head.revision:
                    return None
                connection.execute(self._sql(_REMOVE), [user, list(step.removed)])
                connection.execute(self._sql(_DROP), [user, step.dropped])
                return connection.execute(self._sql(_APPLY), values).fetchone()

        row = self._run(run)
        return None if row is None else dict.fromkeys(step.contents, row[0])

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user."""
        self._run(lambda connection: connection.execute(self._sql(_TOUCH), [user]))

    # Notices

    def listen(self) -> Listener:
        """Return a new connection that receives a notice of every change of a user."""
        import psycopg  # noqa: PLC0415 - an optional dependency
        from psycopg import sql  # noqa: PLC0415 - see above

        channel = f"tomldiary_{sha256(self._schema.encode()).hexdigest()[:32]}"
        names = {"schema": sql.Identifier(self._schema), "channel": sql.Literal(channel)}

        def prepare(connection: psycopg.Connection[Any]) -> None:
            table = [f'"{self._schema}".users']
            if connection.execute(_IS_WATCHED, table).fetchone() is not None:
                return
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", [_SCHEMA_LOCK])
                if connection.execute(_IS_WATCHED, table).fetchone() is None:
                    connection.execute(sql.SQL(_WATCH).format(**names))

        self._run(prepare)
        try:
            made = psycopg.connect(self._url, **self._settings, tcp_user_timeout=_PATIENCE)
        except psycopg.Error as error:
            raise DatabaseLost(_reason(error)) from error
        listener = _PostgresListener(made, channel)
        try:
            listener.execute(sql.SQL(_LISTEN).format(channel=sql.Identifier(channel)))
        except DatabaseLost:
            made.close()
            raise
        return listener

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _PostgresListener:
    """A connection that listens on a channel."""

    def __init__(self, connection: psycopg.Connection[Any], channel: str) -> None:
        self._connection = connection
        self._channel = channel
        self._received: list[str] = []
        connection.add_notify_handler(lambda notice: self._received.append(notice.payload))

    def execute(self, statement: sql.Composed | LiteralString, *values: str) -> None:
        """Run a statement; notices are received on the way."""
        import psycopg  # noqa: PLC0415 - an optional dependency

        try:
            self._connection.execute(statement, values)
        except psycopg.Error as error:
            raise DatabaseLost(_reason(error)) from error

    def wait(self, seconds: float) -> Sequence[Notice]:
        """Return the next notices, or nothing after some seconds."""
        if select.select([self._connection.fileno()], [], [], seconds)[0]:
            self.execute("SELECT 1")  # which reads them
        return self._taken()

    def check(self) -> Sequence[Notice]:
        """Return all notices sent before: notices arrive in their order, so the own one is the last of them.

        Raises:
            DatabaseLost: It did not arrive. A connection pooler in between delivers no notices.
        """
        mark = secrets.token_hex(8)
        self.execute("SELECT pg_notify(%s, %s)", self._channel, mark)
        if mark not in self._received:
            self.execute("SELECT 1")
        if mark not in self._received:
            raise DatabaseLost("notices do not arrive; is there a connection pooler?")
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


def _reason(error: Exception) -> str:
    """Return the server's short message, which quotes no value; else the kind of the error."""
    import psycopg  # noqa: PLC0415 - an optional dependency

    message = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    known = _LOST.search(str(error))
    return message or (known[0] if known is not None else type(error).__name__)


class PostgresBackend(SharedBackend):
    """Stores all users in a PostgreSQL database; see `PostgresDatabase` for the arguments."""

    options = ("schema", "connections", "timeout", "watch")
    part_size = 64 * 1024
    """Characters of a document before new entries go to another one: a write sends and stores the whole document."""

    def __init__(
        self,
        url: str,
        *,
        schema: str = "tomldiary",
        connections: int = 8,
        timeout: float = 10.0,
        watch: float = 0.0,
    ) -> None:
        database = PostgresDatabase(url, schema=schema, connections=connections, timeout=timeout)
        super().__init__(database, timeout=timeout, watch=watch)
