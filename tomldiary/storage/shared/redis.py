"""Stores memories in Redis or Valkey; a Lua script commits, because the server runs scripts atomically.

Keys, where `{user}` is the percent-encoded user id in braces:

    prefix:{user}:head       hash: revision, erasures
    prefix:{user}:texts      hash: document name -> version, line break, text
    prefix:{user}:versions   hash: document name -> version
    prefix:{user}:history    sorted set of records by sequence number
    prefix:users             set of all user ids with documents
    prefix:hidden.queue      set of all user ids with turns that wait for a writer
"""

from __future__ import annotations

import re
import sys
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar
from urllib.parse import quote, unquote, urlsplit

from tomldiary.errors import BackendError
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.installation import optional
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import (
    DatabaseAway,
    DatabaseLost,
    Head,
    Step,
    address,
    check_options,
    not_an_address,
    parsing,
)
from tomldiary.storage.shared.heads import EVERYTHING, notice_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tomldiary.storage.protocol import Token
    from tomldiary.storage.shared.heads import Listener, Notice

R = TypeVar("R")
_PAGE = 1000
_REMEDIES = {
    "'maxmemory'": "Its memory is full: raise maxmemory.",
    "MISCONF": "It cannot write to its disk: free space there, and read its log.",
    "NOREPLICAS": "Check its replicas and min-replicas-to-write.",
    "read only replica": "Use the address of the primary server.",
    "HELLO": "Write protocol=2 in the address.",
    "Protocol Error": "Check the address: another kind of server answers there.",
    "unknown command": "Use the address of a server that runs scripts; a Sentinel does not.",
}
"""Remedies, by a part of the server's message."""
# In the message for a command of a script: of Redis 6 and 7.0, and of later releases and Valkey.
_FORBIDDEN = re.compile("user executing the script|ACL failure in script")
_SCRIPT = re.compile(r" script: (?:\S+ )?on @|, with args")
"""Where a message names the script and quotes its arguments."""
# Messages of redis-py and of the server for a request that was not sent, or that a server refuses for a time.
_NOT_DONE = re.compile("connecting to |max number of clients|loading the dataset")
# KEYS: the beginning of the user's keys, and that of all keys. ARGV: the user.
_HEAD = """
local user, all = KEYS[1], KEYS[2]
local record = redis.call('ZREVRANGE', user .. 'history', 0, 0)
local head = redis.call('HMGET', user .. 'head', 'revision', 'erasures')
local texts = redis.call('HLEN', user .. 'texts')
local is_known = record[1] or redis.call('SISMEMBER', all .. 'users', ARGV[1]) == 1
if is_known and not head[1] then return false end
return {head[1] or '0', head[2] or '0', texts, redis.call('HGETALL', user .. 'versions'), record[1] or false}
"""
# KEYS: the beginning of the user's keys, and that of all keys.
# ARGV: revision, growth, erasures, dropped, the numbers of texts, removed names and records, the user, then these items.
_APPLY = """
local function is_hidden(kind) return string.sub(kind, 1, 1) == '.' end
local user, all = KEYS[1], KEYS[2]
local head, texts, versions, history = user .. 'head', user .. 'texts', user .. 'versions', user .. 'history'
local hidden = all .. 'hidden'
if (redis.call('HGET', head, 'revision') or '0') ~= ARGV[1] then return false end
local at = 9
-- An erasure begins with a write that needs no memory, so that a full server does not refuse it.
if ARGV[3] ~= '0' or ARGV[4] ~= '' then redis.call('SREM', all .. 'users', '') end
local revision = redis.call('HINCRBY', head, 'revision', ARGV[2])
if ARGV[3] ~= '0' then redis.call('HINCRBY', head, 'erasures', ARGV[3]) end
if ARGV[4] ~= '' then redis.call('ZREMRANGEBYSCORE', history, '-inf', ARGV[4]) end
for _ = 1, tonumber(ARGV[5]) do
    redis.call('HSET', texts, ARGV[at], ARGV[at + 1])
    redis.call('HSET', versions, ARGV[at], revision)
    if is_hidden(ARGV[at]) then redis.call('SADD', hidden .. ARGV[at], ARGV[8]) end
    at = at + 2
end
for _ = 1, tonumber(ARGV[6]) do
    redis.call('HDEL', texts, ARGV[at])
    redis.call('HDEL', versions, ARGV[at])
    if is_hidden(ARGV[at]) then redis.call('SREM', hidden .. ARGV[at], ARGV[8]) end
    at = at + 1
end
for _ = 1, tonumber(ARGV[7]) do
    redis.call('ZADD', history, ARGV[at], ARGV[at + 1])
    at = at + 2
end
local is_user = false
for _, kind in ipairs(redis.call('HKEYS', versions)) do
    is_user = is_user or not is_hidden(kind)
end
redis.call(is_user and 'SADD' or 'SREM', all .. 'users', ARGV[8])
return revision
"""
# The server does not undo a script at an error. So each command of a step is run here before the first step.
# If its memory is full, the server refuses only the first write of a script, and only if this needs memory.
# ARGV: 1 before an erasure, which needs no free memory, otherwise 0.
_CHECK_WRITES = """
local user, all = KEYS[1], KEYS[2]
local head, texts, versions, history = user .. 'head', user .. 'texts', user .. 'versions', user .. 'history'
if ARGV[1] == '1' then redis.call('SREM', all .. 'users', '') end
redis.call('ZADD', history, 'XX', 0, '')
redis.call('SREM', all .. 'users', '')
redis.call('HGET', head, '')
redis.call('HKEYS', versions)
redis.call('HDEL', texts, '')
redis.call('ZREMRANGEBYSCORE', history, '-inf', '+inf')
redis.call('HINCRBY', head, '', 1)
redis.call('HDEL', head, '')
redis.call('HSET', texts, '', '')
redis.call('HDEL', texts, '')
redis.call('ZADD', history, 0, '')
redis.call('ZREMRANGEBYSCORE', history, '-inf', '+inf')
redis.call('SADD', all .. 'users', '')
redis.call('SREM', all .. 'users', '')
"""


