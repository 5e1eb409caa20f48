"""Watched databases: reads without requests, which are never older than documented, whatever becomes of the connection."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import threading
import time
from typing import Any, NamedTuple

import pytest

from capabilities import needs_fork
from counted_requests import Counting
from engines import space
from tomldiary import Diary
from tomldiary.errors import BackendError, InvalidValue, NotSupported
from tomldiary.storage.open import open_backend
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import DatabaseLost
from tomldiary.storage.shared.heads import EVERYTHING, Heads, notice_key
from tomldiary.storage.shared.redis import RedisDatabase
from tomldiary.store.operations import Put, Search
from tomldiary.store.store import ItemStore
from waiting import until

SILENCE = 1.0  # seconds


@pytest.fixture(params=["postgres", "redis"])
def place(request):
    return space(request.param)


class Watched(NamedTuple):
    """A backend that watches, the database without a count of requests, and the connections of the watch."""

    backend: Any
    database: Any
    listeners: list[Any]


def watching(place, silence=SILENCE):
    backend, listeners = open_backend(f"{place.url}&watch={silence}", None), []
    database = backend.database
    listen = database.listen

    def noted():
        listeners.append(listen())
        return listeners[-1]

    database.listen = noted
    return Watched(backend, database, listeners)


def threads():
    return {each for each in threading.enumerate() if each.name == "tomldiary-watch"}


@pytest.fixture
def watch(place):
    made = watching(place)
    yield made
    made.backend.close()


@pytest.fixture
def watched(watch):
    """A backend that watches, and counts requests."""
    watch.backend.transactions.database = Counting(watch.database)
    return watch.backend


@pytest.fixture
def other(place):
    """A user of another machine."""
    backend = place.backend()
    yield Diary(backend, agent="rules").user("alice")
    backend.close()


def trusted_for(backend):
    """Seconds for which reads will ask nothing, unless the connection answers again."""
    return backend.transactions.heads._trusted_until - time.monotonic()


def is_trusted(backend):
    return trusted_for(backend) > 0


def opened(backend):
    """The user, once reads need no request."""
    alice = Diary(backend, agent="rules").user("alice")
    alice.preferences()  # starts the watch
    until(lambda: is_trusted(backend))
    return alice


def texts(alice):
    return sorted(item.text for item in alice.preferences("likes").values())


def test_reads_without_a_change_ask_nothing(watched, other):
    other.upsert_preference("likes", "tea")
    alice = opened(watched)
    assert texts(alice) == ["tea"]

    def asks_nothing():  # once the thread of the watch had its turn
        watched.database.requests.clear()
        assert texts(alice) == ["tea"]
        assert [hit.text for hit in alice.recall("tea")] == ["tea"]
        return watched.database.requests == []

    until(asks_nothing)


def test_a_change_of_another_machine_arrives(watched, other):
    alice = opened(watched)
    for number in range(5):
        key, _ = other.upsert_preference("likes", f"drink {number}")
        until(lambda key=key: key in alice.preferences("likes"))


def test_a_change_of_the_shared_owner_arrives(watched, place):
    one, two = (ItemStore(Diary(each), user_label=None) for each in (watched, place.backend()))
    assert one.run([Search(("docs",))]) == [[]]  # starts the watch
    until(lambda: is_trusted(watched))
    for number in range(3):
        two.run([Put(("docs",), f"k{number}", {"text": "a page"})])
        until(lambda number=number: len(one.run([Search(("docs",))])[0]) == number + 1)
    two.diary.backend.close()


def test_a_process_with_many_open_files_watches(watched):
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        opened(watched)
        later = time.monotonic() + trusted_for(watched) + SILENCE / 10
        until(lambda: time.monotonic() + trusted_for(watched) > later, 10)  # after its first wait
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_error_of_a_client_library_does_not_end_a_watch(watch, watched, caplog):
    def fail():
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    opened(watched)
    watch.listeners[0].check = fail
    until(lambda: len(watch.listeners) == 2, 10)
    until(lambda: is_trusted(watched), 10)
    assert "cannot be watched (UnicodeDecodeError)" in caplog.text


def test_own_writes_are_seen_at_once(watched, other):
    alice = opened(watched)
    for number in range(5):
        alice.upsert_preference("likes", f"drink {number}")
        assert len(texts(alice)) == number + 1
        other.upsert_preference("dislikes", f"dish {number}")
        alice.upsert_preference("dislikes", f"meal {number}")
        assert len(alice.preferences("dislikes")) == 2 * number + 2


def test_an_own_write_with_a_lost_answer_is_seen_at_once(watched):
    alice = opened(watched)
    alice.upsert_preference("likes", "tea")
    assert texts(alice) == ["tea"]
    apply = watched.database.apply

    def lost(user, head, step):
        watched.database.apply = apply
        apply(user, head, step)
        raise DatabaseLost("broken")

    watched.database.apply = lost
    watched.transactions.heads.notice = lambda *_: None  # no notice has arrived yet
    alice.blocks.set("persona", "kind")
    assert alice.blocks["persona"].text == "kind"
    assert "blocks" in watched.kinds("alice")


def connection_of(watch):
    return watch.listeners[-1]._connection


def kill(place, watch):
    """End the connection of the watch on the server's side."""
    if place.name == "postgres":
        import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

        with psycopg.connect(place.server, autocommit=True) as connection:
            pid = connection_of(watch).info.backend_pid
            connection.execute("SELECT pg_terminate_backend(%s)", [pid])
    else:
        import redis  # noqa: PLC0415 - see above

        with redis.Redis.from_url(place.server, decode_responses=True) as client:
            own = connection_of(watch)._sock.getsockname()
            client.client_kill(f"{own[0]}:{own[1]}")


