"""Stores memories in a PostgreSQL database: one statement reads a user's state, one statement commits."""

from __future__ import annotations

import _thread
import os
import re
import time
import weakref
from contextlib import suppress
from functools import partial
from hashlib import sha256
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, LiteralString, NoReturn, TypeVar

from tomldiary.errors import BackendError, MissingExtra
from tomldiary.logging import get_logger, tell
from tomldiary.runtime.fork_safety import fork_safe, renew_after_fork
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import (
    DatabaseAway,
    DatabaseLost,
    Head,
    Step,
    address,
    check_options,
    not_an_address,
    stored_id,
    user_of,
)
from tomldiary.storage.shared.postgres import statements
from tomldiary.storage.shared.postgres.listener import PostgresListener, reason
from tomldiary.toml.values import checked_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import psycopg
    from psycopg_pool import ConnectionPool

    from tomldiary.storage.protocol import Token
    from tomldiary.storage.shared.heads import Listener

R = TypeVar("R")
_logger = get_logger(__name__)
_VERSION = 1
_PAGE = 1000
_LONGEST_NAME = 63  # bytes; PostgreSQL would cut a longer one
_PATIENCE = 5000  # milliseconds without an acknowledgement until a connection counts as broken
_SLICE = 0.25  # seconds between two checks whether a pool was closed
# Seconds until a pool stops reconnecting. Until then it doubles its pauses, and a call cannot make it connect.
_RETRYING = 1.0
# The reason for a permanent refusal of a connection. All others, such as a starting server, may be temporary; the client
# library gives no code that tells, and the server may write its messages in another language.
_REFUSED = re.compile(
    r"(?:FATAL: +|fe_sendauth: )"
    r"(.*(?:authentication|password|pg_hba|permi|certificate|SSL|does not exist|no such|not found|parameter|not currently"
    r" accepting).*)"
)
_READ_ONLY = "25006"
_REFUSALS = {
    "22P05": ("a character is missing in its encoding", "Use a database with the encoding UTF8."),
    _READ_ONLY: (
        "the server takes no writes",
        "Use the address of the primary server, or set default_transaction_read_only off.",
    ),
    "25P03": ("this process stopped during a change", "Nothing was changed. Repeat the call."),
    "42P07": ("the schema has other tables", "Name another one, such as ?schema=memories."),
    "42501": (
        "a permission is missing",
        (
            "Grant USAGE on the schema {schema} and SELECT, INSERT, UPDATE and DELETE on its tables."
            " If it is missing, let an owner create the schema, and grant CREATE on it."
        ),
    ),
    "53100": ("the disk of the server is full", "Nothing was changed. Free space on it."),
    "54000": ("a key is too long", "Nothing was changed. Use a shorter user id or namespace."),
    "55P03": (
        "a lock was held too long",
        "Nothing was changed. Repeat the call, or raise lock_timeout.",
    ),
    "57014": (
        "the server ended a statement",
        "Nothing was changed. Repeat the call, or raise statement_timeout.",
    ),
}
"""The meaning of a statement's error, and its remedy, by SQLSTATE."""
_ANOTHER_REFUSAL = ("the database refused", "Check the schema {schema} and its tables.")
_INVALID = re.compile(
    r'invalid (?:integer value|port|connection option|"?\w+"? value)|Servname not supported'
)


