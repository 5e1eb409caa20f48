"""A server that is stopped or crashes, and is started again: nothing acknowledged is missing, and work goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from typer.testing import CliRunner

import engines
import servers
from counted_requests import Counting
from tomldiary import BackendError, Diary, MemoryWriter, Turn
from tomldiary.cli.app import app, run
from tomldiary.doctor.doctor import check
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.heads import CALM
from tomldiary.storage.shared.redis import RedisDatabase
from waiting import until

LONG = 60  # seconds; nothing waits that long unless it is broken

both = pytest.mark.parametrize("name", ["postgres", "redis"])


@pytest.fixture
def place(name):
    """A folder and a port for a server that is started twice."""
    engines.space(name)  # skips without servers
    with tempfile.TemporaryDirectory(prefix="tomldiary-") as folder:
        yield Path(folder), servers.free_port()


class Writing(threading.Thread):
    """Writes until it is stopped, and notes what was acknowledged and what failed."""

    def __init__(self, alice):
        super().__init__()
        self.alice, self.done, self.failed = alice, [], []
        self.stopped = threading.Event()

    def run(self):
        for number in range(100_000):
            if self.stopped.is_set():
                return
            try:
                self.alice.upsert_preference("likes", f"thing number {number}")
                self.done.append(number)
            except BackendError as error:
                self.failed.append(str(error))


@both
@pytest.mark.parametrize(("crashes", "timeout"), [(False, 20), (True, 20), (True, 0.2)])
def test_writes_go_on_after_a_restart_of_the_server(name, place, crashes, timeout):
    with servers.running_as(name, *place, crashes=crashes) as url:
        backend = open_backend(f"{url}?timeout={timeout}", None)
        diary = Diary(backend, agent="rules", max_prefs_per_category=100_000, similarity=101)
        writing = Writing(diary.user("alice"))
        writing.start()
        until(lambda: len(writing.done) > 9)
    if timeout < 1:
        until(lambda: len(writing.failed) > 1)  # calls fail in time while the server is away
    with servers.running_as(name, *place):
        before = len(writing.done)
        until(lambda: len(writing.done) > before + 9)
        writing.stopped.set()
        writing.join()
        texts = [item.text for item in diary.user("alice").preferences("likes").values()]
        assert {f"thing number {number}" for number in writing.done} <= {*texts}
        assert len(texts) == len({*texts}) <= len(writing.done) + len(writing.failed)
        backend.close()
    if timeout > 1:
        assert writing.failed == []
    for error in writing.failed:
        assert "cannot be reached" in error or "unknown whether the change is stored" in error


@both
def test_a_flush_of_hooks_reports_no_delivery_while_the_server_is_away(name, place):
    got = []
    with servers.running_as(name, *place) as url:
        diary = Diary(f"{url}?timeout=2", agent="rules")
        diary.user("alice").upsert_preference("likes", "tea")
    with diary:
        diary.hooks.add(got.extend, name="index", poll=0.1)
        assert not diary.hooks.flush(1)
        assert got == []
        with servers.running_as(name, *place):
            assert diary.hooks.flush(LONG)
            assert [change.text for change in got] == ["tea"]


@both
def test_a_server_that_was_away_long_is_used_soon_after_its_start(name, place):
    with servers.running_as(name, *place) as url:
        diary = Diary(f"{url}?timeout=2", agent="rules")
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
    for _ in range(4):  # seconds enough for a pause that doubles to be longer than the timeout
        with pytest.raises(BackendError, match="cannot be reached"):
            alice.preferences()
    with servers.running_as(name, *place), diary:
        assert len(alice.preferences("likes")) == 1


@both
def test_a_write_to_a_server_that_is_away_has_no_unknown_outcome(name, place):
    with servers.running_as(name, *place) as url:
        diary = Diary(f"{url}?timeout=1", agent="rules")
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
    with pytest.raises(BackendError):
        alice.preferences()  # this connection was open
    for text in ("coffee", "milk"):
        with pytest.raises(BackendError, match="cannot be reached"):
            alice.upsert_preference("likes", text)
    with servers.running_as(name, *place), diary:
        assert [item.text for item in alice.preferences("likes").values()] == ["tea"]


@both
def test_the_durability_of_a_server_that_was_away_is_asked_again(name, place):
    with servers.running_as(name, *place) as url:
        pass
    diary = Diary(f"{url}?timeout=1", agent="rules")
    assert diary.stats()["durability"] == "process"
    with servers.running_as(name, *place), diary:
        assert diary.stats()["durability"] == "full"


@both
def test_turns_in_the_queue_outlive_a_crash_of_the_server(name, place):
    with servers.running_as(name, *place, crashes=True) as url:
        backend = open_backend(f"{url}?timeout=20", None)
        diary = Diary(backend, agent="rules", similarity=101)
        writer = MemoryWriter(diary, workers=2, lease=4.0)
        receipts = {
            user: [
                writer.submit_nowait(Turn(user, "s", f"I love thing number {n}.", "Noted."))
                for n in range(15)
            ]
            for user in ("ann", "bob")
        }
        assert receipts["ann"][0].wait(LONG).applied == 1
    with servers.running_as(name, *place):
        for user, mine in receipts.items():
            assert [each.wait(LONG).transaction for each in mine] == list(range(1, 16))
            texts = [item.text for item in diary.user(user).preferences("likes").values()]
            assert texts == [f"I love thing number {number}." for number in range(15)]
            assert diary.user(user).conversations()["s"].turns == 15
        writer.close_sync()
        backend.close()


@pytest.mark.parametrize("name", ["postgres"])
def test_a_write_that_waits_for_an_absent_replica_is_not_acknowledged(place):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    turn = Turn("alice", "s", "I love coffee.", "Noted.", operation_id="turn")
    with servers.postgres(*place) as url, Diary(f"{url}?timeout=1", agent="rules") as diary:
        bob = diary.user("bob")
        bob.upsert_preference("likes", "tea")

        def is_refused():
            with Diary(f"{url}?timeout=1") as another:
                try:
                    another.user("carol").upsert_preference("likes", "tea")
                except BackendError:
                    return True
            return False

        with (
            psycopg.connect(url, autocommit=True) as server,
            MemoryWriter(diary, workers=0) as writer,
        ):
            server.execute("ALTER SYSTEM SET synchronous_standby_names = 'replica'")
            server.execute("SELECT pg_reload_conf()")
            until(is_refused)  # another process of the server reads the setting later
            writes = [
                lambda: writer.submit_nowait(turn).wait_stored(LONG),
                lambda: bob.add_turn("I love milk.", "Noted.", session_id="s", operation_id="turn"),
            ]
            for write in writes:
                with pytest.raises(BackendError, match=r"pooler full\?\)\. It is unknown"):
                    write()
                with pytest.raises(BackendError, match=r"reached .*replica away, "):
                    write()  # finds its operation id, and changes nothing
            server.execute("ALTER SYSTEM RESET synchronous_standby_names")
            server.execute("SELECT pg_reload_conf()")
            until(lambda: not is_refused())
            assert all(write() for write in writes)


@pytest.mark.parametrize("name", ["postgres"])
@pytest.mark.parametrize("is_named_by", ["address", "environment"])
def test_the_first_of_two_servers_that_is_silent_leaves_time_for_the_other(
    place, is_named_by, monkeypatch
):
    with servers.postgres(*place) as url, socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]}", urlsplit(url).netloc.partition("@")[2]
        both = url.replace("@", f"@{hosts[0]},")
        if is_named_by == "environment":
            monkeypatch.setenv("PGHOST", ",".join(each.partition(":")[0] for each in hosts))
            monkeypatch.setenv("PGPORT", ",".join(each.partition(":")[2] for each in hosts))
            both = url.replace(hosts[1], "")
        with Diary(f"{both}?timeout=6", agent="rules") as diary:
            diary.user("alice").upsert_preference("likes", "tea")


def test_a_silent_server_is_waited_for_once_and_not_for_each_connection():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    engine = engines.space("postgres")
    schema = engine.url.rpartition("=")[2]
    with Diary(f"{engine.url}&timeout=3&application_name={schema}", agent="rules") as diary:
        diary.user("alice").upsert_preference("likes", "tea")
        readers = [threading.Thread(target=diary.user("alice").preferences) for _ in range(8)]
        with (
            psycopg.connect(engine.server) as locking,
            psycopg.connect(engine.server, autocommit=True) as observing,
        ):
            locking.execute(f"LOCK TABLE {schema}.users IN ACCESS EXCLUSIVE MODE")
            for reader in readers:
                reader.start()
            query = "SELECT pid FROM pg_stat_activity WHERE application_name = %s"
            until(lambda: len(observing.execute(query, [schema]).fetchall()) == len(readers), 20)
            locking.rollback()
            for reader in readers:
                reader.join()
            opened = [pid for (pid,) in observing.execute(query, [schema]).fetchall()]
        for pid in opened:
            os.kill(pid, signal.SIGSTOP)
        try:
            begin = time.monotonic()
            with pytest.raises(BackendError, match="no answer within 3 seconds"):
                diary.user("alice").preferences()
            assert time.monotonic() - begin < len(opened)
            diary.user("alice").upsert_preference("likes", "coffee")
        finally:
            for pid in opened:
                os.kill(pid, signal.SIGCONT)


def test_cancelling_a_statement_takes_a_small_part_of_the_time_limit(monkeypatch):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    from tomldiary.storage.shared.postgres.connection import (  # noqa: PLC0415 - see above
        connection_class,
    )

    server, given = engines.space("postgres").server, []
    bounded = connection_class(0.2)
    monkeypatch.setattr(bounded, "cancel_safe", lambda _self, timeout: given.append(timeout))
    with (
        bounded.connect(server, autocommit=True) as connection,
        pytest.raises(psycopg.OperationalError, match=r"no answer within 0\.2 seconds"),
    ):
        connection.execute("SELECT pg_sleep(5)")
    assert max(given) < 0.1


@pytest.mark.parametrize("name", ["redis"])
def test_a_server_that_stops_during_a_list_of_users_is_one_error(place, monkeypatch, capsys):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    listed = RedisDatabase.users

    def users(database):
        found = [*listed(database)]
        with redis.Redis.from_url(url) as client:
            client.shutdown(save=False)
        return found

    with servers.redis(*place) as url:
        with Diary(url, agent="rules") as diary:
            for name in ("alice", "bob", "carol"):
                diary.user(name).upsert_preference("likes", "tea")
        monkeypatch.setattr(RedisDatabase, "users", users)
        monkeypatch.setattr(sys, "argv", ["tomldiary", "users", "--path", f"{url}?timeout=0.2"])
        with pytest.raises(SystemExit):
            run()
    assert capsys.readouterr().err.count("cannot be reached") == 1


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize(
    ("settings", "remedy"),
    [
        ({}, ""),
        ({"appendfsync": "everysec"}, "Set appendfsync always."),
        ({"appendonly": "no"}, "Set appendonly yes."),
        ({"maxmemory": "1gb"}, ""),
        ({"maxmemory": "1gb", "maxmemory-policy": "volatile-lru"}, ""),
        ({"maxmemory": "1gb", "maxmemory-policy": "allkeys-lru"}, "Set maxmemory-policy noeviction."),
    ],
)  # fmt: skip
def test_a_redis_that_may_lose_writes_says_so(place, settings, remedy, caplog):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with servers.redis(*place) as url, Diary(url) as diary:
        with redis.Redis.from_url(url) as client:
            for key, value in settings.items():
                client.config_set(key, value)
        assert diary.stats()["durability"] == ("process" if remedy else "full")
        warnings = [each.message for each in check(diary) if each.level == "warning"]
        shown = CliRunner().invoke(app, ["stats", "--path", url]).stdout
    assert [each.endswith(remedy) for each in warnings] == [True] * bool(remedy)
    assert (remedy or "a crash loses no acknowledged write") in shown
    assert bool(caplog.messages) is bool(remedy)
    assert all(each.endswith(remedy) for each in caplog.messages)


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize(
    ("mode", "remedy"),
    [
        ("--sentinel", "a server that runs scripts; a Sentinel does not."),
        ("--cluster-enabled yes", "Redis Cluster is not supported."),
    ],
)
def test_a_sentinel_and_a_cluster_of_redis_are_refused_by_name(place, mode, remedy):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    folder, port = place
    settings = folder / "settings"
    settings.write_text(f"port {port}\ndir {folder}\n")
    command = [servers.program("redis-server"), str(settings), *mode.split()]
    if mode != "--sentinel":  # by default its second port is 10,000 higher, which may be none
        command += ["--cluster-port", str(servers.free_port())]
    with servers.running(command, port), redis.Redis(port=port) as client:
        if mode != "--sentinel":
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            until(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), LONG)
        with Diary(f"redis://127.0.0.1:{port}/0", agent="rules") as diary:
            with pytest.raises(BackendError, match=re.escape(remedy)):
                diary.user("alice").upsert_preference("likes", "tea")
            with pytest.raises(BackendError, match=re.escape(remedy)):
                check(diary)


@pytest.mark.parametrize("name", ["redis"])
def test_a_redis_without_the_handshake_of_its_client_names_the_option(place):
    folder, port = place
    command = [servers.program("redis-server"), "--port", str(port), "--dir", str(folder)]
    url = f"redis://127.0.0.1:{port}/0"
    with servers.running([*command, "--rename-command", "HELLO", ""], port):
        with (
            Diary(f"{url}?protocol=3", agent="rules") as diary,
            pytest.raises(BackendError, match="Write protocol=2 in the address"),
        ):
            diary.user("alice").preferences()
        with Diary(f"{url}?protocol=2", agent="rules") as diary:
            diary.user("alice").upsert_preference("likes", "tea")


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize(
    ("setting", "remedy"),
    [
        (("maxmemory", "1"), "Its memory is full: raise maxmemory."),
        (("replicaof", "127.0.0.1 1"), "Use the address of the primary server."),
        (("min-replicas-to-write", "1"), "Check its replicas and min-replicas-to-write."),
        (("bgsave", ""), "It cannot write to its disk: free space there, and read its log."),
    ],
)
def test_a_redis_that_takes_no_writes_names_the_remedy(place, setting, remedy):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    # A server that cannot save would not end at SIGTERM.
    with servers.redis(*place, crashes=True) as url, Diary(url, agent="rules") as diary:
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        with redis.Redis.from_url(url) as client:
            if setting[0] == "replicaof":
                client.replicaof(*setting[1].split())
            elif setting[0] == "bgsave":
                client.config_set("save", "1000 1000")
                shutil.rmtree(place[0])
                client.bgsave()
                until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
            else:
                client.config_set(*setting)
        with pytest.raises(BackendError, match=re.escape(remedy)):
            alice.upsert_preference("likes", "coffee")
        if setting[0] == "replicaof":
            with redis.Redis.from_url(
                url
            ) as client:  # a new connection may lead to the primary server
                assert len(client.client_list()) == 1
        assert len(alice.preferences("likes")) == 1
        problems = [
            f"{each.message} {each.remedy}" for each in check(diary) if each.level == "problem"
        ]
        assert [remedy in each for each in problems] == [True]


def begin_script(client):
    client.config_set("busy-reply-threshold", "1")
    busy = client.connection_pool.make_connection()
    busy.send_command("EVAL", "while true do end", 0)
    until(lambda: is_busy(client))


def is_busy(client):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    try:
        return not client.ping()
    except redis.ResponseError:
        return True


def lose_primary(client):
    client.config_set("replica-serve-stale-data", "no")
    client.replicaof("127.0.0.1", 1)


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize(
    ("begin", "end"),
    [
        (begin_script, lambda client: client.script_kill()),
        (lose_primary, lambda client: client.replicaof("NO", "ONE")),
    ],
)
def test_a_redis_that_refuses_all_commands_for_a_time_is_waited_for(place, begin, end):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with servers.redis(*place) as url, Diary(url, agent="rules") as diary:
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        with redis.Redis.from_url(url) as client:
            begin(client)
            with (
                Diary(f"{url}?timeout=0.1", agent="rules") as hasty,
                pytest.raises(BackendError, match="cannot be reached"),
            ):
                hasty.user("alice").preferences()
            ending = threading.Timer(0.2, end, [client])
            ending.start()
            alice.upsert_preference("likes", "coffee")
            ending.join()
        assert [each.text for each in alice.preferences("likes").values()] == ["tea", "coffee"]


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize("reason", ["max number of clients", "name is unknown"])
def test_a_write_that_is_not_sent_to_redis_has_no_unknown_outcome(place, reason, monkeypatch):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    def unknown(*_arguments, **_options):
        raise socket.gaierror(socket.EAI_NONAME, "name is unknown")

    with servers.redis(*place) as url, Diary(f"{url}?timeout=0.2", agent="rules") as diary:
        alice = diary.user("alice")
        alice.upsert_preference("likes", "tea")
        with redis.Redis.from_url(url) as client:
            client.config_set("maxclients", "1")
            diary.engine.backend.database.close()
            if reason == "name is unknown":
                monkeypatch.setattr(socket, "getaddrinfo", unknown)
            with pytest.raises(BackendError, match=rf"cannot be reached \({reason}"):
                alice.upsert_preference("likes", "coffee")


@pytest.mark.parametrize("name", ["redis"])
@pytest.mark.parametrize("is_new", [False, True], ids=["known process", "new process"])
@pytest.mark.parametrize(
    "selector", [{"everything": True}, {"matching": "coffee"}, {"session_id": "s1"}]
)
def test_a_redis_with_full_memory_forgets(place, selector, is_new):
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    with servers.redis(*place) as url, Diary(url, agent="rules") as diary:
        alice = diary.user("alice")
        for text in ("tea", "coffee"):
            alice.upsert_preference("likes", text, session_id="s1" if text == "coffee" else "s0")
        with redis.Redis.from_url(url) as client:
            client.config_set("maxmemory", "1")
        with Diary(url, agent="rules") as other:
            user = (other if is_new else diary).user("alice")
            user.forget(**selector)
            assert user.traces("coffee") == []
            with pytest.raises(BackendError, match="raise maxmemory"):
                user.upsert_preference("likes", "juice")
        left = [] if "everything" in selector else ["tea"]
        assert [each.text for each in alice.preferences("likes").values()] == left


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", []),
        ("&options=-c%20synchronous_commit%3Dlocal", []),
        ("&options=-c%20synchronous_commit%3Doff", ["synchronous_commit off, so a power cut loses"]),
    ],
)  # fmt: skip
def test_a_postgres_that_may_lose_writes_says_so(options, said, caplog):
    with Diary(f"{engines.space('postgres').url}{options}") as diary:
        for _ in range(2):  # asked and warned about once
            assert diary.stats()["durability"] == ("process" if said else "full")
            warnings = [each.message for each in check(diary) if each.level == "warning"]
            assert [said[0] in each for each in warnings] == [True] * len(said)
    assert len(caplog.messages) == len(said)
    assert all(part in each for part, each in zip(said, caplog.messages, strict=True))


def emptied(engine):
    """Remove everything from a place, as a server does that is restored from an old copy."""
    name = engine.url.rpartition("=")[2]
    if engine.name == "postgres":
        import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

        with psycopg.connect(engine.server, autocommit=True) as connection:
            for table in ("users", "documents", "history"):
                connection.execute(f"DELETE FROM {name}.{table}")  # noqa: S608 - our own name
    elif engine.name == "redis":
        import redis  # noqa: PLC0415 - see above

        with redis.Redis.from_url(engine.server) as client:
            client.delete(*client.keys(f"{name}:*"))
    else:
        from google.cloud import firestore  # noqa: PLC0415 - see above

        client = firestore.Client(project="tests")
        for collection in client.document("/".join(engine.url.split("/")[3:])).collections():
            client.recursive_delete(collection)
        client.close()


def liked(alice):
    return [item.text for item in alice.preferences("likes").values()]


def test_a_write_to_an_emptied_server_brings_nothing_back(engine, opened):
    alice = Diary(opened(), agent="rules").user("alice")
    for text in ("brahms", "porridge", "skating"):
        alice.upsert_preference("likes", text)
    emptied(engine)
    alice.upsert_preference("likes", "walnuts")
    assert liked(alice) == liked(Diary(opened(), agent="rules").user("alice")) == ["walnuts"]
    assert [entry.seq for entry in alice.history()] == [1]


def test_a_state_from_before_a_loss_is_never_taken_for_a_later_one(engine, opened):
    before, after = (Diary(opened(), agent="rules").user("alice") for _ in range(2))
    for text in ("brahms", "porridge", "skating"):
        before.upsert_preference("likes", text)
    emptied(engine)
    for text in ("walnuts", "dominoes", "yoga"):  # as many steps as were lost
        after.upsert_preference("likes", text)
    assert liked(before) == ["walnuts", "dominoes", "yoga"]
    before.upsert_preference("likes", "cycling")
    assert liked(after) == liked(before) == ["walnuts", "dominoes", "yoga", "cycling"]
    assert [entry.seq for entry in after.history()] == [4, 3, 2, 1]


def test_a_write_after_a_loss_is_soon_one_request(engine, opened):
    backend = opened()
    counted = backend.transactions.database = Counting(backend.database)
    alice = Diary(backend, agent="rules", similarity=101).user("alice")
    for number in range(30):
        alice.upsert_preference("likes", f"lost thing {number}")
    emptied(engine)
    for number in range(CALM + 3):  # fewer than were lost
        counted.requests.clear()
        alice.upsert_preference("likes", f"thing number {number}")
    assert counted.requests == ["apply"]


@engines.needs("postgres")
def test_a_watched_state_after_a_loss_is_trusted_again():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    engine = engines.space("postgres")
    name = engine.url.rpartition("=")[2]
    url = f"{engine.url}&watch=2&application_name={name}"
    with Diary(url, agent="rules", similarity=101) as diary:
        backend, alice = diary.engine.backend, diary.user("alice")
        counted = backend.transactions.database = Counting(backend.database)
        for number in range(10):
            alice.upsert_preference("likes", f"lost thing {number}")

        def asks_nothing():
            counted.requests.clear()
            return liked(alice) is not None and counted.requests == []

        until(asks_nothing)
        emptied(engine)
        Diary(opened_again := engine.backend(), agent="rules").user("alice").upsert_preference(
            "likes", "tea"
        )
        opened_again.close()
        with psycopg.connect(engine.server, autocommit=True) as server:
            ended = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
            )
            server.execute(ended, [name])
        until(lambda: liked(alice) == ["tea"])
        until(asks_nothing)
