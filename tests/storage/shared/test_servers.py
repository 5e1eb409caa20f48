"""Servers that restart, refuse or are missing: one clear error in time, without a secret, and then it goes on."""

from __future__ import annotations

import contextlib
import gc
import importlib
import inspect
import json
import logging
import re
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import engines
import servers
from tomldiary import BackendError, Diary, MemoryWriter, Turn
from tomldiary.cli.app import app, run
from tomldiary.doctor.doctor import check
from tomldiary.errors import InvalidValue, MissingExtra
from tomldiary.storage import FirestoreBackend, PostgresBackend, RedisBackend
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import DatabaseLost, Head, Step, unreachable
from waiting import until

IN_TIME = 20  # seconds: a busy machine takes part of them; without the limit a client would try for longer


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://ann:secret@127.0.0.1:{port}/x?timeout=0.2",
        "postgresql://ann:sec#secret@127.0.0.1:{port}/x?timeout=0.2",
        "postgresql:///x?host=/missing&user=ann&password=secret&timeout=0.2",
        "redis://:secret@127.0.0.1:{port}/0?timeout=0.2",
        "unix:///missing.sock?username=ann&password=secret&timeout=0.2",
        "firestore://project/app/memory?timeout=0.2",
    ],
)
def test_a_refused_connection_is_one_error_within_the_timeout(url, monkeypatch):
    port = servers.free_port()
    monkeypatch.setenv(servers.FIRESTORE, f"127.0.0.1:{port}")  # an emulator that is not running
    alice = Diary(url.format(port=port), agent="rules").user("alice")
    begin = time.monotonic()
    with pytest.raises(BackendError, match="cannot be reached") as caught:
        alice.preferences()
    assert time.monotonic() - begin < IN_TIME
    assert "secret" not in str(caught.value)
    alice.diary.engine.backend.close()


def asked(engine, query, *values):
    """Return the rows of a query on a connection of its own."""
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    with psycopg.connect(engine.server) as connection:
        return connection.execute(query, values).fetchall()


def refusal(url):
    """Return what `doctor` says of a database that cannot be used, and check that it says it in time."""
    begin = time.monotonic()
    with pytest.raises(BackendError) as caught, Diary(url, agent="rules") as diary:
        check(diary)
    assert time.monotonic() - begin < IN_TIME
    said = str(caught.value)
    del caught
    if url.startswith("firestore:"):
        gc.collect()  # a request that Google's client refused keeps its connection until then
    assert "secret" not in said
    assert "\n" not in said
    return said.partition(": ")[2]


@pytest.mark.parametrize(
    "url",
    [
        "redis://:sec?ret=blue@127.0.0.1/0",
        "redis://:secret@127.0.0.1:99999/0",
        "redis://127.0.0.1/0?timeout=nan",
        "redis://127.0.0.1/0?timeout=0",
        "redis://127.0.0.1/0?watch=-1",
        "redis://:secret@127.0.0.1/0?protocol=4",
        "postgresql://ann:secret@127.0.0.1/x?connections=0",
        "postgresql://ann:sec?ret@127.0.0.1/x?timeout=2",
        "postgresql://ann:s@ret?s@127.0.0.1/x?timeout=2",
        "postgresql://ann:s@ret?sec=blue@127.0.0.1/x",
        "postgresql://ann:sec\u2100ret@127.0.0.1/x",
        "postgresql://127.0.0.1/x?schema=",
        f"postgresql://127.0.0.1/x?schema={'x' * 64}",
        "postgresql://127.0.0.1/x?schema=50%25",
        "postgresql+psycopg://ann:secret@127.0.0.1/x",
        "POSTGRESQL://ann:secret@127.0.0.1/x?password=secret",
        "redis+cluster://:secret@127.0.0.1/0",
        "postgres:ann:secret\n@127.0.0.1/x",
        "postgresql:/127.0.0.1/x?password=secret",
        "redis://127.0.0.1/0?password=secret://&colour=blue",
        "firestore://ann:secret@project/a/b",
        "firestore://ann:secret/@project/a/b",
        "host=127.0.0.1 user=ann password=secret dbname=x",
        "password = 's ecret' host=127.0.0.1",
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_asked(url):
    with pytest.raises((BackendError, InvalidValue)) as caught:
        open_backend(url, None)
    said = "".join(traceback.format_exception(caught.value)).partition("Error: ")[2]
    assert not re.search(r"(?<!without_)secret|sec\W|ret@", said)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (RedisBackend, {"prefix": 5}),
        (RedisBackend, {"timeout": 0}),
        (PostgresBackend, {"timeout": 1e9}),
        (PostgresBackend, {"connections": 0}),
        (FirestoreBackend, {"database": 5}),
    ],
)
def test_a_wrong_argument_of_a_database_is_named(backend, options):
    pytest.importorskip("psycopg_pool")
    pytest.importorskip("redis")
    with pytest.raises(InvalidValue, match=next(iter(options))):
        backend("redis://127.0.0.1/0", **options)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@127.0.0.1/0?colour=blue",
        "postgresql://ann:secret@127.0.0.1/x?colour=blue",
        "firestore://project/a/b?colour=blue",
    ],
)
def test_a_misspelt_option_is_named_with_the_known_ones(url):
    with pytest.raises(
        BackendError, match=r"no option 'colour'\. The options are .*timeout"
    ) as caught:
        open_backend(url, None)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("text", ["", "a secret", '{"private_key": "secret"}'])
def test_unreadable_credentials_of_firestore_name_the_remedy(text, tmp_path):
    pytest.importorskip("google.cloud.firestore")
    path = tmp_path / "key.json"
    if text:
        path.write_text(text)
    with pytest.raises(BackendError, match="Create a key of the service account") as caught:
        FirestoreBackend("project", credentials_path=str(path))
    assert "secret" not in "".join(traceback.format_exception(caught.value))


class Hanging:
    """A server that closes each connection once it has received something and sent an answer."""

    def __init__(self, answer=b""):
        self.received = 0
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while True:
            connection, _ = self._socket.accept()
            with connection:
                text = connection.recv(1000)
                if text == b"end":
                    return
                self.received += 1
                connection.sendall(self._answer)

    def close(self):
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.sendall(b"end")
        self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def refused_by_redis(command, work):
    """Call `work` with a database of Redis; refuse the command, and yield the connection and the error."""
    pytest.importorskip("redis")
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:
        url = f"redis://127.0.0.1:{server.getsockname()[1]}/0?timeout=5&watch=1&protocol=2"
        waiting = pool.submit(lambda: work(open_backend(url, None).database))
        server.settimeout(5)
        connection, _ = server.accept()
        with connection:
            connection.settimeout(5)
            while command not in (received := connection.recv(65536)):
                assert received
                connection.sendall(b"+OK\r\n" * received.count(b"SETINFO"))
            connection.sendall(b"-ERR refused\r\n")
            yield connection, waiting.exception(5)


def test_a_watch_that_redis_refuses_closes_its_connection():
    with refused_by_redis(b"ID", lambda database: database.listen()) as (connection, error):
        assert isinstance(
            error, BackendError
        )  # its traceback keeps the connection from being collected
        assert connection.recv(1000) == b""


def test_a_redis_database_that_is_dropped_closes_its_connections():
    redis = pytest.importorskip("redis")
    kept = []

    def work(database):
        with contextlib.suppress(BackendError):
            database.check_writes()
        kept.extend(each for each in gc.get_objects() if type(each) is redis.Connection)

    with refused_by_redis(b"EVAL", work) as (connection, _):
        assert kept
        gc.collect()
        assert connection.recv(1000) == b""