def test_a_killed_connection_makes_reads_ask_until_it_is_back(place, watch, watched, other, caplog):
    alice = opened(watched)
    assert texts(alice) == []
    listen, is_back = watch.database.listen, threading.Event()

    def listen_late():
        is_back.wait(20)
        return listen()

    watch.database.listen = listen_late
    kill(place, watch)
    until(lambda: not is_trusted(watched))
    for number in range(3):
        other.upsert_preference("likes", f"drink {number}")
        assert len(texts(alice)) == number + 1  # at once: the version is asked for
    assert "changes cannot be watched" in caplog.text
    assert caplog.text.count("changes cannot be watched") == 1
    other.upsert_preference("likes", "during the absence")
    is_back.set()
    until(lambda: is_trusted(watched))
    assert "during the absence" in texts(alice)
    other.upsert_preference("likes", "afterwards")
    until(lambda: "afterwards" in texts(alice))


def test_a_silent_connection_is_believed_no_longer_than_the_option_says(watch, watched, other):
    alice = opened(watched)
    assert texts(alice) == []
    listener = watch.listeners[-1]
    is_silent, is_over = threading.Event(), threading.Event()

    def swallowed(*_):
        is_silent.set()
        is_over.wait(20)  # as if the network dropped all packets
        return ()

    listener.check = listener.wait = swallowed
    assert is_silent.wait(10)
    other.upsert_preference("likes", "tea")
    assert trusted_for(watched) <= SILENCE
    until(lambda: texts(alice) == ["tea"])
    is_over.set()


def test_a_pooler_of_postgres_that_swallows_notices_is_not_believed(caplog):
    place = space("postgres")
    watch, other = watching(place), place.backend()
    backend = watch.backend
    alice = opened(backend)
    connection_of(watch).execute("UNLISTEN *")
    until(lambda: "is there a connection pooler?" in caplog.text)
    Diary(other, agent="rules").user("alice").upsert_preference("likes", "tea")
    until(lambda: is_trusted(backend))  # with a new connection
    assert texts(alice) == ["tea"]
    backend.close()
    other.close()


def test_only_a_watched_database_of_postgres_sends_notices():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    place = space("postgres")
    query = (
        "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = tgrelid"
        " JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname = %s AND NOT tgisinternal"
    )
    with psycopg.connect(place.server, autocommit=True) as connection:

        def triggers():
            name = [place.url.rpartition("=")[2]]
            return connection.execute(query, name).fetchone()[0]

        backend = place.backend()
        Diary(backend, agent="rules").user("alice").upsert_preference("likes", "tea")
        backend.close()
        assert triggers() == 0
        for _ in range(2):
            backend = open_backend(f"{place.url}&watch=1", None)
            opened(backend)
            backend.close()
        assert triggers() == 1