class RedisDatabase:
    """All keys with one prefix in a Redis or Valkey server.

    Args:
        url: `redis://` or `rediss://`, with user, password and database as redis-py reads them.
        prefix: The beginning of all keys.
        timeout: The time limit for a connection or an answer, in seconds.
    """

    def __init__(self, url: str, *, prefix: str = "tomldiary", timeout: float = 5.0) -> None:
        redis = optional("redis", "a Redis backend", "redis")
        check_options(timeout, url=url, prefix=prefix)
        self._url = url
        self._prefix = prefix
        parts = urlsplit(url)
        if (
            parts.scheme != "unix"
            and not parts.path.strip("/").isdecimal()
            and parts.path.strip("/")
        ):
            raise BackendError(
                f"{self}: a database of Redis has a number. Write redis://host:6379/0;"
                " percent-encode special characters."
            )
        self._new_pool = partial(
            _pool_class(redis).from_url, socket_timeout=timeout, socket_connect_timeout=timeout
        )
        try:
            pool: Any = self._new_pool(url)
            pool.connection_class(**pool.connection_kwargs)  # refuses unknown options
        except (TypeError, ValueError, redis.RedisError) as error:
            raise not_an_address(
                url, "Redis", "redis://host:6379/0", "redis-py", RedisBackend.options, error
            ) from None
        self._client: Any = redis.Redis(connection_pool=pool)
        self._may_write = False
        renew_after_fork(self)
        # Else the garbage collector may meet an open socket before the connection that would close it.
        weakref.finalize(self, _disconnect, self._client).atexit = False

    def renew(self) -> None:
        """Make a new pool in a forked child: another thread of the parent may have held the lock of the old one."""
        self._client.connection_pool = self._new_pool(self._url)

    def __str__(self) -> str:
        return address(self._url, "prefix", self._prefix)

    def risk(self) -> str:
        """Return how the server may lose writes; "" if it syncs each one to its append-only file and evicts no keys."""
        from redis import exceptions  # noqa: PLC0415 - an optional dependency

        try:
            settings = self._run(lambda: self._client.config_get("append*"))
            settings |= self._run(lambda: self._client.config_get("maxmemory*"))
        except BackendError as error:
            if isinstance(error.__cause__, exceptions.AuthenticationError):
                raise
            return (
                "does not show its append-only settings, so losses after a crash are unknown."
                " Grant the user +config|get."
            )
        if settings.get("maxmemory") != "0" and settings.get("maxmemory-policy", "").startswith(
            "allkeys"
        ):
            return "removes keys when its memory is full, so it loses writes. Set maxmemory-policy noeviction."
        if settings.get("appendonly") != "yes":
            return "has no append-only file, so a restart loses writes. Set appendonly yes."
        if settings.get("appendfsync") != "always":
            return (
                "syncs its append-only file every second, so a power cut loses up to a second of writes."
                " Set appendfsync always."
            )
        return ""

    def _run(self, work: Callable[[], R]) -> R:
        from redis import exceptions  # noqa: PLC0415 - an optional dependency

        try:
            return work()
        except exceptions.AuthenticationError as error:
            raise BackendError(
                f"{self}: refuses the user or the password. Check the address."
            ) from error
        except (exceptions.ConnectionError, exceptions.TimeoutError) as error:
            cause = error.__context__
            reason = getattr(cause, "strerror", None)  # of the system or of TLS
            if self._url.startswith("rediss:") and isinstance(cause, FileNotFoundError):
                reason = f"a file of certificates: {reason}"
            lost = DatabaseAway if _NOT_DONE.search(f"{error}") else DatabaseLost
            raise lost(reason or f"{error}".rstrip(".") or type(error).__name__) from error
        except exceptions.RedisError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> BackendError | DatabaseAway:
        """Return the error for a request that the server has answered with an error."""
        from redis import exceptions as known  # noqa: PLC0415 - an optional dependency

        is_orphan = isinstance(error, known.MasterDownError)  # a ClusterDownError as well
        if is_orphan or isinstance(error, known.ReadOnlyError):
            self.close()  # the address may lead to another server now
        reason = _SCRIPT.split(str(error))[0].partition(". ")[0].rstrip(".")
        if is_orphan or reason.startswith("BUSY "):  # nothing was done, and it may pass soon
            return DatabaseAway(reason)
        if isinstance(error, known.ClusterCrossSlotError | known.ClusterDownError | known.AskError):
            return BackendError(
                f"{self}: Redis Cluster is not supported. Use the address of a server without it."
            )
        if isinstance(error, known.NoPermissionError) or _FORBIDDEN.search(reason):
            return BackendError(
                f"{self}: a permission is missing ({reason}). Grant the user ~{self._prefix}:* +@read +@write"
                " +@scripting +@connection, and for watch also +@pubsub &__redis__:invalidate."
            )
        remedy = next(
            (each for part, each in _REMEDIES.items() if part in reason),
            "Check the number of the database and the server's settings.",
        )
        return BackendError(f"{self}: the server refused ({reason}). {remedy}")

    def _evaluated(self, script: str, keys: Sequence[str], *values: Any) -> Any:
        # Not by its SHA-1: the server may drop a script at any time, and sending it costs little.
        return self._run(lambda: self._client.eval(script, len(keys), *keys, *values))

    def _key(self, user: str, part: str = "") -> str:
        return f"{self._prefix}:{{{quote(user, safe='')}}}:{part}"

    def head(
        self,
        user: str,
        known: Head | None = None,  # noqa: ARG002 - one request reads all
    ) -> Head:
        """Return the state of a user in one request.

        Raises:
            BackendError: The state is damaged: for example, a server with full memory has removed one of its keys.
        """
        with parsing(self, user):  # also of a text that is not UTF-8
            state = self._evaluated(_HEAD, [self._key(user), f"{self._prefix}:"], user)
            if state is None:
                raise ValueError("the first key of the user is missing")
            revision, epoch, texts, versions, record = state
            found = dict(zip(versions[::2], map(int, versions[1::2]), strict=True))
            if len(found) != texts or max(found.values(), default=0) > int(revision):
                raise ValueError("a key of the user is missing")
            return Head(int(revision), int(epoch), found, record)

    def read(self, user: str, kinds: Sequence[str]) -> dict[str, tuple[str, Token]]:
        """Return the texts and versions of those documents that exist."""
        if not kinds:
            return {}
        place = self._key(user, "texts")
        with parsing(self, user):
            values = self._run(lambda: self._client.hmget(place, list(kinds)))
            return {
                kind: _split(value)
                for kind, value in zip(kinds, values, strict=True)
                if value is not None
            }

    def records(self, user: str, below: int, limit: int) -> list[tuple[int, str]]:
        """Return at most `limit` history records with lower sequence numbers, newest first."""
        read = partial(self._client.zrevrangebyscore, self._key(user, "history"), f"({below}")
        with parsing(self, user):
            found = self._run(lambda: read("-inf", start=0, num=limit, withscores=True))
            return [(int(score), text) for text, score in found]

    def users(self) -> list[str]:
        """Return the ids of all users with documents."""
        return self._members("users")

    def erased(self) -> Iterator[str]:
        """Yield the ids of all users without documents and with erased data; reads the names of all keys."""
        start, end = f"{self._prefix}:{{", "}:head"
        pattern = re.sub(r"([\\*?\[\]])", r"\\\1", start) + "*" + end
        scan = partial(self._client.scan_iter, match=pattern, count=_PAGE, _type="hash")
        for key in self._run(lambda: list(scan())):
            name = key.removeprefix(start).removesuffix(end)
            if "{" in name:  # of another memory, whose prefix has braces
                continue
            user = unquote(name)
            erasures = self._run(partial(self._client.hget, key, "erasures"))
            is_left = partial(self._client.sismember, f"{self._prefix}:users", user)
            if int(erasures or 0) and not self._run(is_left):
                yield user

    def holders(self, kind: str) -> list[str]:
        """Return the ids of all users with a hidden document."""
        return self._members(f"hidden{kind}")

    def _members(self, name: str) -> list[str]:
        scan = partial(self._client.sscan_iter, f"{self._prefix}:{name}", count=_PAGE)
        return self._run(lambda: list(scan()))

    def apply(self, user: str, head: Head, step: Step) -> Head | None:
        """Apply a step if the revision is still that of `head`."""
        if not self._may_write:
            self.check_writes(is_erasure=bool(step.erasures or step.dropped))
            self._may_write = True
        keys = [self._key(user), f"{self._prefix}:"]
        values: list[Any] = [head.revision, step.growth, step.erasures, step.dropped or ""]
        values += [len(step.contents), len(step.removed), len(step.records), user]
        version = head.revision + step.growth
        for kind, content in step.contents.items():
            values += [kind, f"{version}\n{content}"]
        values += step.removed
        values += [each for pair in step.records for each in pair]
        try:
            revision = self._evaluated(_APPLY, keys, *values)
        except (BackendError, DatabaseLost):
            # A permission may have been withdrawn, or another server may answer.
            self._may_write = False
            raise
        if revision is None:
            return None
        return head.after(step, dict.fromkeys(step.contents, revision))

    def touch(self, user: str) -> None:
        """Add 1 to the revision of a user."""
        self._run(lambda: self._client.hincrby(self._key(user, "head"), "revision", 1))

    def check_writes(self, *, is_erasure: bool = False) -> None:
        """Run each command of a step with the keys of an empty user id, and leave nothing."""
        keys = [self._key(""), f"{self._prefix}:"]
        self._evaluated(_CHECK_WRITES, keys, int(is_erasure))

    def listen(self) -> Listener:
        """Return a new connection on which the server sends a notice of every changed key."""
        # RESP3, which an address may ask for, delivers notices in another way.
        url = re.sub(r"(?<=[?&]protocol=)[^&]*", "2", self._url)
        pool: Any = self._new_pool(url, protocol=2)
        listener = _RedisListener(pool.make_connection(), self._run, f"{self._prefix}:{{")
        try:
            listener.open()
        except BaseException:
            listener.close()
            raise
        return listener

    def close(self) -> None:
        """Close all connections, except those in use; a later call opens new ones."""
        self._client.connection_pool.disconnect(inuse_connections=False)


