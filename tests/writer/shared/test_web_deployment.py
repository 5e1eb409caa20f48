"""The example with FastAPI: two web processes, two writer processes, and PostgreSQL; one of each is killed."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

import engines
import servers
from processes import STRICT

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "fastapi"
TURNS = 20
LONG = 120  # seconds; nothing waits that long unless it is broken


def ask(port, method, path, token="", body=None, key=""):
    """Make a request and return its status and its answer; OSError if the server is away."""
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        if key:
            headers["Idempotency-Key"] = key
        if body is not None:
            headers["Content-Type"] = "application/json"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    except HTTPException as error:
        raise OSError(str(error)) from error
    finally:
        connection.close()


def until(claim):
    deadline = time.monotonic() + LONG
    while True:
        try:
            if claim():
                return
        except OSError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.05)


def said(number):
    return {"session_id": "s", "user": f"I love thing number {number}.", "assistant": "Noted."}


class Client(threading.Thread):
    """Stores the turns of one user, each with one key, on whichever server answers."""

    def __init__(self, user, ports, sent):
        super().__init__()
        self.token, self.ports, self.sent = f"token of {user}", ports, sent

    def run(self):
        for number in range(TURNS):
            self.post(number)
            self.sent.release()

    def post(self, number):
        for attempt in range(100):
            port = self.ports[(number + attempt) % 2]
            try:
                answer = ask(port, "POST", "/turns", self.token, said(number), f"{number}")
            except OSError:
                time.sleep(0.05)
                continue
            assert answer == (202, {"stored": True})
            return
        raise AssertionError("no server answers")


@pytest.fixture
def environment(tmp_path):
    users = {"token of ann": "ann", "token of bob": "bob"}
    digests = {hashlib.sha256(token.encode()).hexdigest(): user for token, user in users.items()}
    tokens = tmp_path / "tokens.json"
    tokens.write_text(json.dumps(digests))
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations")]),
        "TOMLDIARY_URL": engines.space("postgres").url,
        "APP_TOKENS": str(tokens),
        "WRITER_LEASE": "2",
    }


@pytest.fixture
def start(environment):
    with ExitStack() as stack:

        def start_one(*command):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, *STRICT, *command], env=environment)
            )
            stack.callback(process.kill)
            return process

        yield start_one


def test_turns_outlive_a_killed_web_process_and_a_killed_writer(start):
    ports = [servers.free_port() for _ in range(2)]
    web = [
        start("-m", "uvicorn", "--app-dir", EXAMPLE, "web:app", "--port", str(port),
              "--log-level", "warning")
        for port in ports
    ]  # fmt: skip
    writers = [start(EXAMPLE / "worker.py") for _ in range(2)]
    for port in ports:
        until(lambda port=port: ask(port, "GET", "/health")[0] == 200)

    # Whose memory it is, only the token says.
    assert ask(ports[0], "GET", "/memory")[0] in {401, 403}
    assert ask(ports[0], "GET", "/memory", "guessed")[0] == 401
    wrong = {**said(0), "user_id": "bob"}
    assert ask(ports[0], "POST", "/turns", "token of ann", wrong, "k")[0] == 422

    sent = threading.Semaphore(0)
    clients = [Client(user, ports, sent) for user in ("ann", "bob")]
    for each in clients:
        each.start()
    for _ in range(TURNS):  # half of all turns are stored then, and the clients go on
        assert sent.acquire(timeout=LONG)
    web[0].kill()
    writers[0].kill()
    for each in clients:
        each.join()
        each.post(TURNS - 1)  # a repeated request has no effect
        check_known(ports[1], each.token)

    assert ask(ports[1], "DELETE", "/memory", "token of ann") == (200, {"epoch": 1})
    assert ask(ports[1], "GET", "/memory", "token of ann")[1]["turns"] == {}
    check_known(ports[1], "token of bob")
    for each in (web[1], writers[1]):
        each.terminate()
        assert each.wait(30) in {0, -15}


def test_a_web_process_refuses_a_turn_that_no_writer_could_apply(start):
    port = servers.free_port()
    start("-m", "uvicorn", "--app-dir", EXAMPLE, "web:app", "--port", str(port),
          "--log-level", "warning")  # fmt: skip
    until(lambda: ask(port, "GET", "/health")[0] == 200)

    turn = partial(ask, port, "POST", "/turns", "token of ann")
    assert turn({**said(0), "session_id": ""}, "k") == (
        422,
        {"detail": "session_id: the session id is empty. Give one."},
    )
    assert turn(said(0), "k")[0] == 202
    assert turn(said(1), "k")[0] == 409  # the key of another turn


def test_a_web_process_answers_503_while_it_waits_for_the_database(environment, start):
    import psycopg  # noqa: PLC0415 - slow to import, and used with servers only

    port, schema = servers.free_port(), environment["TOMLDIARY_URL"].rpartition("=")[2]
    environment["TOMLDIARY_URL"] += "&timeout=1"
    start("-m", "uvicorn", "--app-dir", EXAMPLE, "web:app", "--port", str(port),
          "--log-level", "warning")  # fmt: skip
    until(lambda: ask(port, "GET", "/health")[0] == 200)

    turn = partial(ask, port, "POST", "/turns", "token of ann")
    assert turn(said(0), "k")[0] == 202
    with (
        psycopg.connect(os.environ[servers.POSTGRES]) as connection,
        ThreadPoolExecutor() as threads,
    ):
        connection.execute(f"LOCK TABLE {schema}.users IN EXCLUSIVE MODE")
        erasure = threads.submit(ask, port, "DELETE", "/memory", "token of ann")
        time.sleep(0.3)
        assert turn(said(1), "another")[0] == 503  # the erasure holds the lock of the user
        assert erasure.result()[0] == 503
    assert turn(said(1), "another")[0] == 202


def check_known(port, token):
    """Wait until all turns of a user are applied, and check that each is there once and in order."""
    until(lambda: ask(port, "GET", "/memory", token)[1]["turns"].get("s") == TURNS)
    assert ask(port, "GET", "/memory", token)[1] == {
        "preferences": {"likes": [f"I love thing number {number}." for number in range(TURNS)]},
        "turns": {"s": TURNS},
    }
    assert said(7)["user"] in ask(port, "GET", "/recall?query=number+7", token)[1]
