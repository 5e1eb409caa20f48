"""`add`, `edit`, `pull` and `push`: changes by hand, also of documents in a database."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tomldiary.cli.completion import complete_category, complete_document, complete_user
from tomldiary.cli.memory import known_user, open_memory, user_to_change
from tomldiary.cli.mistakes import mistakes, readable
from tomldiary.cli.options import DEFAULT_PATH, AsJson, MemoryPath, PreferenceTable, UserName
from tomldiary.cli.output import print_error, print_json, print_text
from tomldiary.cli.places import writable, write_new
from tomldiary.cli.tables import load_table
from tomldiary.entries.kinds import BLOCKS, KINDS, PREFERENCES, entry_kind
from tomldiary.errors import DiaryError, Forgotten, InvalidValue
from tomldiary.history.record import next_sequence
from tomldiary.identifiers.user_ids import decode_folder, encode_folder
from tomldiary.runtime.views import counted
from tomldiary.storage.local.layout import staged_path
from tomldiary.storage.locks import repeated
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.text.visible import one_line
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from tomldiary.diary import Diary

__all__ = ["add", "edit", "pull", "push"]

_FORGOTTEN = (
    "something of this user was forgotten since this text was read, and it may hold that. Nothing was stored; edit the"
    " present text."
)
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
    epoch = backend.epoch(alice.user_id)
    stored = backend.read(alice.user_id, document)
    if stored is None:
        names = ", ".join(backend.kinds(alice.user_id))
        raise InvalidValue(f"there is no such document; there are {names}", where=document)
    with ExitStack() as cleaned_up:
        folder = tempfile.mkdtemp(prefix="tomldiary-")
        cleaned_up.callback(shutil.rmtree, folder, ignore_errors=True)
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
        try:
            if is_changed:
                save_text(alice.diary, alice.user_id, document, text, epoch)
        except Forgotten:
            raise
        except (DiaryError, OSError):
            cleaned_up.pop_all()
            print_error(f"The edited text is kept in {file}.")
            raise
    problems = [one_line(problem) for problem in alice.problems()] if is_changed else []
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


def save_text(diary: Diary, user: str, document: str, text: str, epoch: int | None) -> None:
    """Store a hand edit as an editor does; the engine merges it with the writes since it was opened."""
    engine, backend = diary.engine, diary.engine.backend

    def save() -> None:
        # A hand edit that is not in history yet would be lost under the next one.
        version = engine.log_hand_edit(user, document)
        if isinstance(backend, SharedBackend):
            backend.save_edit(user, document, text, version=version, fencing_token=epoch)
            return
        with backend.lock(user, engine.lock_timeout):  # an erasure comes before or after
            if backend.epoch(user) != epoch:
                raise Forgotten(f"{document}: {_FORGOTTEN}")
            file = Path(backend.place(user, document))
            folder = file.parents[document.count("/")]
            # Like a document of a transaction that is not in history: after a kill, recovery removes it.
            seq = next_sequence(backend.last_record(user))
            replace_file(file, text, Path(staged_path(folder, document, text.encode(), seq)))

    repeated(save, engine.lock_timeout)
    repeated(lambda: engine.log_hand_edit(user, document), engine.lock_timeout)


def replace_file(file: Path, text: str, staged: Path | None = None) -> None:
    """Replace a file by way of a staged one, with a time at which the engine considers the save complete."""
    fresh = staged or file.with_name(f".{file.name}.new")
    fresh.unlink(missing_ok=True)
    write_new(fresh, text)
    # The engine waits before it merges a recent save with fewer entries, because it may be incomplete.
    whole = time.time() - _SETTLED
    os.utime(fresh, (whole, whole))
    fresh.replace(file)


def pull(folder: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Write all documents of a database to a folder, to edit them.

    Files of documents that exist no more are removed. A folder with edits that were not pushed is left as it is.
    """
    backend = open_memory(path).engine.backend
    writable(str(folder))
    pulled = _PulledFolder(folder)
    edited = pulled.edited()
    if edited:
        raise InvalidValue(
            f"{counted(len(edited), 'edited file')} would be overwritten. Push them first, or pull to another"
            " folder",
            where=str(folder),
        )
    names: set[str] = set()
    for user in backend.users():
        epoch = backend.epoch(user)  # first: an erasure behind it makes edits of the texts refused
        for kind in backend.kinds(user):
            stored = backend.read(user, kind)
            if stored is not None:
                names.add(f"{encode_folder(user)}/{kind}.toml")
                pulled.write(f"{encode_folder(user)}/{kind}.toml", stored.text, epoch)
    pulled.keep_only(names)
    if as_json:
        print_json({"folder": str(folder), "documents": len(names)})
        return
    print_text(f"wrote {counted(len(names), 'document')} to {one_line(folder)}")