def test_a_script_that_redis_has_dropped_is_sent_with_its_call():
    """Loaded by a request of its own, it could be dropped again before its call."""
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with (
        tempfile.TemporaryDirectory(prefix="tomldiary-") as folder,
        servers.redis(Path(folder)) as url,
        Diary(url, agent="rules") as diary,
        redis.Redis.from_url(url) as client,
    ):
        alice = diary.user("alice")
        for text in ("tea", "coffee"):
            alice.upsert_preference("likes", text)
            client.script_flush()
        assert [each.text for each in alice.preferences("likes").values()] == ["tea", "coffee"]
        assert "cmdstat_script|load" not in client.info("commandstats")


def test_redis_is_sent_a_step_only_once():
    pytest.importorskip("redis")
    with contextlib.closing(Hanging()) as server:
        url = f"redis://127.0.0.1:{server.port}/0?retry_on_timeout=true&timeout=2&protocol=2"
        backend = open_backend(url, None)
        with pytest.raises(DatabaseLost):
            backend.database.apply("alice", Head(), Step({"blocks": "x = 1\n"}))
        assert server.received == 1
        backend.close()


def test_a_web_server_in_place_of_redis_names_the_remedy():
    pytest.importorskip("redis")
    with contextlib.closing(Hanging(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as server:
        said = refusal(f"redis://127.0.0.1:{server.port}/0?timeout=2")
    assert said.endswith("Check the address: another kind of server answers there.")


@pytest.mark.parametrize("password", ["secret", ""])
def test_a_wrong_password_of_postgres_names_the_remedy(password, monkeypatch, caplog):
    engines.space("postgres")  # skips without servers
    monkeypatch.delenv("PGPASSWORD", raising=False)
    with tempfile.TemporaryDirectory(prefix="tomldiary-") as folder:
        port = servers.free_port()
        with servers.postgres(Path(folder), port, password="another"):  # noqa: S106 - of a server that lives for this test
            url = f"postgresql://tomldiary:{password}@127.0.0.1:{port}/postgres?timeout=2"
            said = refusal(url)
            with Diary(url, agent="rules") as diary:
                assert diary.stats()["durability"] == "process"
    assert caplog.messages == []  # the settings of a server that refuses are no finding
    assert said.startswith("the server refused the connection (")
    assert said.endswith(
        "Check the user, the password (PGPASSWORD or a password file), the name of the database and the options of the address."
    )


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        ("{user}@{host}/missing", 'database "missing" does not exist'),
        ("nobody:secret@{host}/postgres", 'role "nobody" does not exist'),
        ("{user}@127.0.0.1:x/postgres", "is not an address of PostgreSQL"),
        ("ann:sec/ret@{host}/postgres", "is not an address of PostgreSQL"),
    ],
)
def test_a_wrong_address_of_postgres_names_what_is_wrong(place, reason):
    server = urlsplit(engines.space("postgres").server)
    host = f"{server.hostname}:{server.port}"
    url = f"postgresql://{place.format(user=server.username, host=host)}?timeout=2"
    assert reason in refusal(url)
    assert "ret" not in repr(Diary(url).engine.backend)


def test_a_password_of_postgres_with_a_bare_percent_sign_is_refused():
    pytest.importorskip("psycopg")
    said = refusal("postgresql://ann:secret%cent@127.0.0.1/postgres")  # %ce is no UTF-8
    assert said.startswith("is not an address of PostgreSQL")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("/0?", "/99?"), "DB index is out of range"),
        (("://", "://ann:secret@"), "refuses the user or the password"),
        (("/0?", "/zero?"), "a database of Redis has a number"),
        (("://", "://ann:sec/ret@"), "a database of Redis has a number"),
    ],
)
def test_a_wrong_address_of_redis_names_what_is_wrong(change, reason):
    engine = engines.space("redis")
    url = f"{engine.server}?timeout=2".replace(*change, 1)
    assert reason in refusal(url)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        # The emulator gives no message, and a broken connection has the same code.
        ("firestore://NO_PROJECT/a/b?timeout=1", "cannot be reached (Unknown, with the emulator "),
        ("firestore://p/__a__/b", 'Firestore refused (Collection id "__a__" is invalid because'),
    ],
)
def test_a_wrong_address_of_firestore_names_what_to_check(address, reason):
    engines.space("firestore")
    said = refusal(address)
    assert said.startswith(reason)
    assert "Check the address" in said or "Check the project and the path of the address." in said


@engines.needs("redis")
def test_a_redis_server_with_too_many_clients_is_named():
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with (  # a server of its own, as other tests run at the same time
        tempfile.TemporaryDirectory(prefix="tomldiary-") as folder,
        servers.redis(Path(folder)) as url,
        redis.Redis.from_url(url) as client,
    ):
        client.config_set("maxclients", 1)
        said = refusal(f"{url}?timeout=0.5")
    assert said.startswith("cannot be reached (max number of clients reached). Check how many conn")


@pytest.mark.parametrize(
    "reason",
    [
        "FATAL:  sorry, too many clients already",
        'FATAL:  too many connections for role "ann"',
        "FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
    ],
)
def test_a_server_of_postgres_without_free_connections_is_named(reason):
    with Diary("postgresql://ann@127.0.0.1/app") as diary:
        error = unreachable(diary.engine.backend.database, DatabaseLost(reason))
    assert "raise max_connections" in str(error)


def test_a_missing_permission_of_redis_names_the_remedy():
    engine = engines.space("redis")
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    name = engine.url.rpartition("=")[2]
    with redis.Redis.from_url(engine.server) as client:
        client.acl_setuser(name, enabled=True, passwords=["+secret"], categories=["-@all"])
        try:
            said = refusal(engine.url.replace("://", f"://{name}:secret@"))
        finally:
            client.acl_deluser(name)
    assert said.startswith("a permission is missing (")


def test_a_state_of_redis_has_any_number_of_documents():
    database = engines.space("redis").backend().database
    texts = dict.fromkeys(
        (f"items/{number}" for number in range(9000)), "x = 1\n"
    )  # Lua unpacks 8,000
    database.apply("alice", Head(), Step(texts))
    assert {*database.head("alice").versions} == {*database.read("alice", [*texts])} == {*texts}
    database.close()


@pytest.mark.parametrize("command", ["zadd", "sadd", "hset", "hincrby"])
def test_a_step_is_not_applied_in_part_if_redis_forbids_one_of_its_commands(command):
    engine = engines.space("redis")
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    name = engine.url.rpartition("=")[2]
    with redis.Redis.from_url(engine.server) as client:
        client.acl_setuser(
            name,
            enabled=True,
            passwords=["+secret"],
            keys=[f"{name}:*"],
            categories=["+@read", "+@write", "+@connection", "+@scripting"],
            commands=[f"-{command}"],
        )
        try:
            with Diary(engine.url.replace("://", f"://{name}:secret@"), agent="rules") as diary:
                alice = diary.user("alice")
                with pytest.raises(BackendError, match="a permission is missing"):
                    alice.upsert_preference("likes", "tea")
                assert list(client.scan_iter(f"{name}:*")) == []
                problems = [each.message for each in check(diary) if each.level == "problem"]
                assert ["a permission is missing" in each for each in problems] == [True]
                client.execute_command("ACL", "SETUSER", name, f"+{command}")
                alice.upsert_preference("likes", "tea")
                assert len(alice.preferences("likes")) == 1
                client.execute_command("ACL", "SETUSER", name, f"-{command}")
                with pytest.raises(BackendError, match="a permission is missing"):
                    alice.upsert_preference("likes", "milk")  # the server may apply a part
                before = engine.texts()
                with pytest.raises(BackendError, match="a permission is missing"):
                    alice.upsert_preference("likes", "water")
                assert engine.texts() == before
        finally:
            client.acl_deluser(name)


