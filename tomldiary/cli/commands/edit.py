"""`edit`, `pull` and `push`: hand edits of documents, also of those in a database."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.memory import known_user, open_memory
from tomldiary.cli.options import MemoryPath
from tomldiary.cli.output import counted, print_text
from tomldiary.errors import DocumentError, InvalidValue
from tomldiary.hand_edits.detect import check_version
from tomldiary.identifiers.user_ids import decode_folder, encode_folder
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document

if TYPE_CHECKING:
    from tomldiary.diary import Diary

__all__ = ["edit", "pull", "push"]

_Folder = Annotated[Path, typer.Argument(help="A folder of this machine.")]


def edit(
    document: Annotated[str, typer.Argument(help="The document, such as preferences.")],
    *,
    user: Annotated[str, typer.Option(help="Whose memory.")],
    path: MemoryPath = "./memories",
) -> None:
    """Open a document in $EDITOR and store what was saved. What others write meanwhile is kept."""
    diary = known_user(path, user)
    backend = diary.engine.backend
    stored = backend.read(user, document)
    if stored is None:
        names = ", ".join(backend.kinds(user))
        raise InvalidValue(f"there is no such document; there are {names}", where=document)
    if not isinstance(backend, SharedBackend):
        _edited(Path(backend.place(user, document)))
        _show_problems(diary, user)
        return
    with tempfile.TemporaryDirectory(prefix="tomldiary-") as folder:
        file = Path(folder) / f"{document.replace('/', '-')}.toml"
        file.write_text(stored.text, "utf-8")
        text = _edited(file)
        while (problem := _problem(text, file)) is not None:
            print_text(one_line(problem))
            if not typer.confirm("Open it again?", default=True):
                raise InvalidValue("nothing was stored", where=document)
            text = _edited(file)
    if text != stored.text:
        backend.save_edit(user, document, text)
        _show_problems(diary, user)


def pull(folder: _Folder, *, path: MemoryPath = "./memories") -> None:
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
    print_text(f"wrote {counted(count, 'document')} to {one_line(folder)}")


def push(folder: _Folder, *, path: MemoryPath = "./memories") -> None:
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
        problem = _problem(text, file)
        if problem is not None:
            raise problem
        if not _is_known(diary, user, kind, text):
            edited.append((user, kind, text))
    for user, kind, text in edited:
        backend.save_edit(user, kind, text)
    print_text(f"stored {counted(len(edited), 'edited document')}")
    for user in sorted({user for user, _, _ in edited}):
        _show_problems(diary, user)


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
    done = subprocess.run([*shlex.split(editor), str(file)], check=False)  # noqa: S603 - the user's own editor
    if done.returncode != 0:
        raise InvalidValue(f"ended with code {done.returncode}; nothing was stored", where=editor)
    return file.read_text("utf-8")


def _problem(text: str, file: Path) -> DocumentError | None:
    try:
        check_version(Document.parse(text, path=str(file)), str(file))
    except DocumentError as error:
        return error
    return None


def _show_problems(diary: Diary, user: str) -> None:
    for problem in diary.user(user).problems():
        print_text(one_line(problem))
