"""`add`, `edit`, `pull` and `push`: changes by hand, also of documents in a database."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.completion import complete_category, complete_document, complete_user
from tomldiary.cli.memory import known_user, open_memory, user_to_change
from tomldiary.cli.mistakes import mistakes
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, PreferenceTable, UserName
from tomldiary.cli.output import counted, print_error, print_json, print_text
from tomldiary.cli.tables import load_table
from tomldiary.entries.kinds import BLOCKS, PREFERENCES
from tomldiary.errors import DocumentError, InvalidValue
from tomldiary.hand_edits.detect import check_version
from tomldiary.identifiers.user_ids import decode_folder, encode_folder
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document

if TYPE_CHECKING:
    from tomldiary.diary import Diary
    from tomldiary.storage.protocol import Backend

__all__ = ["add", "edit", "pull", "push"]

_SETTLED = 2.0  # seconds; longer than the engine waits

_Folder = Annotated[Path, typer.Argument(help="A folder of this machine.")]


def add(
    where: Annotated[
        str,
        typer.Argument(
            metavar="CATEGORY[/ID] | blocks/NAME",
            help="Where it is stored.",
            autocompletion=complete_category,
        ),
    ],
    text: Annotated[str, typer.Argument(help="What to remember.")],
    *,
    user: Annotated[
        str | None,
        typer.Option(
            help="Whose memory, also of a new user; without it, that of the only user.",
            envvar="TOMLDIARY_USER",
            autocompletion=complete_user,
        ),
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    context: Annotated[
        list[str] | None, typer.Option(help="A label of the preference; may be repeated.")
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Store a preference, or the text of a block. An entry with the id is changed."""
    alice = user_to_change(path, user, load_table(table) if table else None)
    first, _, name = where.partition("/")
    if first == BLOCKS.name and name:
        alice.blocks.set(name, text, actor="hand", reason="tomldiary add")
        key = where
    else:
        found, _ = alice.upsert_preference(
            first,
            text,
            id=name or None,
            contexts=context or (),
            actor="hand",
            reason="tomldiary add",
        )
        key = f"{first}/{found}"
    if as_json:
        print_json({"user": alice.user_id, "key": key, "seq": alice.last_transaction()})
        return
    print_text(f"stored: {one_line(key)} of {one_line(alice.user_id)}")


def edit(
    document: Annotated[
        str,
        typer.Argument(help="The document, such as preferences.", autocompletion=complete_document),
    ] = PREFERENCES.name,
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """Open a document in $EDITOR and store what was saved. What others write meanwhile is kept.

    Mistakes are explained with their lines before anything is stored, and the editor opens again.
    """
    alice = known_user(path, user)
    backend = alice.diary.engine.backend
    stored = backend.read(alice.user_id, document)
    if stored is None:
        names = ", ".join(backend.kinds(alice.user_id))
        raise InvalidValue(f"there is no such document; there are {names}", where=document)
    with tempfile.TemporaryDirectory(prefix="tomldiary-") as folder:
        file = Path(folder) / f"{document.replace('/', '-')}.toml"
        file.write_text(stored.text, "utf-8", newline="")
        file.chmod(0o600)
        text = _edited(file)
        while text != stored.text and (found := mistakes(alice.diary, document, text, stored.text)):
            for told in found:
                (print_error if as_json else print_text)(told.explained)
            if not _is_wanted_again():
                if any(told.is_fatal for told in found):
                    raise InvalidValue("nothing was stored", where=document)
                break
            text = _edited(file)
    is_changed = text != stored.text
    problems: list[str] = []
    if is_changed:
        _save(backend, alice.user_id, document, text)
        problems = [one_line(problem) for problem in alice.problems()]
    if as_json:
        print_json({"document": document, "is_changed": is_changed, "problems": problems})
        return
    for problem in problems:
        print_text(problem)
    print_text(f"{'stored' if is_changed else 'unchanged'}: {one_line(document)}")


def _is_wanted_again() -> bool:
    try:
        return typer.confirm("Open it again?", default=True, err=True)
    except typer.Abort:  # the input has ended
        return False


def _save(backend: Backend, user: str, document: str, text: str) -> None:
    """Store a hand edit as an editor does; the engine merges it with the writes since it was opened."""
    if isinstance(backend, SharedBackend):
        backend.save_edit(user, document, text)
        return
    file = Path(backend.place(user, document))
    fresh = file.with_name(f".{file.name}.edit")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8", newline="") as out:  # noqa: PTH123 - a descriptor is no path
        out.write(text)
    # The engine waits before it merges a fresh save that lost entries, in case it is half of one. This one is whole.
    whole = time.time() - _SETTLED
    os.utime(fresh, (whole, whole))
    fresh.replace(file)


def pull(folder: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Write all documents of a database to a folder, to read and to edit them there."""
    backend = open_memory(path).engine.backend
    count = 0
    for user in backend.users():
        for kind in backend.kinds(user):
            stored = backend.read(user, kind)
            if stored is not None:
                file = folder / encode_folder(user) / f"{kind}.toml"
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.write_text(stored.text, "utf-8")
                file.chmod(0o600)
                count += 1
    if as_json:
        print_json({"folder": str(folder), "documents": count})
        return
    print_text(f"wrote {counted(count, 'document')} to {one_line(folder)}")


def push(folder: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Store the documents of a folder that were edited since `pull`. What others wrote meanwhile is kept.

    All files are checked before any is stored.
    """
    diary = open_memory(path)
    backend = diary.engine.backend
    if not isinstance(backend, SharedBackend):
        raise InvalidValue(
            "push is for a database; in a folder, edit the files themselves", where=path
        )
    edited: list[tuple[str, str, str]] = []
    for file in sorted(folder.rglob("*.toml")):
        name, *parts = file.relative_to(folder).with_suffix("").parts
        user, kind = decode_folder(name), "/".join(parts)
        if user is None or not parts:
            raise InvalidValue("is not a file that pull wrote", where=str(file))
        text = file.read_text("utf-8")
        check_version(Document.parse(text, path=str(file)), str(file))
        if not _is_known(diary, user, kind, text):
            edited.append((user, kind, text))
    for user, kind, text in edited:
        backend.save_edit(user, kind, text)
    problems = [
        one_line(problem)
        for user in sorted({user for user, _, _ in edited})
        for problem in diary.user(user).problems()
    ]
    if as_json:
        stored = [{"user": user, "document": kind} for user, kind, _ in edited]
        print_json({"stored": stored, "problems": problems})
        return
    print_text(f"stored {counted(len(edited), 'edited document')}")
    for problem in problems:
        print_text(problem)


def _is_known(diary: Diary, user: str, kind: str, text: str) -> bool:
    """Return whether a text is stored, or is the stored text of the version that it names."""
    stored = diary.engine.backend.read(user, kind)
    if stored is None or stored.text == text:
        return stored is not None
    meta = Document.parse(text).table(("_meta",)) or {}
    seq = meta.get("seq")
    if not isinstance(seq, int):
        return False
    try:
        return diary.user(user).as_of(seq).document(kind) == text
    except DocumentError:
        return False


def _edited(file: Path) -> str:
    """Return the text of a file after the editor has closed it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise InvalidValue(f"$VISUAL or $EDITOR is no command ({error})", where=editor) from None
    done = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own editor
    if done.returncode != 0:
        raise InvalidValue(f"ended with code {done.returncode}; nothing was stored", where=editor)
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as saved:
        return saved.read()