def run_in(backend, request):
    """Send a request as the backend does, which translates the errors of the client."""
    return backend.database._run(request)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("PermissionDenied", "permission is denied. Check the role of the account."),
        ("NotFound", "the project has no such Firestore database. Create it"),
    ],
)
def test_a_refusal_of_firestore_names_the_remedy(error, reason):
    engine = engines.space("firestore")
    exceptions = importlib.import_module("google.api_core.exceptions")

    def refuse():
        raise getattr(exceptions, error)("The database (default) does not exist for project secret")

    backend = engine.backend()
    with pytest.raises(BackendError) as caught:
        backend.database.connection.run(refuse)  # the emulator refuses no request
    assert reason in str(caught.value)
    assert "secret" not in str(caught.value)
    backend.close()


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "The user executing the script can't run this command or subcommand script: 3af2, on @user_script:21.",
            "The user executing the script can't run this command or subcommand",
        ),
        (
            "ACL failure in script: User app has no permissions to run the 'zadd' command script: on @user_script:1.",
            "ACL failure in script: User app has no permissions to run the 'zadd' command",
        ),
        (
            "ACL failure in script: No permissions to access a key script: 3af2, on @user_script:1.",
            "ACL failure in script: No permissions to access a key",
        ),
    ],
    ids=["redis-7.0", "valkey-9", "redis-7.4"],
)
def test_a_forbidden_command_of_a_script_is_a_missing_permission(message, reason):
    backend = RedisBackend("redis://127.0.0.1:1/0")

    def refuse():
        raise importlib.import_module("redis.exceptions").ResponseError(message)

    with pytest.raises(BackendError) as caught:
        run_in(backend, refuse)
    assert f": a permission is missing ({reason}). Grant the user ~tomldiary:* +" in str(
        caught.value
    )


@pytest.mark.parametrize("name", ["ClusterCrossSlotError", "ClusterDownError", "MovedError"])
def test_an_error_of_a_redis_cluster_says_that_clusters_are_not_supported(name):
    kind = getattr(importlib.import_module("redis.exceptions"), name)
    error = kind("3999 127.0.0.1:6381") if name == "MovedError" else kind("refused")

    def refuse():
        raise error

    with pytest.raises(BackendError, match="Redis Cluster is not supported"):
        run_in(RedisBackend("redis://127.0.0.1:1/0"), refuse)


def test_doctor_says_that_a_database_answers(engine):
    done = CliRunner().invoke(app, ["doctor", "--path", engine.url])
    assert done.exit_code == 0, done.output
    [note, verdict] = done.stdout.splitlines()
    assert re.fullmatch(
        r"note +\S+: +connected in \d+ ms, a request takes [\d.]+ ms; a write survives a power cut\.",
        note,
    )
    assert verdict == "0 problems, 0 warnings."


def test_doctor_repeats_the_check_of_writes_after_a_broken_connection(engine):
    diary, losses = Diary(engine.backend(), agent="rules"), [DatabaseLost("broken")]
    database = diary.engine.backend.database
    checked = database.check_writes

    def broken():
        if losses:
            raise losses.pop()
        checked()

    database.check_writes = broken
    assert [found.level for found in check(diary)] == ["note"]
    assert losses == []


