"""Everyday commands, each in an environment of its own: `nox -l` lists them."""

from __future__ import annotations

import nox

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """Check format, rules, types, layers and prose."""
    session.install("-e", ".[all,test,lint]")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("pyright")
    session.run("mypy")
    session.run("lint-imports")
    session.run("python", ".ci/prose.py")


@nox.session(python=["3.11", "3.12", "3.13", "3.14", "3.15"])
def tests(session: nox.Session) -> None:
    """Run the suite, or the tests that are named behind `--`."""
    session.install("-e", ".[all,test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def servers(session: nox.Session) -> None:
    """Run the tests of shared backends on PostgreSQL, Redis and the Firestore emulator."""
    session.install("-e", ".[all,test]")
    tests = session.posargs or ["tests/storage/shared", "tests/writer/shared"]
    session.run("python", "tests/support/servers.py", "python", "-m", "pytest", *tests)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation site; a dead link fails."""
    session.install("-e", ".[all,docs]")
    session.run("mkdocs", "build", "--strict")
