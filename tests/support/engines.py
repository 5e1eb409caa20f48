"""The places where a test keeps memories: a folder, this process, and a space of its own in each server.

Servers are found by the environment variables of `servers`; a test of one that is not there is skipped.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4
from weakref import WeakSet

import pytest

from servers import FIRESTORE, POSTGRES, REDIS
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.backend import SharedBackend

if TYPE_CHECKING:
    from collections.abc import Callable

_SERVERS = {
    "postgres": (POSTGRES, "{server}?schema={space}"),
    "redis": (REDIS, "{server}?prefix={space}"),
    "firestore": (FIRESTORE, "firestore://tests/{space}/users"),
}
"""The variable with the address of each server, and the address of a space in it; `_READERS` returns its texts."""
SERVERS = (*_SERVERS,)
SHARED = ("folder", *SERVERS)
"""Several processes may open these at once."""
ALL = ("memory", *SHARED)


_opened: WeakSet[Any] = WeakSet()
_LACKING: set[str] = set()
"""The reasons with which tests are skipped."""


class Engine(NamedTuple):
    """A place that holds nothing yet."""

    name: str
    url: str
    """What `Diary` opens."""
    server: str = ""
    """The server's address as the environment has it."""
    only: Any = None
    """The backend of a place in the memory of this process; there is no other."""

    def backend(self, **options: object) -> Any:
        """A new backend, as another process would open it."""
        made = self.only or open_backend(self.url, None)
        _opened.add(made)
        for name, value in options.items():
            setattr(made, name, value)
        return made

    def texts(self) -> str:
        """Everything that the place holds, as one text."""
        return _READERS[self.name](self)


def close_opened() -> None:
    """Close the connections of all backends that `Engine.backend` made."""
    for each in [*_opened]:
        if isinstance(each, SharedBackend):
            each.close()
    _opened.clear()


def needs(name: str) -> pytest.MarkDecorator:
    """Mark tests that need a server; without it they are skipped before anything is set up."""
    reason = f"no {name} server; run: python tests/support/servers.py python -m pytest"
    _LACKING.add(reason)
    return pytest.mark.skipif(not os.environ.get(_SERVERS[name][0]), reason=reason)


def with_one_of_each_file(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return tests without those that lack their server, except for the first one of each file and server.

    It is skipped in place of the others. Two thousand skipped tests would take several seconds.
    """
    kept, seen = [], set()
    for item in items:
        reasons = {
            mark.kwargs.get("reason") for mark in item.iter_markers("skipif") if mark.args[0]
        }
        lacking = {(item.path, each) for each in reasons if each in _LACKING}
        if not lacking or lacking - seen:
            kept.append(item)
        seen |= lacking
    return kept


def space(name: str, folder: Path | None = None) -> Engine:
    """A new place in a folder, in memory or in a server; skip the test if there is no server."""
    if name == "folder":
        assert folder is not None
        return Engine(name, str(folder / "memories"))
    if name == "memory":
        return Engine(name, "memory:", only=open_backend("memory:", None))
    variable, address = _SERVERS[name]
    server = os.environ.get(variable, "")
    if not server:
        pytest.skip(needs(name).kwargs["reason"])
    return Engine(name, address.format(server=server, space=f"t{uuid4().hex[:12]}"), server)


_EACH = [pytest.param(name, marks=needs(name)) for name in SERVERS]
on_each_server = pytest.mark.parametrize("engine", _EACH, indirect=True)
"""For a test of what the servers do differently, in a module with `one_server`."""


@pytest.fixture(params=_EACH)
def engine(request: pytest.FixtureRequest, disk: Path) -> Engine:
    """A new space in each of the servers; a module for other places has a fixture of this name."""
    return space(request.param, disk)


@pytest.fixture(name="engine", params=_EACH[:1])
def one_server(request: pytest.FixtureRequest, disk: Path) -> Engine:
    """A new space in one server, for a module that imports it: for what is the same code above all of them."""
    return space(request.param, disk)


@pytest.fixture
def opened(engine: Engine) -> Callable[..., Any]:
    """Opens backends on the place; they are closed after the test."""
    return engine.backend


def _folder_texts(engine: Engine) -> str:
    files = [path for path in sorted(Path(engine.url).rglob("*")) if path.is_file()]
    found: list[str] = []
    for path in files:
        with suppress(FileNotFoundError):  # a writer has removed it meanwhile
            found.append(f"{path}\n{path.read_bytes().decode(errors='replace')}")
    return "\n".join(found)


def _memory_texts(engine: Engine) -> str:
    return repr(vars(engine.only))


def _postgres_texts(engine: Engine) -> str:
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    found = []
    schema = engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server) as connection:
        for (table,) in connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = %s", [schema]
        ).fetchall():
            statement = f'SELECT t::text FROM "{schema}"."{table}" t'  # noqa: S608 - our own names
            found += connection.execute(statement).fetchall()
    return "\n".join(row[0] for row in found)


def _redis_texts(engine: Engine) -> str:
    import redis  # noqa: PLC0415 - see above

    found = []
    with redis.Redis.from_url(engine.server, decode_responses=True) as client:
        # A scan has no fixed order, and may return a key twice.
        for key in sorted({*client.scan_iter(f"{engine.url.rpartition('=')[2]}:*")}):
            read = {"hash": client.hgetall, "set": client.smembers, "string": client.get}.get(
                client.type(key)
            )
            found.append((key, read(key) if read is not None else client.zrange(key, 0, -1)))
    return repr(found)


def _firestore_texts(engine: Engine) -> str:
    from google.cloud import firestore  # noqa: PLC0415 - see above

    with closing(firestore.Client(project="tests")) as client:
        # A name would restrict the query to collections with this name.
        below = client.document("/".join(engine.url.split("/")[3:])).collection("")
        found = firestore.CollectionGroup(below).stream()
        return repr([(each.reference.path, each.to_dict()) for each in found])


_READERS = {
    "folder": _folder_texts,
    "memory": _memory_texts,
    "postgres": _postgres_texts,
    "redis": _redis_texts,
    "firestore": _firestore_texts,
}