@pytest.mark.parametrize("command", ["doctor", "users"])
def test_users_are_read_at_once_and_reported_in_order(engine, command, monkeypatch):
    users = [f"user {number:02}" for number in range(16)]
    with Diary(engine.url, agent="rules") as diary:
        for user in users:
            diary.user(user).upsert_preference("likes", "tea")
    together, seen, kinds = threading.Barrier(8, timeout=20), set(), SharedBackend.kinds

    def kinds_together(backend, user):
        if user in users and user not in seen:
            seen.add(user)
            together.wait()  # broken unless eight users are read at once
        return kinds(backend, user)

    monkeypatch.setattr(SharedBackend, "kinds", kinds_together)
    done = CliRunner().invoke(app, [command, "--path", engine.url, "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    named = [each.get("user", each.get("place")) for each in found]
    assert [name for name in named if name in users] == users


def change_state_of_alice(engine):
    """Store a state that another program might write."""
    if engine.name == "redis":
        prefix = engine.url.partition("prefix=")[2]
        with pytest.importorskip("redis").Redis.from_url(engine.server) as client:
            client.hset(f"{prefix}:{{alice}}:texts", "preferences", "a text without a version")
    else:
        state = engine.backend().database.connection.head("alice")
        state.set({"revision": 1})


@pytest.mark.parametrize("name", ["redis", "firestore"])
def test_the_damaged_state_of_a_user_is_one_problem_with_its_remedy(name):
    engine = engines.space(name)
    with Diary(engine.url, agent="rules") as diary:
        for user in ("alice", "bob"):
            diary.user(user).upsert_preference("likes", "tea")
        change_state_of_alice(engine)
    with Diary(engine.url, agent="rules") as diary:
        [problem] = [each for each in check(diary) if each.level != "note"]
        with pytest.raises(BackendError, match=r"the user 'alice' is damaged\. Restore it"):
            diary.user("alice").preferences()
        assert diary.user("bob").preferences("likes")
    assert problem.message.endswith("the stored state of the user 'alice' is damaged.")
    assert problem.remedy == "Restore it from a backup."


@pytest.mark.parametrize("part", ["preferences", "newest record", "older record"])
def test_a_text_of_redis_that_is_not_utf_8_is_one_problem(part):
    engine = engines.space("redis")
    with Diary(engine.url, agent="rules") as diary:
        for text in ("tea", "milk"):
            diary.user("alice").upsert_preference("likes", text)
        place = f"{engine.url.partition('prefix=')[2]}:{{alice}}"
        with pytest.importorskip("redis").Redis.from_url(engine.server) as client:
            if part == "preferences":
                client.hset(f"{place}:texts", part, b"1\n\xff")
            else:
                seq = 2 if part == "newest record" else 1
                client.zremrangebyscore(f"{place}:history", seq, seq)
                client.zadd(f"{place}:history", {b"\xff": seq})
    with Diary(engine.url, agent="rules") as diary:
        [problem] = [each for each in check(diary) if each.level != "note"]
    assert problem.message.endswith("the stored state of the user 'alice' is damaged.")


@pytest.mark.parametrize(
    "parts",
    ["head", "texts", "versions", "head texts versions", "head texts versions history"],
)
def test_a_user_of_whom_redis_removed_keys_is_one_problem(parts):
    engine = engines.space("redis")
    with Diary(engine.url, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
        prefix = engine.url.partition("prefix=")[2]
        with pytest.importorskip("redis").Redis.from_url(engine.server) as client:
            removed = [f"{prefix}:{{alice}}:{part}" for part in parts.split()]
            assert client.delete(*removed) == len(removed)
        for read in (diary.user("alice").preferences, lambda: diary.user("alice").recall("tea")):
            with pytest.raises(BackendError, match=r"the user 'alice' is damaged\. Restore it"):
                read()
        with pytest.raises(BackendError, match="damaged"):
            Diary(engine.url, agent="rules").user("alice").upsert_preference("likes", "milk")
        [problem] = [each for each in check(diary) if each.level != "note"]
    assert problem.message.endswith("the stored state of the user 'alice' is damaged.")


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("redis", lambda database: database.read("alice", ["preferences"])),
        ("firestore", lambda database: database.records("alice", 10, 10)),
    ],
)
def test_a_direct_read_of_a_damaged_state_names_the_user(name, read):
    engine = engines.space(name)
    backend = engine.backend()
    Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
    change_state_of_alice(engine)
    with pytest.raises(BackendError, match=r"the user 'alice' is damaged\. Restore it"):
        read(backend.database)


def test_an_error_names_the_part_of_a_database_that_is_not_the_default(engine):
    url = f"{engine.url}?database=other" if engine.name == "firestore" else engine.url
    backend = open_backend(url, None)
    assert str(backend.database).endswith(f"?{url.rpartition('?')[2]}")
    backend.close()


@engines.needs("redis")
def test_the_users_of_a_redis_prefix_with_braces_are_in_no_other_memory():
    engine = engines.space("redis")
    prefix = engine.url.partition("prefix=")[2]
    one = engine.backend()
    other = RedisBackend(engine.server, prefix=f"{prefix}:{{team}}")
    for backend in (one, other):
        bob = Diary(backend, agent="rules").user("bob")
        bob.upsert_preference("likes", "tea")
    bob.forget(everything=True)
    assert (other.erased_users(), one.erased_users()) == (["bob"], [])
    other.close()


def test_an_address_of_redis_needs_no_number():
    pytest.importorskip("redis")
    assert str(RedisBackend("redis://127.0.0.1").database) == "redis://127.0.0.1"


@engines.needs("redis")
@pytest.mark.parametrize(
    "options", ["encoding=ascii&encoding_errors=ignore", "encoding=utf-16", "retry=1&watch=1"]
)
def test_an_address_of_redis_cannot_change_how_texts_are_stored(options):
    url = engines.space("redis").url
    for opened in (f"{url}&{options}", url):
        with Diary(opened, agent="rules") as diary:
            zoe = diary.user("Zoë")
            if opened != url:
                zoe.upsert_preference("likes", "crème brûlée")
            assert [*diary.users()] == ["Zoë"]
            assert [item.text for item in zoe.preferences("likes").values()] == ["crème brûlée"]


@engines.needs("postgres")
def test_a_list_of_users_of_postgres_has_more_than_one_page():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    engine = engines.space("postgres")
    backend, schema = engine.backend(), engine.url.rpartition("=")[2]
    assert backend.erased_users() == []
    with psycopg.connect(engine.server) as connection:
        users = "SELECT 'user ' || n, 1, 1 FROM generate_series(1, 2500) n"
        connection.execute(f"INSERT INTO {schema}.users {users}")
    assert backend.erased_users() == sorted(f"user {number}" for number in range(1, 2501))
    backend.close()


@engines.needs("postgres")
def test_a_missing_table_of_postgres_names_the_schema():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    engine = engines.space("postgres")
    backend, schema = engine.backend(), engine.url.rpartition("=")[2]
    assert backend.users() == []
    with psycopg.connect(engine.server) as connection:
        connection.execute(f"DROP TABLE {schema}.documents")
    with pytest.raises(BackendError, match=f"Check the schema '{schema}' and its tables"):
        backend.users()
    backend.close()


@engines.needs("redis")
@pytest.mark.parametrize(("command", "reads"), [("users", 1), ("doctor", 2)])
def test_a_list_of_users_opens_one_pool_and_asks_little_of_each_user(command, reads):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with (  # a server of its own, as other tests run at the same time
        tempfile.TemporaryDirectory(prefix="tomldiary-") as folder,
        servers.redis(Path(folder)) as url,
        Diary(url, agent="rules") as diary,
        redis.Redis.from_url(url) as client,
    ):

        def counts():
            found, names = client.info("commandstats"), ("eval", "hmget", "zrevrangebyscore")
            calls = [found.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names]
            return client.info("stats")["total_connections_received"], *calls

        def asked():
            before = counts()
            assert CliRunner().invoke(app, [command, "--path", url]).exit_code == 0
            return [now - then for now, then in zip(counts(), before, strict=True)]

        names = ("alice", "bob", "carol", "dan")
        for name in names:
            diary.user(name).upsert_preference("likes", "tea")
        connections, scripts, texts, pages = asked()
        assert connections <= 9  # one for each thread, and one of the first request
        checks = command == "doctor"  # one script more, which checks the permissions
        heads = scripts - checks
        assert heads == len(names) + checks * 2
        assert texts - heads == reads * len(names)  # the script of a state reads with HMGET, too
        assert pages == 0


def test_the_command_line_shows_no_password(engine, monkeypatch, capsys):
    url = engine.url.replace("://", "://:secret@" if engine.name == "redis" else "://", 1)
    if engine.name == "postgres":
        user, _, rest = engine.url.partition("@")
        url = f"{user}:secret@{rest}"
    for arguments in (
        ["doctor", "--user", "alice"],
        ["history"],
        ["show"],
        ["forget", "--user", "alice"],
    ):
        monkeypatch.setattr(sys, "argv", ["tomldiary", *arguments, "--path", url])
        with pytest.raises(SystemExit):
            run()
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err
    assert engine.url.partition("://")[0] in shown.err


def test_the_command_line_hears_no_log_of_the_connection_pool(monkeypatch):
    logger = logging.getLogger("psycopg.pool")
    logger.setLevel(logging.NOTSET)
    monkeypatch.setattr(sys, "argv", ["tomldiary", "--version"])
    with pytest.raises(SystemExit):
        run()
    assert not logger.isEnabledFor(logging.WARNING)
    logger.setLevel(logging.NOTSET)


def test_a_missing_permission_of_postgres_names_the_remedy():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    role = f"r{engine.url.rpartition('=')[2]}"
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        connection.execute(f"REVOKE CREATE ON DATABASE postgres FROM {role}")
    address = engine.url.partition("@")[2]
    backend = open_backend(f"postgresql://{role}:secret@{address}", None)
    alice = Diary(backend, agent="rules").user("alice")
    with pytest.raises(BackendError, match="let an owner create the schema") as caught:
        alice.preferences()
    assert "secret" not in str(caught.value)
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {engine.url.rpartition('=')[2]} AUTHORIZATION {role}")
    alice.upsert_preference("likes", "tea")
    assert len(alice.preferences("likes")) == 1
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"REVOKE DELETE ON {engine.url.rpartition('=')[2]}.history FROM {role}")
    alice.upsert_preference("likes", "coffee")
    [problem] = [each for each in check(Diary(backend)) if each.level == "problem"]
    assert problem.message.startswith(
        "a permission is missing (permission denied for table history"
    )
    backend.close()


def reader_of(engine):
    """Create a role that may only read the tables of a schema; return its address and its name."""
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    role = f"r{schema}"
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}")
    return f"postgresql://{role}:secret@{engine.url.partition('@')[2]}", role


def test_a_writer_that_may_only_read_says_that_it_claims_no_turns(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("tomldiary"), "propagate", False)  # pytest's handlers
    engine = engines.space("postgres")
    with Diary(engine.url) as diary, MemoryWriter(diary, workers=0) as submitting:
        receipt = submitting.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted."))
        receipt.wait_stored(20)
        shown = []

        def is_shown():
            shown.append(capsys.readouterr().err)
            return "cannot be read or claimed" in shown[-1]

        with Diary(reader_of(engine)[0], agent="rules") as reading, MemoryWriter(reading):
            until(is_shown)
            assert "Grant USAGE on the schema" in shown[-1]
        with Diary(engine.url, agent="rules") as writing, MemoryWriter(writing):
            receipt.wait(20)