def test_a_schema_of_postgres_that_was_renamed_is_watched_anew():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    place = space("postgres")
    backend = open_backend(f"{place.url}&watch=1", None)
    opened(backend).upsert_preference("likes", "tea")
    backend.close()
    old = place.url.rpartition("=")[2]
    with psycopg.connect(place.server, autocommit=True) as connection:
        connection.execute(f"ALTER SCHEMA {old} RENAME TO {old}b")
    watch = watching(place._replace(url=f"{place.url}b"))
    alice = opened(watch.backend)
    assert texts(alice) == ["tea"]
    with Diary(f"{place.url}b", agent="rules") as other:
        other.user("alice").upsert_preference("likes", "coffee")
    until(lambda: texts(alice) == ["coffee", "tea"])
    watch.backend.close()


def trusted_watch():
    """Return a place of PostgreSQL, a watch that is trusted, and a user who likes tea, read through it."""
    place = space("postgres")
    watch = watching(place)
    alice = opened(watch.backend)
    alice.upsert_preference("likes", "tea")
    until(lambda: is_trusted(watch.backend))
    assert texts(alice) == ["tea"]
    return place, watch, alice


def test_a_schema_of_postgres_that_is_replaced_under_a_watch_is_watched_anew():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    place, watch, alice = trusted_watch()
    name = place.url.rpartition("=")[2]
    with Diary(f"{place.url}b", agent="rules") as restored:
        restored.user("alice").upsert_preference("likes", "coffee")
    with psycopg.connect(place.server) as connection:
        connection.execute(f"ALTER SCHEMA {name} RENAME TO {name}c")
        connection.execute(f"ALTER SCHEMA {name}b RENAME TO {name}")
    until(lambda: texts(alice) == ["coffee"])
    with Diary(place.url, agent="rules") as other:
        other.user("alice").upsert_preference("likes", "jazz")
    until(lambda: texts(alice) == ["coffee", "jazz"])
    until(lambda: is_trusted(watch.backend))
    watch.backend.close()


def test_a_restore_of_postgres_that_disables_the_trigger_meanwhile_is_noticed():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    place, watch, alice = trusted_watch()
    name = place.url.rpartition("=")[2]
    with (
        Diary(place.url, agent="rules") as restored,
        psycopg.connect(place.server, autocommit=True) as connection,
    ):
        connection.execute(f"ALTER TABLE {name}.users DISABLE TRIGGER ALL")
        restored.user("alice").upsert_preference("likes", "coffee")
        until(lambda: texts(alice) == ["coffee", "tea"])
        connection.execute(f"ALTER TABLE {name}.users ENABLE TRIGGER ALL")
        until(lambda: is_trusted(watch.backend))
        with connection.transaction():
            connection.execute(f"ALTER TABLE {name}.users DISABLE TRIGGER ALL")
            connection.execute(f"DELETE FROM {name}.users")  # noqa: S608 - our own names
            connection.execute(f"DELETE FROM {name}.documents")  # noqa: S608 - our own names
            connection.execute(f"ALTER TABLE {name}.users ENABLE TRIGGER ALL")
        until(lambda: texts(alice) == [])
    watch.backend.close()


def test_rows_that_postgres_replicates_are_noticed():
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    place, watch, alice = trusted_watch()
    users = f"{place.url.rpartition('=')[2]}.users"
    enabled = "SELECT FROM pg_trigger WHERE tgrelid = %s::regclass AND tgenabled = 'A'"
    with psycopg.connect(place.server, autocommit=True) as server:
        # As pg_restore does; it leaves a trigger that ignores replicated rows.
        server.execute(f"ALTER TABLE {users} DISABLE TRIGGER ALL")
        server.execute(f"ALTER TABLE {users} ENABLE TRIGGER ALL")
        until(lambda: server.execute(enabled, [users]).fetchone() is not None)
    until(lambda: is_trusted(watch.backend))
    replicating = "options=-c%20session_replication_role%3Dreplica"
    with Diary(f"{place.url}&{replicating}", agent="rules") as other:
        other.user("alice").upsert_preference("likes", "coffee")
    until(lambda: texts(alice) == ["coffee", "tea"])
    watch.backend.close()


def test_the_permissions_that_an_error_of_redis_names_are_enough_for_a_watch():
    import redis  # noqa: PLC0415 - slow to import, and used with servers only

    place = space("redis")
    name = place.url.rpartition("=")[2]
    backend = open_backend(f"{place.url}&watch=1".replace("://", f"://{name}:secret@"), None)
    with redis.Redis.from_url(place.server) as client, contextlib.closing(backend):
        client.acl_setuser(name, enabled=True, passwords=["+secret"])
        try:
            with pytest.raises(BackendError, match="a permission is missing") as caught:
                backend.kinds("alice")
            rights = re.findall(r"[~&+][^\s,]*[^\s,.]", str(caught.value).partition("Grant")[2])
            client.execute_command("ACL", "SETUSER", name, *rights)
            opened(backend).upsert_preference("likes", "tea")
            until(lambda: is_trusted(backend))
        finally:
            client.acl_deluser(name)