def push(folder: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Store the documents that were edited since `pull`.

    What others wrote meanwhile is kept. All files are checked before any is stored.
    """
    diary = open_memory(path)
    backend = diary.engine.backend
    if not isinstance(backend, SharedBackend):
        raise InvalidValue(
            "push is for a database; in a folder, edit the files themselves", where=path
        )
    if not folder.is_dir():
        raise InvalidValue("there is no such folder; pull writes one", where=str(folder))
    pulled = _PulledFolder(folder)
    edited: list[tuple[str, str, str, str]] = []
    for file, data in pulled.edited().items():
        name = file.relative_to(folder).as_posix()
        directory, _, kind = name.removesuffix(".toml").partition("/")
        user = decode_folder(directory)
        is_new = pulled.epoch(name) is None
        if user is None or (is_new and entry_kind(kind).name not in KINDS):
            raise InvalidValue("is not a file that pull wrote", where=str(file))
        text = decode_utf8(data, path=str(file))
        readable(text, str(file))
        if pulled.epoch(name) not in (None, backend.epoch(user)):
            raise Forgotten(f"{file}: {_FORGOTTEN}")
        edited.append((name, user, kind, text))
    for name, user, kind, text in edited:
        save_text(diary, user, kind, text, pulled.epoch(name))
        pulled.note(name, text.encode(), backend.epoch(user))
    problems = [
        one_line(problem)
        for user in sorted({user for _, user, _, _ in edited})
        for problem in diary.user(user).problems()
    ]
    if as_json:
        stored = [{"user": user, "document": kind} for _, user, kind, _ in edited]
        print_json({"stored": stored, "problems": problems})
        return
    print_text(f"stored {counted(len(edited), 'edited document')}")
    for problem in problems:
        print_text(problem)


class _PulledFolder:
    """A folder that `pull` wrote. The file `.pulled` tells which files were edited since.

    It has one line for each text that was written or pushed, with the user's fencing token of that time. A line is
    added before its file is written, so an interrupted `pull` leaves no file that looks edited.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._list = folder / ".pulled"
        self._texts: dict[str, set[str]] = {}
        self._epochs: dict[str, int] = {}
        self._lines: dict[str, str] = {}
        """The last line of each file, as far as it was written now."""
        lines = self._list.read_text("utf-8").splitlines() if self._list.exists() else []
        for line in lines:
            # The last line of an interrupted pull may be torn; its file was not written.
            with suppress(ValueError):
                name, digest, epoch = json.loads(line)
                self._texts.setdefault(name, set()).add(digest)
                self._epochs[name] = epoch

    def edited(self) -> dict[Path, bytes]:
        """Return the files that were added or edited, with their contents."""
        found: dict[Path, bytes] = {}
        for file in sorted(self._folder.rglob("*.toml")):
            data = file.read_bytes()
            if _digest(data) not in self._texts.get(file.relative_to(self._folder).as_posix(), ()):
                found[file] = data
        return found

    def epoch(self, name: str) -> int | None:
        """Return the fencing token of a file's user as of the last `pull`; None for a file that was added."""
        return self._epochs.get(name)

    def note(self, name: str, data: bytes, epoch: int) -> None:
        """Note that a file has a text that is stored."""
        self._texts.setdefault(name, set()).add(_digest(data))
        self._epochs[name] = epoch
        self._lines[name] = f"{json.dumps([name, _digest(data), epoch])}\n"
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._list, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - a descriptor is no path
            out.write(self._lines[name])

    def write(self, name: str, text: str, epoch: int) -> None:
        """Write a file, whole or not at all."""
        self.note(name, text.encode(), epoch)
        file = self._folder / name
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(file, text)

    def keep_only(self, names: set[str]) -> None:
        """Remove the files that are not in `names`, and what is noted of texts that no file has."""
        for file in self._folder.rglob("*.toml"):
            if file.relative_to(self._folder).as_posix() not in names:
                file.unlink()
        if names:
            replace_file(self._list, "".join(map(self._lines.__getitem__, sorted(names))))
        else:
            self._list.unlink(missing_ok=True)


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()


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