def test_a_role_that_created_nothing_works_with_the_documented_privileges():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    with Diary(engine.url) as owner:
        assert not [each for each in check(owner) if each.level == "problem"]  # creates the tables
    address, role = reader_of(engine)
    with Diary(address, agent="rules") as diary:
        alice = diary.user("alice")
        assert not alice.preferences("likes")
        with pytest.raises(BackendError, match="INSERT, UPDATE and DELETE on its tables"):
            alice.upsert_preference("likes", "tea")
        with psycopg.connect(engine.server, autocommit=True) as connection:
            connection.execute(
                f"GRANT INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
            )
        alice.upsert_preference("likes", "tea")
        with MemoryWriter(diary) as writer:
            writer.submit_nowait(Turn("alice", "s", "I love jazz.", "Noted.")).wait(20)
        alice.prune_history(keep=1)
        assert alice.forget(everything=True).entries == 2
        assert not [each for each in check(diary) if each.level == "problem"]


def test_a_role_that_owns_no_tables_watches_after_their_owner():
    engine = engines.space("postgres")
    with Diary(engine.url) as owner:
        owner.users()  # creates the tables
    address, _ = reader_of(engine)
    with contextlib.closing(open_backend(address, None)) as backend:
        with pytest.raises(DatabaseLost, match="the owner of the tables must open a diary"):
            backend.database.listen()
        with contextlib.closing(open_backend(engine.url, None)) as first:
            first.database.listen().close()
        backend.database.listen().close()


@pytest.mark.parametrize("tables", [["users", "documents", "history", "tomldiary"], ["history"]])
def test_row_level_security_without_a_policy_is_an_error(tables):
    """Without the error, the memory would look empty."""
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    role = f"r{schema}"
    with Diary(engine.url, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
    address = engine.url.partition("@")[2]
    with psycopg.connect(engine.server, autocommit=True) as connection:

        def told():
            with Diary(f"postgresql://{role}:secret@{address}", agent="rules") as diary:
                return [each.text for each in diary.user("alice").preferences("likes").values()]

        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'")
        connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
        connection.execute(
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"
        )
        assert told() == ["tea"]
        for table in tables:
            connection.execute(f"ALTER TABLE {schema}.{table} ENABLE ROW LEVEL SECURITY")
            connection.execute(f"CREATE POLICY other ON {schema}.{table} TO tomldiary USING (true)")
        with pytest.raises(BackendError, match="Add a policy for the role") as caught:
            told()
        assert f"'{role}': {', '.join(sorted(tables))}." in str(caught.value)
        for table in tables:
            connection.execute(f"CREATE POLICY mine ON {schema}.{table} TO {role} USING (true)")
        assert told() == ["tea"]


def test_a_pool_of_postgres_that_can_no_longer_connect_says_why(monkeypatch):
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only
    import psycopg_pool  # noqa: PLC0415 - the same

    pools, made = [], psycopg_pool.ConnectionPool.__init__

    def make(pool, *args, **options):
        pools.append(pool)
        made(pool, *args, **options)

    monkeypatch.setattr(psycopg_pool.ConnectionPool, "__init__", make)

    role = f"r{engine.url.rpartition('=')[2]}"
    address = engine.url.partition("@")[2]
    with psycopg.connect(engine.server, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'secret'")
        with Diary(f"postgresql://{role}:secret@{address}&timeout=1&connections=1") as diary:
            alice = diary.user("alice")
            alice.upsert_preference("likes", "tea")
            server.execute(f"ALTER ROLE {role} NOLOGIN")
            assert len(alice.preferences("likes")) == 1  # the open connection suffices
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [role]
            )
            for call in (alice.preferences, lambda: alice.upsert_preference("likes", "coffee")):
                with pytest.raises(
                    BackendError, match="the server refused the connection"
                ) as refused:
                    call()
                assert "is not permitted to log in" in str(refused.value)
            server.execute(f"ALTER ROLE {role} LOGIN")
            assert len(alice.preferences("likes")) == 1
            with pools[-1].connection(), pytest.raises(BackendError, match="are all 1 in use"):
                alice.preferences()
            assert len(alice.preferences("likes")) == 1


@pytest.mark.parametrize(
    "message",
    [
        "no more connections allowed (max_client_conn)",  # PgBouncer
        "tut mir leid, schon zu viele Verbindungen",  # the language is a setting of the server
    ],
)
def test_a_connection_that_postgres_refuses_for_a_time_is_tried_again(message):
    said, attempts = refused_with(message)
    assert said.startswith("cannot be reached (")
    assert message in said
    assert attempts > 1


@pytest.mark.parametrize(
    "message",
    [
        'password authentication failed for user "ann"',
        "connection requires a valid client certificate",
        "SSL connection is required",  # a managed server
        "no such database: x",  # PgBouncer
    ],
)
def test_a_connection_that_postgres_never_accepts_is_not_waited_for(message):
    said, _ = refused_with(message)
    assert said.startswith(f"the server refused the connection ({message}")


def postgres_error(severity, code, message):
    """Return an error as PostgreSQL sends it."""
    fields = f"S{severity}\0V{severity}\0C{code}\0M{message}\0\0".encode()
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


def refused_with(message):
    """Connect to a server that refuses each connection; return the error and the number of attempts."""
    pytest.importorskip("psycopg")
    attempts = []

    class Refusing(socketserver.BaseRequestHandler):
        def handle(self):
            attempts.append(self.request.recv(4096))
            self.request.sendall(postgres_error("FATAL", "53300", message))

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        port = server.server_address[1]
        said = refusal(
            f"postgresql://ann:secret@127.0.0.1:{port}/x?timeout=1&sslmode=disable&gssencmode=disable"
        )
        server.shutdown()
    return said, len(attempts)


def test_a_server_of_postgres_that_took_no_writes_is_left():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    role = f"r{engine.url.rpartition('=')[2]}"
    address = engine.url.partition("@")[2]
    with psycopg.connect(engine.server, autocommit=True) as server:
        server.execute(f"CREATE ROLE {role} LOGIN SUPERUSER PASSWORD 'secret'")
        with Diary(f"postgresql://{role}:secret@{address}&connections=1") as diary:
            diary.user("alice").upsert_preference("likes", "tea")
            diary.close()
            server.execute(f"ALTER ROLE {role} SET default_transaction_read_only = on")
            with pytest.raises(BackendError, match="Use the address of the primary server"):
                diary.user("alice").upsert_preference("likes", "coffee")
            # Only new connections notice this, as if the address led to another server.
            server.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
            diary.user("alice").upsert_preference("likes", "coffee")
            assert len(diary.user("alice").preferences("likes")) == 2


def test_a_new_schema_that_has_the_name_of_the_role_is_warned_about(caplog):
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    address, schema = engine.url.partition("@")[2], engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {schema} LOGIN SUPERUSER PASSWORD 'secret'")
    for user in ("alice", "bob"):  # one machine after the other; the first one creates the schema
        with Diary(f"postgresql://{schema}:secret@{address}", agent="rules") as diary:
            diary.user(user).upsert_preference("likes", "tea")
    [warning] = [
        record.message for record in caplog.records if "name of the role" in record.message
    ]
    assert "secret" not in warning
    with psycopg.connect(f"postgresql://{schema}:secret@{address.partition('?')[0]}") as connection:
        found = connection.execute(
            "SELECT to_regclass('users')::oid = %s::regclass", [f"{schema}.users"]
        )
        assert found.fetchone() == (True,)  # what the warning says


def test_a_locked_table_of_postgres_is_one_error_within_the_timeout():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    backend = open_backend(f"{engine.url}&timeout=1", None)
    alice = Diary(backend, agent="rules").user("alice")
    alice.upsert_preference("likes", "tea")
    schema = engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server) as connection:
        connection.execute(f"LOCK TABLE {schema}.users IN ACCESS EXCLUSIVE MODE")
        for call in (alice.preferences, lambda: alice.upsert_preference("likes", "coffee")):
            begin = time.monotonic()
            with pytest.raises(
                BackendError,
                match=r"no answer within 1 seconds; is a table locked, a replica away, or a pooler full\?",
            ):
                call()
            assert time.monotonic() - begin < IN_TIME
        waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
        with psycopg.connect(engine.server, autocommit=True) as other:
            until(
                lambda: not other.execute(waiting, [f"%{schema}%"]).fetchall(), 20
            )  # told to stop
    alice.upsert_preference("likes", "jazz")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea", "jazz"]
    backend.close()