class PostgresDatabase:
    """One schema of a PostgreSQL database.

    Args:
        url: `postgresql://user@host/database`. The password may come from PGPASSWORD or a password file.
        schema: The schema of the tables. It is created at the first access if it does not exist.
        connections: The maximum number of open connections.
        timeout: The time limit for a connection or an answer, in seconds.
    """

    def __init__(
        self, url: str, *, schema: str = "tomldiary", connections: int = 8, timeout: float = 5.0
    ) -> None:
        try:
            import psycopg  # noqa: PLC0415 - an optional dependency
            from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415 - see above

            from tomldiary.storage.shared.postgres.connection import Pool, connection_class  # noqa: PLC0415 - see above
        except ImportError as error:
            raise MissingExtra("a PostgreSQL backend", "postgres") from error
        check_options(timeout, url=url, schema=schema)
        checked_count(connections, "connections", least=1)
        if not 0 < len(schema.encode()) <= _LONGEST_NAME or "%" in schema:
            raise BackendError(
                f"the schema name {schema!r} is invalid. Use 1 to {_LONGEST_NAME} bytes without a percent sign."
            )
        self._url = url
        try:
            parameters = conninfo_to_dict(url)
        except (psycopg.ProgrammingError, UnicodeError) as error:
            raise self._not_an_address(error) from None
        self._schema = schema
        self._is_ready = False
        self._composed: dict[str, bytes] = {}
        self._connections = connection_class(timeout)
        self._milliseconds = str(max(1, int(timeout * 1000)))
        self._settings: dict[str, Any] = {
            "autocommit": True,
            "client_encoding": "utf8",  # the default is the encoding of the database
            "connect_timeout": max(1, int(timeout / _attempts(parameters))),
            "fallback_application_name": "tomldiary",
            "tcp_user_timeout": self._milliseconds,
        }
        self._new_pool = partial(
            Pool,
            url,
            min_size=0,
            max_size=connections,
            timeout=timeout,
            reconnect_timeout=_RETRYING,
            kwargs=self._settings,
            connection_class=self._connections,
            open=False,
            name="tomldiary",
        )
        self._preparing, self._replacing = fork_safe(Lock()), fork_safe(Lock())
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Make a new pool: a forked child must not use the connections of its parent."""
        pool: ConnectionPool[psycopg.Connection[Any]] = self._new_pool()
        self._pool, self._dropped = pool, weakref.finalize(self, _close_dropped, pool, os.getpid())
        self._dropped.atexit = False

    def __str__(self) -> str:
        return address(self._url, "schema", self._schema)

    def risk(self) -> str:
        """Return how the server may lose writes; "" if a commit waits until it is on the server's disk."""
        off = " and ".join(name for (name,) in self._rows(statements.MAY_LOSE))
        return off and f"has {off} off, so a power cut loses writes. Set it on."

    # Statements

    def _sql(self, text: LiteralString) -> bytes:
        """Return a statement with the schema's name; each statement is composed once."""
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

        pool, connection = self._pool, None
        try:
            self._prepare()
            pool.open()  # has no effect on an open pool
            connection = self._taken(pool)
            try:
                return work(connection)
            finally:
                pool.putconn(connection)
        except psycopg.Error as error:
            lost = psycopg.OperationalError, psycopg.InterfaceError
            refusal = _REFUSALS.get(error.sqlstate or "")
            is_closed = connection is not None and connection.closed
            # A server that closes a connection may have applied the statement, such as one whose log has no space left.
            if isinstance(error, lost) and (refusal is None or is_closed):
                if is_closed:
                    # The other connections are lost too; to test each one would take a timeout each.
                    self._replace(pool, patience=0.1)
                away = DatabaseAway if connection is None else DatabaseLost
                raise away(reason(error)) from error
            if error.sqlstate == _READ_ONLY:
                self._replace(pool, patience=0.1)  # the address may lead to another server now
            what, remedy = refusal or _ANOTHER_REFUSAL
            remedy = remedy.format(schema=repr(self._schema))
            raise BackendError(f"{self}: {what} ({reason(error)}). {remedy}") from error
        except (BackendError, DatabaseLost):
            raise
        except BaseException:
            # The exception of a signal handler may have kept a connection from returning to the pool.
            self._replace(pool, patience=0.1)
            raise

    def _prepare(self) -> None:
        """Create the tables once, over a separate connection, because the pool hides why it cannot connect.

        One thread at a time does so, because each one opens a connection.

        Raises:
            BackendError: The address is wrong, or the server refuses the user, the password or the database.
        """
        import psycopg  # noqa: PLC0415 - an optional dependency

        if self._is_ready:
            return
        patience = self._pool.timeout
        if not self._preparing.acquire(timeout=patience):
            raise DatabaseAway(f"no connection within {patience:g} seconds; is the server silent?")
        try:
            if self._is_ready:
                return
            try:
                connection = self._connections.connect(self._url, **self._settings)
            except psycopg.OperationalError as error:
                self._refuse(error)
            with connection:
                self._create(connection)
            self._is_ready = True
        finally:
            self._preparing.release()

    def _taken(self, pool: ConnectionPool[psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
        """Return a connection of a pool, or raise an error soon after another thread closes the pool.

        A pool checks that it is open before it queues a call. A call that is queued after a close gets no connection.
        """
        import psycopg_pool  # noqa: PLC0415 - an optional dependency

        deadline = time.monotonic() + pool.timeout
        while True:
            rest = deadline - time.monotonic()
            try:
                return pool.getconn(min(rest, _SLICE))
            except psycopg_pool.PoolTimeout as error:
                if rest > _SLICE:
                    continue
                failure = self._connections.failure
                if failure is not None:
                    self._refuse(failure)
                raise DatabaseAway(
                    f"no connection within {pool.timeout:g} seconds; is the server silent, or are all {pool.max_size} in use?"
                ) from error

    def _refuse(self, error: psycopg.Error) -> NoReturn:
        """Raise the error for a connection that could not be opened."""
        message = str(error)
        if _INVALID.search(message):
            raise self._not_an_address(error) from None
        refused = _REFUSED.search(message)
        if refused is None:
            raise DatabaseAway(reason(error)) from error
        raise BackendError(
            f"{self}: the server refused the connection ({refused[1]}). Check the user, the password (PGPASSWORD"
            " or a password file), the name of the database and the options of the address."
        ) from error

    def _not_an_address(self, error: Exception) -> BackendError:
        example = "postgresql://user@host:5432/database"
        options = PostgresBackend.options
        return not_an_address(self._url, "PostgreSQL", example, "libpq", options, error)

    def _create(self, connection: psycopg.Connection[Any]) -> None:
        """Create the tables unless they exist.

        Raises:
            BackendError: The tables have the version of another release of this package, or their rows are hidden.
        """
        if not self._has_tables(connection):
            with connection.transaction():
                connection.execute(statements.LOCK_SCHEMA, [self._milliseconds])
                if not self._has_tables(connection):  # another process may have been faster
                    self._create_tables(connection)
        unseen = connection.execute(statements.UNSEEN, [self._schema]).fetchall()
        if unseen:
            names = ", ".join(name for (name,) in unseen)
            raise BackendError(
                f"{self}: row-level security hides the rows of these tables in the schema {self._schema!r} from the role"
                f" {connection.info.user!r}: {names}. Add a policy for the role, or disable row-level security there."
            )
        version = connection.execute(self._sql(statements.GET_VERSION)).fetchone()
        if version != (_VERSION,):
            raise BackendError(
                f"{self}: the tables in the schema {self._schema!r} have version {version and version[0]}; this"
                f" package uses {_VERSION}. Upgrade tomldiary-kit, or use another schema."
            )

    def _has_tables(self, connection: psycopg.Connection[Any]) -> bool:
        return connection.execute(statements.FOUND, [self._schema]).fetchone() is not None

    def _create_tables(self, connection: psycopg.Connection[Any]) -> None:
        # A role without CREATE on the database may still create tables in an existing schema.
        if connection.execute(statements.HAS_SCHEMA, [self._schema]).fetchone() is None:
            connection.execute(self._sql(statements.CREATE_SCHEMA))
            if connection.info.user == self._schema:
                tell(
                    _logger,
                    f"{self}: the schema {self._schema!r} has the name of the role, so other programs of this role look"
                    " up and create tables there, before `public`. Use another role, or add ?schema=… to the address.",
                )
        connection.execute(self._sql(statements.CREATE))
        if connection.execute(statements.HAS_LZ4).fetchone() is not None:
            connection.execute(self._sql(statements.USE_LZ4))
        connection.execute(self._sql(statements.SET_VERSION), [_VERSION])

    # Reading

    def head(
        self,
        user: str,
        known: Head | None = None,  # noqa: ARG002 - one request reads all
    ) -> Head:
        """Return the state of a user in one statement."""
        head, name = Head(), stored_id(user)
        for kind, number, epoch, record in self._rows(statements.HEAD, name, name):
            if kind is None:
                head.revision, head.epoch, head.record = number, epoch, record
            else:
                head.versions[kind] = number
        return head

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        if len(kinds) == 1:  # most reads; to send an array would take longer than the rest
            rows = self._rows(statements.READ_ONE, stored_id(user), kinds[0])
        else:
            rows = self._rows(statements.READ, stored_id(user), list(kinds))
        return {row[0]: (row[1], row[2]) for row in rows}

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        rows = self._rows(statements.RECORDS, stored_id(user), below, limit)
        return [(row[0], row[1]) for row in rows]

    def users(self) -> Iterator[str]:
        """Yield the ids of all users with documents, read in pages."""
        return self._ids(statements.USERS)

    def erased(self) -> Iterator[str]:
        """Yield the ids of all users without documents and with erased data."""
        return self._ids(statements.ERASED)

    def holders(self, kind: str) -> Iterator[str]:
        """Yield the ids of all users with a hidden document, read in pages."""
        return self._ids(statements.HOLDERS, kind)

    def _ids(self, text: LiteralString, *values: str) -> Iterator[str]:
        last = ""
        while True:
            rows = self._rows(text, *values, last, _PAGE)
            yield from (user_of(row[0]) for row in rows)
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    # Writing

    def apply(self, user: str, head: Head, step: Step) -> Head | None:
        """Apply a step if the revision is still that of `head`."""
        values: dict[str, Any] = {
            "user": stored_id(user),
            "revision": head.revision,
            "erasures": step.erasures,
            "growth": step.growth,
        }
        if len(step.contents) == len(step.records) == 1 and not (step.removed or step.dropped):
            statement = statements.APPLY_ONE
            [(values["kind"], values["content"])] = step.contents.items()
            [(values["seq"], values["record"])] = step.records
        else:
            statement = statements.APPLY_DROP if step.dropped else statements.APPLY_ANY
            values["kinds"], values["contents"] = [*step.contents], [*step.contents.values()]
            values["seqs"] = [seq for seq, _ in step.records]
            values["records"] = [text for _, text in step.records]
            values["removed"], values["dropped"] = [*step.removed], step.dropped
        row = self._run(lambda made: made.execute(self._sql(statement), values).fetchone())
        return None if row is None else head.after(step, dict.fromkeys(step.contents, row[0]))

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user."""
        name = stored_id(user)
        self._run(lambda connection: connection.execute(self._sql(statements.TOUCH), [name]))

    def check_writes(self) -> None:
        """Run the statements of a step for an empty user id, which no user has."""
        self.touch("")
        self.apply("", Head(revision=-1), Step(removed=[""], dropped=1))

    # Notices

    def listen(self) -> Listener:
        """Return a new connection that receives a notice of every change of a user.

        Raises:
            DatabaseLost: There is a connection pooler, which may lose notices even if it delivers some.
        """
        import psycopg  # noqa: PLC0415 - an optional dependency
        from psycopg import sql  # noqa: PLC0415 - see above

        channel = f"tomldiary_{sha256(self._schema.encode()).hexdigest()[:32]}"
        names = {"schema": sql.Identifier(self._schema), "channel": sql.Literal(channel)}

        table = sql.Identifier(self._schema, "users").as_string(None)

        def prepare(connection: psycopg.Connection[Any]) -> str:
            if connection.prepare_threshold is None:  # see `connection_class`
                raise DatabaseLost(
                    "a connection pooler loses notices; watch needs the server's own address"
                )
            find = partial(connection.execute, statements.IS_WATCHED, [table, channel])
            with connection.transaction():
                connection.execute(statements.LOCK_SCHEMA, [self._milliseconds])
                if not (found := find().fetchall()):
                    try:
                        connection.execute(sql.SQL(statements.WATCH).format(**names))
                    except psycopg.errors.InsufficientPrivilege as error:
                        raise DatabaseLost(
                            f"{reason(error)}; the owner of the tables must open a diary with watch first"
                        ) from error
                    found = find().fetchall()
            return found[0][0]

        trigger = self._run(prepare)
        settings: dict[str, Any] = {**self._settings, "tcp_user_timeout": _PATIENCE}
        try:
            made = self._connections.connect(self._url, **settings)
        except psycopg.Error as error:
            raise DatabaseLost(reason(error)) from error
        listener = PostgresListener(made, channel, table, trigger)
        try:
            listener.execute(sql.SQL(statements.LISTEN).format(channel=sql.Identifier(channel)))
        except DatabaseLost:
            made.close()
            raise
        return listener

    def close(self) -> None:
        """Close all connections; a later call opens new ones."""
        self._replace(self._pool)

    def _replace(self, pool: ConnectionPool[psycopg.Connection[Any]], patience: float = 5) -> None:
        """Make a new pool, and close the old one, which cannot be reopened; wait `patience` seconds for its threads."""
        with self._replacing:
            if self._pool is pool:
                self._dropped.detach()
                self.renew()
        pool.close(patience)


def _attempts(parameters: Mapping[str, Any]) -> int:
    """Return the number of parts of a time limit in which a call connects although all hosts but one are silent.

    A first call opens two connections, and each one asks the hosts in turn.
    """
    named = (parameters.get("host"), parameters.get("hostaddr"), os.environ.get("PGHOST"))
    hosts = str(next(filter(None, named), "")).count(",") + 1
    return 2 * hosts if hosts > 1 else 1


def _close_dropped(pool: ConnectionPool[psycopg.Connection[Any]], pid: int) -> None:
    """Close the pool of a database object that was dropped without `close`, unless it is the pool of a parent process.

    A pool that is collected waits for its threads to end, and fails if it is collected in one of them.
    """
    if pid == os.getpid() and not pool.closed:
        with suppress(RuntimeError):  # the interpreter is shutting down
            # Not a `Thread`: its start acquires locks that the current thread may already hold.
            _thread.start_new_thread(pool.close, ())


class PostgresBackend(SharedBackend):
    """Stores all users in a PostgreSQL database; see `PostgresDatabase` and `SharedBackend` for the arguments."""

    options: ClassVar = {"schema": str, "connections": int, "timeout": float, "watch": float}
    part_size = 32 * 1024
    """The size in characters at which new entries go to another document, as a write stores whole documents."""

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
