"""Starts the database servers that the tests of shared backends use, on free ports of this machine.

    python tests/support/servers.py [pytest …]

Without a command it prints the environment variables that the tests read, and waits until SIGINT or SIGTERM.
With a command it runs that, and stops the servers afterwards. It needs PostgreSQL and Redis
(`apt-get install postgresql redis-server`), and `gcloud` with the Firestore emulator.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

POSTGRES = "TOMLDIARY_TEST_POSTGRES"
REDIS = "TOMLDIARY_TEST_REDIS"
FIRESTORE = "FIRESTORE_EMULATOR_HOST"
NEW_POSTGRES = "TOMLDIARY_TEST_NEW_POSTGRES"
"""Names a folder with the files of a new server of PostgreSQL."""
_PATIENCE = 180.0  # seconds until a server answers, as long as a busy machine needs


def free_port() -> int:
    """Return a free port of the loopback interface; no client gets it meanwhile, as systems give them higher ones."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with contextlib.suppress(OSError), socket.socket() as found:
            found.bind(("127.0.0.1", port))
            return port


def wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return once a port accepts connections."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"{server.args!r} ended with code {server.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"{server.args!r} does not answer on port {port}")


def program(name: str) -> str:
    """Return the path of a program.

    Raises:
        RuntimeError: It is not installed.
    """
    places = [os.environ["PATH"], *map(str, Path("/usr/lib/postgresql").glob("*/bin"))]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        raise RuntimeError(f"{name} is not installed; tests/support/servers.py says what it needs.")
    return found


@contextlib.contextmanager
def running(
    command: list[str], port: int, end: int = signal.SIGTERM, **options: object
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server until the block ends; its whole process group gets the signal `end` then.

    A server that a signal ends before it answers is started again once: a PostgreSQL in some thousands crashed so.
    """
    start = partial(
        subprocess.Popen,
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        **options,
    )
    server = start()
    try:
        try:
            wait_for(port, server)
        except RuntimeError:
            if (server.poll() or 0) >= 0:
                raise
            server = start()
            wait_for(port, server)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, end)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@contextlib.contextmanager
def postgres(
    folder: Path, port: int | None = None, password: str = "", *, crashes: bool = False
) -> Iterator[str]:
    """Run PostgreSQL on a data folder, which is created if it is missing; yield its URL.

    Without a password it trusts every local user. If it crashes at the end, its next start recovers from its log.
    """
    port = port or free_port()
    data = folder / "postgres"
    options = _allowed_in(folder)
    if not (data / "PG_VERSION").exists():
        if password or NEW_POSTGRES not in os.environ:
            _initialise_postgres(data, password)
        else:  # a copy takes a tenth of the time
            subprocess.run([program("cp"), "-a", os.environ[NEW_POSTGRES], data], check=True)
    settings = {
        "listen_addresses": "127.0.0.1",
        "unix_socket_directories": "",
        "max_connections": 200,
    }
    command = [program("postgres"), "-D", str(data), "-p", str(port)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    # SIGINT is a fast shutdown, clients or not; SIGQUIT an immediate one, which leaves everything as it is.
    end = signal.SIGQUIT if crashes else signal.SIGINT
    with running(command, port, end, cwd="/", **options):
        url = f"postgresql://tomldiary@127.0.0.1:{port}/postgres"
        _wait_for_postgres(port)
        yield url


def _allowed_in(folder: Path) -> dict[str, Any]:
    """Return the options of the processes of PostgreSQL, which refuses to run as root; let them use a folder."""
    if os.geteuid() != 0:
        return {}
    folder.chmod(0o755)
    return {"user": "nobody", "group": "nogroup"}


def _initialise_postgres(data: Path, password: str = "") -> None:
    """Write the files of a new server, as `postgres` uses it."""
    options = _allowed_in(data.parent)
    if options:
        data.mkdir(exist_ok=True)
        shutil.chown(data, options["user"], options["group"])
    access = ["-A", "trust"]
    if password:
        file = data.with_name("password")
        file.write_text(password)
        access = ["-A", "scram-sha-256", f"--pwfile={file}"]
    subprocess.run(
        [program("initdb"), "-D", data, "-U", "tomldiary", *access, "-E", "UTF8", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
        **options,
    )


def _wait_for_postgres(port: int) -> None:
    """Return once the server accepts sessions, which is later than connections after a crash."""
    deadline = time.monotonic() + _PATIENCE
    command = [program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    while subprocess.run(command, check=False).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError("PostgreSQL accepts no sessions")
        time.sleep(0.05)


@contextlib.contextmanager
def redis(folder: Path, port: int | None = None, *, crashes: bool = False) -> Iterator[str]:
    """Run Redis with an append-only file that is synced at each write; yield its URL. It may crash at the end."""
    port = port or free_port()
    settings = {
        "port": port, "bind": "127.0.0.1", "dir": folder, "appendonly": "yes", "appendfsync": "always", "save": "",
    }  # fmt: skip
    command = [program("redis-server")]
    for name, value in settings.items():
        command += [f"--{name}", str(value)]
    with running(command, port, signal.SIGKILL if crashes else signal.SIGTERM):
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def firestore() -> Iterator[str]:
    """Run the Firestore emulator; yield its host and port."""
    port = free_port()
    command = [
        program("gcloud"),
        "emulators",
        "firestore",
        "start",
        f"--host-port=127.0.0.1:{port}",
    ]
    # Tests use the emulator for a few minutes only, so a quick start saves more than fast code.
    options = os.environ.get("JAVA_TOOL_OPTIONS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
    with running(command, port, env={**os.environ, "JAVA_TOOL_OPTIONS": options}):
        yield f"127.0.0.1:{port}"


def running_as(
    name: str, folder: Path, port: int, *, crashes: bool = False
) -> contextlib.AbstractContextManager[str]:
    """Run PostgreSQL or Redis on a folder and a port, which may be used again afterwards; yield its URL."""
    return {"postgres": postgres, "redis": redis}[name](folder, port, crashes=crashes)


def main() -> int:
    """Start all servers; see the module."""
    # An exit stops the servers first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tomldiary-servers-")))
        new = folder / "new"
        _initialise_postgres(new)
        os.environ[NEW_POSTGRES] = str(new)
        found = {
            POSTGRES: stack.enter_context(postgres(folder)),
            REDIS: stack.enter_context(redis(folder)),
            FIRESTORE: stack.enter_context(firestore()),
        }
        if len(sys.argv) > 1:
            return subprocess.run(sys.argv[1:], check=False, env={**os.environ, **found}).returncode
        for name, value in found.items():
            sys.stdout.write(f"export {name}={value}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except RuntimeError as missing:
        sys.exit(f"{missing}")