@pytest.mark.parametrize(("option", "name"), [("", "tomldiary"), ("&application_name=web", "web")])
def test_the_server_shows_the_application_that_an_address_names(option, name):
    engine = engines.space("postgres")
    with Diary(f"{engine.url}{option}", agent="rules") as diary:
        diary.user("alice").preferences()
        shown = asked(
            engine,
            "SELECT DISTINCT application_name FROM pg_stat_activity WHERE position(%s in query) > 0",
            urlsplit(engine.url).query.removeprefix("schema="),
        )
    assert (name,) in shown


NUMBER = re.compile(rb"(K\0\0\0\x0c)....", re.DOTALL)  # of the process that serves a connection


class Pooler(socketserver.ThreadingTCPServer):
    """Passes everything on to PostgreSQL, and makes the process number of each connection up, as poolers do.

    If `failure` is set, the next answer is this error and the end of the connection, as of a server that stops.
    """

    daemon_threads = True
    failure = b""

    def __init__(self, server):
        self.behind = (server.hostname, server.port)
        super().__init__(("127.0.0.1", 0), Passing)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Passing(socketserver.BaseRequestHandler):
    def handle(self):
        with socket.create_connection(self.server.behind) as behind:
            back = threading.Thread(target=self.pass_on, args=(behind, self.request))
            back.start()
            self.pass_on(self.request, behind)
            back.join()

    def pass_on(self, source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if target is self.request and self.server.failure:
                    target.sendall(self.server.failure)
                    self.server.failure = b""
                    source.shutdown(socket.SHUT_RDWR)
                    break
                target.sendall(NUMBER.sub(lambda found: found[1] + b"made", data))
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("is_pooled", [False, True])
def test_no_statement_is_prepared_behind_a_pooler_of_postgres(is_pooled):
    engine = engines.space("postgres")
    server = urlsplit(engine.server)
    with Pooler(server) as pooler:
        port = pooler.server_address[1] if is_pooled else server.port
        url = engine.url.replace(f":{server.port}", f":{port}")
        with Diary(f"{url}&connections=1", agent="rules", similarity=101) as diary:
            for number in range(10):
                diary.user("alice").upsert_preference("likes", f"thing number {number}")
            prepared = run_in(
                diary.engine.backend,
                lambda each: each.execute("SELECT FROM pg_prepared_statements").fetchall(),
            )
            assert len(diary.user("alice").preferences("likes")) == 10
    assert bool(prepared) is not is_pooled


def test_every_write_of_postgres_is_one_statement_outside_a_transaction(monkeypatch):
    import psycopg  # noqa: PLC0415 - slow to import, and used with a server only

    def refused(*_):
        raise psycopg.NotSupportedError("transaction blocks are not allowed")

    with Diary(engines.space("postgres").url, agent="rules") as diary:
        alice = diary.user("alice")
        for drink in ("tea", "coffee", "juice"):
            alice.upsert_preference("likes", drink, session_id=drink)
        monkeypatch.setattr(psycopg.Connection, "transaction", refused)
        alice.forget(session_id="tea")
        assert alice.prune_history(keep=1).is_pruned
        alice.remove_preference("likes", "pref002")
        assert [item.text for item in alice.preferences("likes").values()] == ["juice"]
        alice.forget(everything=True)
        assert alice.history() == []


def test_no_notice_is_believed_behind_a_pooler_of_postgres(caplog):
    engine = engines.space("postgres")
    server = urlsplit(engine.server)
    with Pooler(server) as pooler:
        url = engine.url.replace(f":{server.port}", f":{pooler.server_address[1]}")
        with Diary(f"{url}&watch=1", agent="rules") as diary:
            diary.user("alice").preferences()
            until(lambda: "a connection pooler loses notices" in caplog.text)
            schema = urlsplit(engine.url).query.removeprefix("schema=")
            found = asked(
                engine,
                "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(%s)",
                f"{schema}.users",
            )
    assert found == [(0,)]


@pytest.mark.parametrize("setting", ["statement_timeout", "lock_timeout"])
def test_a_time_limit_of_postgres_is_one_error_that_names_it(setting):
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    limited = f"{engine.url}&timeout=60&options=-c%20{setting}%3D500"
    with Diary(limited, agent="rules") as diary, psycopg.connect(engine.server) as connection:
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        connection.execute(f"SELECT FROM {schema}.users FOR UPDATE")
        begin = time.monotonic()
        with pytest.raises(BackendError, match=f"Nothing was changed.* raise {setting}"):
            alice.upsert_preference("likes", "coffee")
        assert time.monotonic() - begin < IN_TIME
        connection.rollback()
        assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


@pytest.mark.parametrize("isolation", ["read%5C%20committed", "repeatable%5C%20read"])
def test_one_of_the_processes_that_start_at_once_creates_the_tables(isolation):
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    option = f"options=-c%20default_transaction_isolation%3D{isolation}"
    url = f"{engine.url}&application_name={schema}&{option}"
    waiting = (
        "SELECT FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    )
    with (
        Diary(url, agent="rules") as one,
        Diary(url, agent="rules") as two,
        ThreadPoolExecutor() as threads,
    ):
        with psycopg.connect(engine.server) as connection:
            connection.execute(f"CREATE SCHEMA {schema}")  # both wait until it is undone
            found = [threads.submit(each.users) for each in (one, two)]
            try:
                until(lambda: len(asked(engine, waiting, schema)) == 2)
            finally:
                connection.rollback()
        assert [each.result(IN_TIME) for each in found] == [[], []]
    # A later change of a column would wait for all statements of others, and they for it.
    column = (
        "SELECT xmin FROM pg_attribute WHERE attname = 'content' AND attrelid = to_regclass(%s)"
    )
    version = f"SELECT xmin FROM {schema}.tomldiary"  # noqa: S608 - our own name
    assert asked(engine, column, f"{schema}.documents") == asked(engine, version)


def test_a_process_that_stops_while_it_creates_the_tables_keeps_no_other_waiting(monkeypatch):
    engine = engines.space("postgres")
    stopped, two = (open_backend(f"{engine.url}&timeout={each}", None) for each in (0.5, 5))
    is_creating, may_end = threading.Event(), threading.Event()

    def stop(_connection):
        is_creating.set()
        assert may_end.wait(IN_TIME)

    monkeypatch.setattr(stopped.database, "_create_tables", stop)
    with (
        ThreadPoolExecutor() as threads,
        contextlib.closing(stopped),
        contextlib.closing(two),
    ):
        call = threads.submit(stopped.users)
        assert is_creating.wait(IN_TIME)
        try:
            assert two.users() == []  # the server has ended the transaction
        finally:
            may_end.set()
        with pytest.raises(
            BackendError,
            match=r"idle-in-transaction timeout\). Nothing was changed. Repeat the call",
        ):
            call.result(IN_TIME)


def test_a_usual_document_of_postgres_is_stored_in_its_row():
    engine = engines.space("postgres")
    text = "".join(f"number {number * number} is a square. " for number in range(300))
    with Diary(engine.url, agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", text)
    outside = "SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = to_regclass(%s)"
    schema = engine.url.rpartition("=")[2]
    assert asked(engine, outside, f"{schema}.documents") == [(0,)]


def test_threads_that_start_at_once_open_few_connections_to_postgres():
    engine = engines.space("postgres")
    start, application = threading.Barrier(16), engine.url.rpartition("=")[2]
    url = f"{engine.url}&application_name={application}&connections=2"
    count, most = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", 0
    with Diary(url, agent="rules") as diary, ThreadPoolExecutor(16) as threads:

        def read(number):
            start.wait(IN_TIME)
            diary.user(f"user {number}").preferences()

        found = [threads.submit(read, number) for number in range(16)]
        while not all(each.done() for each in found):
            most = max(most, asked(engine, count, application)[0][0])
        for each in found:
            each.result()
    assert most <= 4  # the server counts one that ends for some time


def test_a_user_id_that_is_too_long_for_postgres_is_refused_at_once():
    user = "".join(map(chr, range(0x4E00, 0x4E00 + 1000)))  # 3,000 bytes that cannot be compressed
    with Diary(f"{engines.space('postgres').url}&timeout=60", agent="rules") as diary:
        begin = time.monotonic()
        with pytest.raises(BackendError, match="Use a shorter user id") as caught:
            diary.user(user).upsert_preference("likes", "tea")
        assert time.monotonic() - begin < IN_TIME
        assert "unknown" not in str(caught.value)
        assert diary.users() == []


@pytest.fixture
def url_of_encoding():
    """Return a function that makes a database with an encoding, and returns its address; they are dropped later."""
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    name = engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server, autocommit=True) as connection:

        def made(encoding):
            connection.execute(
                f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            )
            return engine.url.replace("/postgres?", f"/{name}?")

        yield made
        connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


def test_a_database_of_postgres_without_encoding_stores_all_characters(url_of_encoding):
    with Diary(url_of_encoding("SQL_ASCII"), agent="rules") as diary:
        diary.user("é 😀").add_turn("I like crêpes 😀", "Noted.", session_id="☕")
        assert diary.users() == ["é 😀"]
        [item] = diary.user("é 😀").preferences("likes").values()
        assert item.text == "I like crêpes 😀"
        assert [*diary.user("é 😀").conversations()] == ["☕"]


def test_a_character_that_a_database_of_postgres_cannot_store_names_the_remedy(url_of_encoding):
    with Diary(url_of_encoding("LATIN1"), agent="rules") as diary:
        alice = diary.user("alice")
        alice.set_block("persona", "likes crêpes")
        with pytest.raises(BackendError, match="Use a database with the encoding UTF8"):
            alice.set_block("persona", "likes crêpes 😀")
        assert alice.blocks()["persona"].text == "likes crêpes"


def test_a_full_disk_of_postgres_names_the_remedy():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    with Diary(f"{engine.url}&timeout=60", agent="rules") as diary:
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        with psycopg.connect(engine.server, autocommit=True) as connection:
            connection.execute(
                f"CREATE FUNCTION {schema}.fail() RETURNS trigger LANGUAGE plpgsql AS"
                " $$ BEGIN RAISE disk_full USING MESSAGE = 'No space left on device'; END $$"
            )
            connection.execute(
                f"CREATE TRIGGER fail BEFORE INSERT ON {schema}.history"
                f" FOR EACH ROW EXECUTE FUNCTION {schema}.fail()"
            )
        begin = time.monotonic()
        with pytest.raises(BackendError, match=r"is full .*Nothing was changed"):
            alice.upsert_preference("likes", "coffee")
        assert time.monotonic() - begin < IN_TIME
        assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


def test_a_write_is_applied_once_if_postgres_stops_at_a_full_disk_after_it():
    engine = engines.space("postgres")
    server = urlsplit(engine.server)
    with Pooler(server) as pooler:
        url = engine.url.replace(f":{server.port}", f":{pooler.server_address[1]}")
        with Diary(url, agent="rules") as diary:
            alice = diary.user("alice")
            alice.blocks.set("notes", "tea")
            pooler.failure = postgres_error("PANIC", "53100", "No space left on device")
            alice.blocks.append("notes", "coffee")
            assert not pooler.failure
            assert alice.blocks["notes"].text.split() == ["tea", "coffee"]


def test_a_read_only_server_of_postgres_names_the_remedy():
    engine = engines.space("postgres")
    first = engine.backend()
    Diary(first, agent="rules").user("alice").upsert_preference("likes", "tea")
    first.close()
    backend = open_backend(f"{engine.url}&options=-c%20default_transaction_read_only%3Don", None)
    alice = Diary(backend, agent="rules").user("alice")
    with pytest.raises(
        BackendError, match="primary server, or set default_transaction_read_only off"
    ):
        alice.upsert_preference("likes", "coffee")
    assert [item.text for item in alice.preferences("likes").values()] == ["tea"]
    [problem] = [each for each in check(Diary(backend)) if each.level == "problem"]
    assert problem.message.startswith("the server takes no writes (cannot execute UPDATE")
    backend.close()
    other = f"{engine.url}&options=-c%20default_transaction_read_only%3Don&timeout=1"
    with pytest.raises(BackendError, match=r"is read-only\)\. Check target_session_attrs"):
        open_backend(f"{other}&target_session_attrs=read-write", None).users()


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("postgres", ("?", "?sslmode=require&"), "server does not support SSL, but SSL was required"),
        ("redis", ("redis://", "rediss://", "?", "?ssl_ca_certs=/missing&"), "a file of certificates: No such file or directory"),
    ],
)  # fmt: skip
def test_a_failure_of_tls_is_named(name, change, reason):
    url = f"{engines.space(name).url}&timeout=1"
    for old, new in zip(change[::2], change[1::2], strict=True):
        url = url.replace(old, new, 1)
    remedy = "Check the certificates and the options of TLS."
    assert refusal(url) == f"cannot be reached ({reason}). {remedy}"