def _pool_class(redis: Any) -> Any:
    """Return a class of pools that ignore the encoding of an address, and close a connection with an unread answer.

    The exception of a signal handler, such as KeyboardInterrupt, can end a call between its request and the answer.
    The next call on this connection would read that answer, which may be of another user.
    """
    own = {
        "decode_responses": True,
        "encoding": "utf-8",
        "encoding_errors": "strict",
        # A step must not be sent twice: the effect of the first one would refuse the second.
        "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0),
    }

    class Pool(redis.ConnectionPool):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options | own)  # pyright: ignore[reportUnknownMemberType] - redis has no types for it

        def release(self, connection: Any) -> None:
            if not isinstance(sys.exception(), redis.RedisError | None):
                connection.disconnect()
            super().release(connection)  # pyright: ignore[reportUnknownMemberType] - redis has no types for it

    return Pool


def _disconnect(client: Any) -> None:
    """Close the connections of a database object that was dropped without `close`."""
    client.connection_pool.disconnect()


class _RedisListener:
    """A connection that receives the server's invalidation messages for client-side caching."""

    def __init__(
        self, connection: Any, run: Callable[[Callable[[], Any]], Any], start: str
    ) -> None:
        self._connection = connection
        self._run = run
        self._start = start

    def open(self) -> None:
        """Subscribe to the messages."""
        run, start = self._run, self._start
        number = run(lambda: self._request("CLIENT", "ID"))
        tracking = ("CLIENT", "TRACKING", "ON", "REDIRECT", str(number), "BCAST", "PREFIX", start)
        run(lambda: self._request(*tracking))
        run(lambda: self._request("SUBSCRIBE", "__redis__:invalidate"))

    def _request(self, *command: str) -> Any:
        self._connection.send_command(*command)
        return self._connection.read_response()

    def wait(self, seconds: float) -> Sequence[Notice]:
        """Return the next notices, or nothing after `seconds`."""
        if not self._run(lambda: self._connection.can_read(timeout=seconds)):
            return ()
        return self._notices(self._run(self._connection.read_response))

    def check(self) -> Sequence[Notice]:
        """Return all notices that the server sent before its answer to a PING."""
        found: list[Notice] = []
        answer = self._run(lambda: self._request("PING"))
        while answer[0] == "message":
            found += self._notices(answer)
            answer = self._run(self._connection.read_response)
        return found

    def _notices(self, message: Any) -> list[Notice]:
        keys: list[str] | None = message[2]
        if keys is None:  # the whole database was emptied
            return [(EVERYTHING, None)]
        users = {key.removeprefix(self._start).partition("}")[0] for key in keys}
        return [(notice_key(unquote(user)), None) for user in users]

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()


def _split(value: str) -> tuple[str, int]:
    """Return the text and the version of a document."""
    version, _, text = value.partition("\n")
    return text, int(version)


class RedisBackend(SharedBackend):
    """Stores all users in a Redis or Valkey server; see `RedisDatabase` and `SharedBackend` for the arguments."""

    options: ClassVar = {"prefix": str, "timeout": float, "watch": float}
    part_size = 32 * 1024
    """The size in characters at which new entries go to another document, as a write stores whole documents."""

    def __init__(
        self, url: str, *, prefix: str = "tomldiary", timeout: float = 10.0, watch: float = 0.0
    ) -> None:
        database = RedisDatabase(url, prefix=prefix, timeout=timeout)
        super().__init__(database, timeout=timeout, watch=watch)
