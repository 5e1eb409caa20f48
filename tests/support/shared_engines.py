"""The database servers of the tests, and a space of its own in them for each test."""

from __future__ import annotations

import os
from typing import Any, NamedTuple
from uuid import uuid4

import pytest

from servers import FIRESTORE, POSTGRES, REDIS
from tomldiary.storage.open import open_backend

NAMES = ("postgres", "redis", "firestore")
_VARIABLES = {"postgres": POSTGRES, "redis": REDIS, "firestore": FIRESTORE}


class Engine(NamedTuple):
    """A space in a server that holds nothing yet."""

    name: str
    server: str
    """Its address as the environment has it."""
    url: str

    def backend(self, **options: object) -> Any:
        """A new backend, as another process would open it."""
        made = open_backend(self.url, None)
        for name, value in options.items():
            setattr(made, name, value)
        return made

    def texts(self) -> str:
        """Everything that the server holds of this space, as one text."""
        return _READERS[self.name](self)


def engine(name: str) -> Engine:
    """A new space in the server, or skip the test if there is no server."""
    server = os.environ.get(_VARIABLES[name], "")
    if not server:
        pytest.skip(f"no {name} server; run: python tests/support/servers.py python -m pytest")
    space = f"t{uuid4().hex[:12]}"
    urls = {
        "postgres": f"{server}?schema={space}",
        "redis": f"{server}?prefix={space}",
        "firestore": f"firestore://tests/{space}/users",
    }
    return Engine(name, server, urls[name])


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
        for key in client.scan_iter(f"{engine.url.rpartition('=')[2]}:*"):
            read = {"hash": client.hgetall, "set": client.smembers, "string": client.get}.get(
                client.type(key)
            )
            found.append((key, read(key) if read is not None else client.zrange(key, 0, -1)))
    return repr(found)


def _firestore_texts(engine: Engine) -> str:
    from google.cloud import firestore  # noqa: PLC0415 - see above

    client = firestore.Client(project="tests")
    found = []

    def walk(collection: Any) -> None:
        for place in collection.list_documents():
            found.append((place.path, place.get().to_dict()))
            for below in place.collections():
                walk(below)

    for collection in client.document("/".join(engine.url.split("/")[3:])).collections():
        walk(collection)
    client.close()
    return repr(found)


_READERS = {"postgres": _postgres_texts, "redis": _redis_texts, "firestore": _firestore_texts}