@pytest.mark.parametrize("option", ["sslmode", "ssl_min_protocol_version"])
def test_an_option_of_libpq_with_an_invalid_value_is_named(option):
    pytest.importorskip("psycopg")
    said = refusal(f"postgresql://ann:secret@127.0.0.1/x?{option}=verify_full")
    assert said == f"the value of the option {option!r} is unknown to libpq. Correct it."


@pytest.mark.parametrize(
    "arguments",
    [
        ["writer", "list", "--path", "mysql://ann:secret@127.0.0.1/x"],
        ["show", "--path", "postgresql+psycopg://ann:secret@127.0.0.1/x"],
        ["show", "--path", "postgresql:/ann:secret@127.0.0.1/x"],
        ["show", "--path", "postgresql//ann:secret@127.0.0.1/x"],
        ["show", "--path", "redis::secret@127.0.0.1/0"],
        ["import", "postgresql+psycopg://ann:secret@127.0.0.1/x", "--from", "langgraph-store"],
    ],
)
def test_the_command_line_repeats_no_password_of_an_address_that_it_refuses(
    arguments, monkeypatch, capsys, tmp_path
):
    if arguments[0] == "import":
        arguments = [*arguments, "--user", "alice", "--path", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["tomldiary", *arguments])
    with pytest.raises(SystemExit):
        run()
    shown = capsys.readouterr()
    assert shown.err
    assert "secret" not in shown.out + shown.err


