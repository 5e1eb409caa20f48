"""`demo`: what two people say becomes TOML, and every framework reads it. Needs no key and no network."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.commands.doors import open_doors
from tomldiary.cli.output import heading, one_line, print_text, print_toml
from tomldiary.diary import Diary
from tomldiary.errors import InvalidValue
from tomldiary.writer.writer import MemoryWriter, Turn

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["demo"]

_CHAT = (
    ("alice", "mon", "I love dark roast coffee in the morning.", "A good start into the day."),
    ("bob", "mon", "I hate crowded restaurants.", "I will look for quiet ones."),
    ("alice", "mon", "I'm allergic to walnuts, so no pesto.", "Noted, no walnuts."),
    ("bob", "mon", "My sister Mia lives in Graz.", "A fine town."),
    ("alice", "tue", "I love dark roast coffee in the morning!", "I remember."),
)
_QUESTION = "What is she allergic to?"
_ANSWER = "walnuts"


def demo(
    *,
    path: Annotated[
        str | None, typer.Option(help="Keep the memory in this new or empty folder.")
    ] = None,
) -> None:
    """Show the whole point in a few seconds: a chat, the file it becomes, and who can read it."""
    with _folder(path) as folder:
        diary = Diary(folder, agent="rules")
        heading("1. Two people chat; a background writer takes every turn in.")
        _chat(diary)
        heading("\n2. This is the memory: alice/preferences.toml, yours to read, edit and diff.")
        print_toml(diary.user("alice").document("preferences"))
        heading(f"\n3. Asked: {_QUESTION}")
        for hit in diary.user("alice").recall(_QUESTION, limit=2):
            words = ", ".join(map(one_line, hit.reasons))
            print_text(
                f"   {hit.score:.2f}  {one_line(hit.key)}  {one_line(hit.text)}  (matches: {words})"
            )
        heading("\n4. The same file through each framework, with scripted models:")
        readings = open_doors(diary, "alice", _QUESTION, _ANSWER)
        for reading in readings:
            print_text(f"   {reading.framework:<12} {one_line(' '.join(reading.told.split()))}")
        if path is not None:
            print_text(
                f"\nThe memory is kept in {path}; look at it with: tomldiary show --path {path}"
            )
    if any(reading.state == "failed" for reading in readings):
        raise typer.Exit(1)


def _chat(diary: Diary) -> None:
    with MemoryWriter(diary, workers=2) as writer:
        receipts = [writer.submit_nowait(Turn(*turn)) for turn in _CHAT]
    for receipt in receipts:
        receipt.wait(0)
        print_text(f"   {receipt.turn.user_id:>5}: {receipt.turn.user_msg}")


@contextmanager
def _folder(path: str | None) -> Generator[Path]:
    if path is None:
        with tempfile.TemporaryDirectory(prefix="tomldiary-demo-") as folder:
            yield Path(folder)
        return
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidValue("the demo needs a new or an empty folder", where=path)
    yield folder