def test_a_notice_of_postgres_is_short_and_holds_no_user_id():
    watch = watching(space("postgres"))
    backend, received = watch.backend, []
    opened(backend)
    connection_of(watch).add_notify_handler(lambda notice: received.append(notice.payload))
    Diary(backend, agent="rules").user("alice" * 500).upsert_preference("likes", "tea")
    until(lambda: any(" " in each for each in received))
    assert all("alice" not in each and len(each) < 100 for each in received)
    backend.close()


def test_closing_ends_the_thread(place):
    before = threads()
    backend = open_backend(f"{place.url}&watch=0.4", None)
    opened(backend)
    assert len(threads() - before) == 1
    backend.close()
    until(lambda: not threads() - before)
    backend = open_backend(f"{place.url}&watch=0.4", None)
    opened(backend)
    assert len(threads() - before) == 1
    backend.database.close()
    del backend
    gc.collect()
    until(lambda: not threads() - before)


@needs_fork
def test_a_forked_child_watches_by_itself(place, watched, other):
    alice = opened(watched)
    other.upsert_preference("likes", "tea")
    child = os.fork()
    if not child:
        is_right = False
        try:
            is_right = texts(alice) == ["tea"]
            until(lambda: is_trusted(watched))
            other.upsert_preference("likes", "coffee")
            until(lambda: texts(alice) == ["coffee", "tea"])
        except AssertionError:
            is_right = False
        finally:
            os._exit(0 if is_right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    until(lambda: texts(alice) == ["coffee", "tea"])
    until(lambda: is_trusted(watched))


@pytest.mark.parametrize("protocol", [2, 3])
def test_notices_of_redis_arrive_with_each_protocol_of_an_address(protocol):
    database = RedisDatabase(f"{space('redis').server}?protocol={protocol}", prefix="x", timeout=2)
    listener = database.listen()
    assert listener.check() == []
    database.touch("alice")
    assert listener.check() == [(notice_key("alice"), None)]
    listener.close()
    database.close()


def test_an_emptied_redis_is_noticed():
    database = RedisDatabase(space("redis").server, prefix="x")
    listener = database.listen()
    assert listener._notices(["message", "__redis__:invalidate", None]) == [("", None)]
    listener.close()
    database.close()


def test_a_notice_of_everything_makes_each_read_ask(watch, watched):
    alice = opened(watched)

    def wait(_seconds):
        time.sleep(0.01)
        return [(EVERYTHING, None)]

    def asks():
        watched.database.requests.clear()
        alice.preferences()
        return watched.database.requests != []

    until(lambda: not asks())
    watch.listeners[-1].wait = wait
    until(lambda: asks() and is_trusted(watched))


def test_a_notice_during_a_request_makes_its_answer_invalid(place):
    backend = place.backend()
    heads, head = Heads(), backend.database.head("alice")
    known = heads.of("alice")
    for interrupt in (
        lambda: heads.notice(notice_key("alice"), None),
        lambda: heads.notice(notice_key("alice"), 7),
        heads.distrust,
    ):
        heads.trust(time.monotonic() + 10)
        known.noticed = (0, 0)
        stamp = heads.stamp(known)
        heads.keep(known, head, stamp)
        assert heads.valid(known) is not None
        stamp = heads.stamp(known)
        interrupt()
        heads.keep(known, head, stamp)
        heads.trust(time.monotonic() + 10)
        assert heads.valid(known) is None
    backend.close()


def test_wrong_options_of_a_watch_are_refused():
    for watch in ("0.01", "1e9"):
        with pytest.raises(InvalidValue, match=r"expected 0\.2 to 86,400 seconds"):
            open_backend(f"redis://127.0.0.1:1/0?watch={watch}", None)
    with pytest.raises(NotSupported, match="watch is supported on PostgreSQL and Redis"):
        SharedBackend(object(), watch=1)
    pytest.importorskip("google.cloud.firestore")
    from tomldiary.errors import BackendError  # noqa: PLC0415 - beside its use

    with pytest.raises((BackendError, NotSupported), match="no option 'watch'"):
        open_backend("firestore://project/app/memory?watch=1", None)