def test_an_import_from_a_database_without_the_user_shows_no_password(
    monkeypatch, capsys, tmp_path
):
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    schema = engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(
            f"CREATE TABLE {schema}.store AS SELECT 'bob.notes' AS prefix, 'one' AS key, '{{}}'::jsonb AS value,"
            " now() AS created_at, now() AS updated_at"
        )
    user, _, rest = engine.server.partition("@")
    url = f"{user}:secret@{rest}?options=-c%20search_path%3D{schema}"
    place = ["--user", "alice", "--path", str(tmp_path)]
    monkeypatch.setattr(
        sys, "argv", ["tomldiary", "import", url, "--from", "langgraph-store", *place]
    )
    with pytest.raises(SystemExit):
        run()
    shown = capsys.readouterr()
    assert "no records of 'alice' were found, but records of bob/notes" in shown.err
    assert "secret" not in shown.out + shown.err


def test_a_wrong_password_of_redis_names_the_remedy(caplog):
    engine = engines.space("redis")
    backend = open_backend(engine.url.replace("redis://", "redis://ann:secret@"), None)
    with pytest.raises(BackendError, match="refuses the user or the password") as caught:
        Diary(backend, agent="rules").user("alice").preferences()
    assert "secret" not in str(caught.value)
    assert backend.durability == "process"
    assert caplog.messages == []  # the settings of a server that refuses are no finding
    backend.close()


def test_a_redis_that_hides_its_settings_is_warned_about():
    engine = engines.space("redis")
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    name = engine.url.rpartition("=")[2]
    with redis.Redis.from_url(engine.server) as client:
        rights = {"keys": ["*"], "categories": ["+@all"], "commands": ["-config"]}
        client.acl_setuser(name, enabled=True, passwords=["+secret"], **rights)
        try:
            url = engine.url.replace("://", f"://{name}:secret@")
            with Diary(url, agent="rules") as diary:
                warnings = [each.message for each in check(diary) if each.level == "warning"]
        finally:
            client.acl_deluser(name)
    (warning,) = warnings
    assert "does not show its append-only settings" in warning
    assert "Grant the user +config|get." in warning


@pytest.mark.parametrize("name", ["users", "documents", "history", "hidden"])
def test_a_schema_with_tables_of_another_program_is_left_as_it_is(name):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    engine = engines.space("postgres")
    schema = engine.url.rpartition("=")[2]
    with psycopg.connect(engine.server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        connection.execute(f"CREATE TABLE {schema}.{name} (name text)")
        said = refusal(f"{engine.url}&watch=1&timeout=2")
        assert said.startswith(f'the schema has other tables (relation "{name}" already')
        assert said.endswith("Name another one, such as ?schema=memories.")
        connection.execute(f"INSERT INTO {schema}.{name} VALUES ('ann')")  # noqa: S608 - our own names
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
    assert asked(engine, tables, schema) == [(name,)]


def test_tables_of_a_newer_version_are_not_touched():
    engine = engines.space("postgres")
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    first = engine.backend()
    Diary(first, agent="rules").user("alice").upsert_preference("likes", "tea")
    first.close()
    with psycopg.connect(engine.server, autocommit=True) as connection:
        schema = engine.url.rpartition("=")[2]
        connection.execute(f"UPDATE {schema}.tomldiary SET version = 99")  # noqa: S608 - our own name
    backend = engine.backend()
    with pytest.raises(BackendError, match="have version 99; this package uses 1"):
        Diary(backend, agent="rules").user("alice").preferences()
    backend.close()


@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("postgresql://localhost/x", "postgres"),
        ("redis://localhost/0", "redis"),
        ("firestore://project/a/b", "firestore"),
    ],
)
def test_a_missing_client_names_the_extra(url, extra, monkeypatch):
    for name in ("psycopg_pool", "redis", "google.cloud.firestore"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "tomldiary.storage.shared.postgres.connection", raising=False)
    if "google.cloud" in sys.modules:
        monkeypatch.delattr("google.cloud.firestore", raising=False)
    with pytest.raises(MissingExtra, match=rf'pip install "tomldiary-kit\[{extra}\]"'):
        Diary(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("firestore:///a/b", "names no project"),
        ("firestore://project/a/b#c", "cannot contain '#'"),
        ("firestore://project/a/b?database=d#", "cannot contain '#'"),
        ("postgresql://localhost/x?connections=many", "connections='many' is not a valid number"),
        ("mysql://localhost/x", "there is no backend for this kind of address"),
        ("valkey://localhost/0", '"redis://" \\(also for Valkey\\)'),
        ("postgresql+psycopg://localhost/x", 'a URL that begins with "postgresql://"'),
        (" redis://u:p@localhost/0", "' redis://localhost/0': there is no backend for this kind"),
        (" redis:u:p@localhost/0", "' redis:localhost/0': there is no backend for this kind"),
        ("'redis://u:p@localhost/0'", "redis://localhost/0'\": there is no backend for this kind"),
        ("redis://u:p@localhost/0?prefix=a\n", "^redis://localhost/0: ends with white space"),
        (
            Path("postgresql://u:p@localhost/x"),
            "'postgresql:/…': .* a Path drops a slash",
        ),
        ("postgresql//u:p@localhost/x", "'postgresql//…': an address has ://"),
        (Path("postgresql//u:p@localhost/x"), "'postgresql/…': an address has ://"),
        (Path("Redis::p@localhost/0"), "'Redis:…': an address has ://"),
        ("redis/localhost/0?password=p", "'redis/…': an address has ://"),
    ],
)
def test_a_wrong_address_is_refused_at_once(url, message):
    with pytest.raises(BackendError, match=message):
        Diary(url)


@pytest.mark.parametrize("backend", [PostgresBackend, RedisBackend, FirestoreBackend])
def test_options_of_an_address_have_the_types_of_the_arguments(backend):
    arguments = inspect.signature(backend).parameters
    defaults = {name: type(arguments[name].default) for name in backend.options}
    assert defaults == backend.options


def test_an_empty_address_of_the_emulator_is_named(monkeypatch):
    monkeypatch.setenv("FIRESTORE_EMULATOR_HOST", "")
    alice = Diary("firestore://tests/a/b?timeout=1").user("alice")
    with pytest.raises(BackendError, match='the emulator "" of FIRESTORE_EMULATOR_HOST'):
        alice.preferences()


def test_an_odd_path_of_firestore_is_refused_as_in_0_9():
    pytest.importorskip("google.cloud.firestore")
    with pytest.raises(ValueError, match="EVEN number of path segments"):
        Diary("firestore://project/users")


@engines.needs("firestore")
@engines.needs("redis")
@engines.needs("postgres")
def test_a_terminated_script_of_the_servers_leaves_none_running():
    with subprocess.Popen(
        [sys.executable, servers.__file__], stdout=subprocess.PIPE, text=True
    ) as script:
        assert script.stdout is not None
        ports = [int(re.findall(r":(\d+)", script.stdout.readline())[-1]) for _ in range(3)]
        script.terminate()
        assert script.wait(60) == 128 + signal.SIGTERM
    for port in ports:
        with socket.socket() as client:
            assert client.connect_ex(("127.0.0.1", port)) != 0
