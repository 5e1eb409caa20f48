"""`add`, `edit`, `pull` and `push`: hand edits, also of documents in a database."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from typer import Abort, Argument, Option, confirm

from tomldiary.cli.memory import known_user, open_memory, user_to_change
from tomldiary.cli.mistakes import Mistake, mistakes, readable
from tomldiary.cli.options import (
    DEFAULT_PATH,
    AsJson,
    MemoryPath,
    PreferenceTable,
    UserName,
    complete_category,
    complete_document,
    user_option,
)
from tomldiary.cli.output import print_error, print_json, print_note, print_text
from tomldiary.cli.places import replace_version, writable
from tomldiary.cli.pulled_folder import PulledFolder
from tomldiary.entries.kinds import BLOCKS, KINDS, PREFERENCES, entry_kind
from tomldiary.errors import (
    DiaryError,
    DocumentError,
    Forgotten,
    HandEditConflict,
    InvalidValue,
    RevisionConflict,
    UnsafeDocument,
)
from tomldiary.hand_edits.detect import is_blank
from tomldiary.hand_edits.three_way_merge import base_of_save, merge
from tomldiary.history.record import next_sequence
from tomldiary.history.timeline import Timeline
from tomldiary.identifiers.user_ids import decode_folder, encode_folder
from tomldiary.runtime.views import counted
from tomldiary.storage.files import FileSystem
from tomldiary.storage.local.publish import checked_kind, staged_path
from tomldiary.storage.locks import repeated, wait_for_save
from tomldiary.storage.shared.backend import SharedBackend
from tomldiary.storage.shared.database import without_secrets
from tomldiary.text.visible import one_line
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.parse import decode_utf8

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.diary import Diary
    from tomldiary.engine.engine import Engine
    from tomldiary.storage.files import FileToken

_AT_ONCE = 1.0  # seconds; an editor that ended so soon may not have waited for its window
_FORGOTTEN = (
    "data of this user was forgotten since this text was read, and the text may contain it. Nothing was stored; edit the"
    " current text."
)


def _folder(text: str) -> Path:
    """Return the path of a local folder.

    Raises:
        InvalidValue: It is an address, whose password a folder of this name would show.
    """
    if "://" in text:
        raise InvalidValue(
            "is an address. Name a folder, and the address with --path", where=without_secrets(text)
        )
    return Path(text)


_Folder = Annotated[str, Argument(metavar="DIR", help="A local folder.")]


def add(
    where: Annotated[
        str,
        Argument(
            metavar="CATEGORY[/ID] | blocks/NAME",
            help="The category or block to store the text in.",
            autocompletion=complete_category,
        ),
    ],
    text: Annotated[str, Argument(help="The text to store.")],
    *,
    user: Annotated[
        str | None, user_option("The user, who may be new; by default the only user.")
    ] = None,
    path: MemoryPath = DEFAULT_PATH,
    context: Annotated[
        list[str] | None, Option(help="A label of the preference; may be repeated.")
    ] = None,
    table: PreferenceTable = None,
    as_json: AsJson = False,
) -> None:
    """Store a preference, or the text of a block. An existing entry with the ID is changed."""
    first, slash, name = where.partition("/")
    if slash and not name:
        raise InvalidValue(
            "the text after the slash is empty; give an id, or leave out the slash", where=where
        )
    is_block = first == BLOCKS.name and name
    if is_block and context:
        raise InvalidValue("a block has no labels; leave this out", where="--context")
    alice = user_to_change(path, user, table)
    if first == BLOCKS.name and not name and first not in alice.diary.allowed:
        raise InvalidValue("a block needs a name, as in blocks/NAME", where=where)
    if is_block:
        alice.blocks.set(name, text, actor="hand", reason="tomldiary add")
        key = where
    else:
        if "/" in name and name not in alice.preferences().get(first, ()):
            raise InvalidValue(
                "expected CATEGORY/ID with one slash, such as likes/pref001", where=where
            )
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
        str, Argument(help="The document, such as preferences.", autocompletion=complete_document)
    ] = PREFERENCES.name,
    *,
    user: UserName = None,
    path: MemoryPath = DEFAULT_PATH,
    as_json: AsJson = False,
) -> None:
    """Open a document in $EDITOR and store the edited text. Concurrent writes are kept.

    Mistakes are shown with their lines before the text is stored, and the editor can open it again.
    """
    checked_kind(document)  # a database looks any name up
    alice = known_user(path, user)
    backend = alice.diary.engine.backend
    epoch = backend.epoch(alice.user_id)
    engine = alice.diary.engine
    if document in backend.kinds(alice.user_id):
        with backend.lock(alice.user_id, engine.lock_timeout):
            log = partial(engine.logged_versions, alice.user_id, [document])
            repeated(log, engine.lock_timeout)
    displaced: list[str] = []
    before = _numbered(engine, alice.user_id, document)
    if before is None:
        names = ", ".join(backend.kinds(alice.user_id)) or "all deleted"
        raise InvalidValue(f"there is no such document; the documents are {names}", where=document)
    with ExitStack() as cleaned_up:
        folder = tempfile.mkdtemp(prefix="tomldiary-")
        cleaned_up.callback(shutil.rmtree, folder, ignore_errors=True)
        file = Path(folder) / f"{document.replace('/', '-')}.toml"
        file.write_bytes(_encoded(before))
        file.chmod(0o600)
        tell = print_error if as_json else print_text
        begun = time.monotonic()
        try:
            text, kept = _corrected(alice.diary, document, before, file, tell)
            is_changed = text != before
            if not is_changed and time.monotonic() - begun < _AT_ONCE:
                print_note(
                    "The editor ended at once. If its window is still open, what you save there is lost: set its option"
                    " to wait, as in EDITOR='code --wait'."
                )
            if not all(mistake.problem for mistake in kept):
                raise InvalidValue("the text has mistakes; nothing was stored", where=document)
            if is_changed:
                displaced = _displaced(engine, alice.user_id, document, text, before)
                save_text(alice.diary, alice.user_id, document, text, epoch, before)
        except Forgotten:
            raise
        except (DiaryError, OSError, KeyboardInterrupt):
            if file.is_file() and file.read_bytes().strip() not in (b"", _encoded(before).strip()):
                cleaned_up.pop_all()
                print_error(f"The edited text is kept in {file}.")
            raise
    problems = [one_line(problem) for problem in alice.problems()] if is_changed else []
    problems += displaced
    if as_json:
        print_json({"document": document, "is_changed": is_changed, "problems": problems})
        return
    for problem in problems:
        if not any(problem.endswith(one_line(mistake.problem)) for mistake in kept):
            print_text(problem)
    print_text(f"{'stored' if is_changed else 'unchanged'}: {one_line(document)}")


def _numbered(engine: Engine, user: str, document: str) -> str | None:
    """Return the text of a document with the number of its last change; None if there is none.

    A hand edit is logged without changing the number in the file. With the number before it, an edit that restores the
    earlier text would be taken for a file that was not updated.

    Raises:
        UnsafeDocument: The document is too large.
    """
    stored = engine.backend.read(user, document)
    if stored is not None and isinstance(stored.problem, UnsafeDocument):
        raise stored.problem  # its text was not read
    if stored is None:
        return None
    if stored.problem is not None:  # its bytes are not UTF-8, and the text has others instead
        return _decoded(Path(engine.backend.place(user, document)))
    last = engine.index(user).of(document)
    with suppress(DocumentError):
        edit = Edit(Document.parse(stored.text))
        if "seq" in edit.meta and last is not None and last.result == edit.done().fingerprint:
            edit.set_meta(seq=last.seq)
            return edit.done().text
    return stored.text


def _displaced(
    engine: Engine, user: str, document: str, text: str, before: str | None = None
) -> list[str]:
    """Return a sentence for each table in which an edited text displaces a change that was stored since it was opened.

    Without `before`, the text that was opened is the one that the engine finds by the number in the edited text.
    """
    tables: list[str] = []
    with suppress(DocumentError):  # a text with mistakes is merged once it is correct
        now, edited = engine.document(user, document), Document.parse(text)
        last = engine.index(user).of(document)
        if before is not None:
            base = readable(before, document)
        elif last is not None:
            base = base_of_save(Timeline(engine.backend, user), document, edited, now, last)
        else:
            base = now
        tables = merge(document, base, now, edited).conflicts
    return [
        f"{one_line(table)}: another writer also changed it meanwhile. Your version is stored, and the other one is in"
        " history."
        for table in tables
    ]


def _corrected(
    diary: Diary, document: str, before: str, file: Path, tell: Callable[[str], None]
) -> tuple[str, list[Mistake]]:
    """Open a file in the editor until its mistakes are corrected or kept; return its text and those that are kept."""
    while True:
        text = _edited(file)
        found = [] if text == before else mistakes(diary, document, text, before)
        for mistake in found:
            tell(mistake.explained)
        if not found or not _is_wanted_again():
            return text, found


def _is_wanted_again() -> bool:
    try:
        return confirm("Open it again?", default=True, err=True)
    except Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise KeyboardInterrupt from None  # nothing is stored
        return False  # the input has ended


def save_text(
    diary: Diary, user: str, document: str, text: str, epoch: int | None, before: str | None = None
) -> None:
    """Store a hand edit as an editor would; the engine merges it with the writes since the text was read.

    For a document in a folder, `before` is the text that was read.

    Raises:
        Forgotten: Data of the user was erased since.
        HandEditConflict: Another program saved a text with a mistake since, or does not end its save.
    """
    engine, backend = diary.engine, diary.engine.backend
    diary.entry_rules.reports_edits = False  # the callers print all problems

    def save() -> None:
        engine.document(user, document)  # raises an error if it cannot be read
        # Otherwise this edit would overwrite an earlier one that is not in history yet.
        version = engine.logged_versions(user, [document]).get(document)
        if isinstance(backend, SharedBackend):
            backend.save_edit(user, document, text, version=version, fencing_token=epoch)
            return
        if backend.epoch(user) != epoch:
            raise Forgotten(f"{document}: {_FORGOTTEN}")
        file = Path(backend.place(user, document))
        # A text with a mistake has no known version, and is in no history.
        version = FileSystem().token(file) if version is None else version
        if before is not None:
            _check_save(file, before)
        folder = file.parents[document.count("/")]
        # Named like a staged document of a transaction, so that recovery removes it after a kill.
        seq = next_sequence(backend.last_record(user))
        fresh = Path(staged_path(folder, document, text.encode(), seq))
        if not replace_version(file, text, fresh, cast("FileToken | None", version)):
            wait_for_save(str(file), deadline, engine.save_timeout)
            raise RevisionConflict.of(user)

    # An erasure takes the same lock, so it runs before or after the save. In a database, the holder of a lock that is
    # refused for long makes the other writers of the user wait.
    with backend.lock(user, engine.lock_timeout):
        deadline = time.monotonic() + engine.save_timeout
        repeated(save, engine.lock_timeout)
        repeated(lambda: engine.logged_versions(user, [document]), engine.lock_timeout)


def _check_save(file: Path, before: str) -> None:
    """Raise HandEditConflict if another program saved a text with a mistake since `before` was read."""
    with suppress(FileNotFoundError):
        now = _decoded(file)
        if now == before or is_blank(now):
            return
        try:
            readable(now, str(file))
        except DocumentError as error:
            raise HandEditConflict(
                "another program saved a text with a mistake meanwhile, which this edit would overwrite.",
                where=f"{file}:{error.line or 1}",
                hint="Correct it, then edit again.",
            ) from None


def _database(path: str) -> tuple[Diary, SharedBackend]:
    diary = open_memory(path)
    backend = diary.engine.backend
    if not isinstance(backend, SharedBackend):
        raise InvalidValue(
            "pull and push require a database; in a folder, edit the files directly", where=path
        )
    return diary, backend


def pull(directory: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Write all documents of a database to a folder for editing.

    Files of removed documents are deleted. A folder with edits that were not pushed is refused.
    """
    folder = _folder(directory)
    writable(directory)
    diary, backend = _database(path)
    if folder.is_file():
        raise InvalidValue(
            "pull writes a folder, and this is a file. Name a folder", where=str(folder)
        )
    pulled = PulledFolder(folder, str(backend.database))
    edited = pulled.edited()
    if edited:
        raise InvalidValue(
            f"{counted(len(edited), 'edited file')} would be overwritten, such as {edited[0]}."
            " Push or remove them first, or pull to another folder",
            where=str(folder),
        )
    names: set[str] = set()

    def texts_of(user: str) -> tuple[int, dict[str, str | None]]:
        # Read before the texts, so that edits of these texts are refused after an erasure.
        epoch = backend.epoch(user)
        return epoch, {k: _numbered(diary.engine, user, k) for k in backend.kinds(user)}

    users = backend.users()
    for user, (epoch, texts) in zip(users, diary.engine.of_each(users, texts_of), strict=True):
        for kind, text in texts.items():
            if text is not None:
                name = f"{encode_folder(user)}/{kind}.toml"
                names.add(name)
                pulled.write(name, text, epoch)
    pulled.keep_only(names)
    if as_json:
        print_json({"folder": str(folder), "documents": len(names)})
        return
    print_text(f"wrote {counted(len(names), 'document')} to {one_line(folder)}")


def push(directory: _Folder, *, path: MemoryPath = DEFAULT_PATH, as_json: AsJson = False) -> None:
    """Store the documents that were edited since `pull`.

    Concurrent writes are kept. All files are checked before the first one is stored.
    """
    folder = _folder(directory)
    diary, backend = _database(path)
    if not folder.is_dir():
        raise InvalidValue("there is no such folder; run pull first", where=str(folder))
    pulled = PulledFolder(folder, str(backend.database))
    edited: list[tuple[str, str, str, str, int]] = []
    for name in pulled.edited():
        file = folder / name
        directory, _, kind = name.removesuffix(".toml").partition("/")
        # The folder of a user whose id is too long for a name has a hash as its name.
        user = decode_folder(directory) or next(
            (each for each in backend.users() if encode_folder(each) == directory), None
        )
        known = pulled.lines(name)
        for other in {each.database for each in known} - {str(backend.database)}:
            raise InvalidValue(
                f"was pulled from {other}. Push it there, or pull {backend.database} to another folder and edit that",
                where=str(file),
            )
        if not known and (user is None or entry_kind(kind).name not in KINDS):
            raise InvalidValue(
                "is not a document of a user; move the file out of the folder", where=str(file)
            )
        text = decode_utf8(file.read_bytes(), path=str(file))
        readable(text, str(file))
        epoch = None if user is None else backend.epoch(user)
        if user is None or epoch is None or any(each.epoch != epoch for each in known):
            raise Forgotten(f"{file}: {_FORGOTTEN} Remove the file, then pull.")
        edited.append((name, user, kind, text, epoch))
    displaced: list[str] = []
    try:
        for name, user, kind, text, epoch in edited:
            found = _displaced(diary.engine, user, kind, text)
            save_text(diary, user, kind, text, epoch)
            displaced += [f"{one_line(folder / name)}: {each}" for each in found]
            pulled.note(name, text.encode(), epoch)
            # The next edit of this file begins with what is stored now, as in a folder.
            now = _numbered(diary.engine, user, kind)
            if now is not None and not pulled.is_edited(name):
                pulled.write(name, now, epoch)
    except (DiaryError, OSError):
        for each in displaced:  # the next push does not store these files again
            print_error(each)
        raise
    problems = [
        one_line(problem)
        for user in sorted({each[1] for each in edited})
        for problem in diary.user(user).problems()
    ]
    problems += displaced
    if as_json:
        stored = [{"user": user, "document": kind} for _, user, kind, *_ in edited]
        print_json({"stored": stored, "problems": problems})
        return
    print_text(f"stored {counted(len(edited), 'edited document')}")
    for problem in problems:
        print_text(problem)
    for name in pulled.removed():
        print_error(
            f"{one_line(folder / name)}: the file was removed, but push removes no document. Pull again and"
            " remove its tables, or use `tomldiary forget`."
        )


def _decoded(file: Path) -> str:
    """Return the text of a file, with surrogates for bytes that are not UTF-8."""
    return file.read_bytes().decode("utf-8", "surrogateescape")


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _edited(file: Path) -> str:
    """Open a file in the editor, wait, and return its text."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        command = shlex.split(editor)
    except ValueError as error:
        raise InvalidValue(
            f"$VISUAL or $EDITOR is not a valid command ({error})", where=editor
        ) from None
    # Ctrl+C is the editor's, which may use it to stop a command; a handler, unlike SIG_IGN, is not inherited.
    handler = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        done = subprocess.run([*command, str(file)], check=False)  # noqa: S603 - the user's own editor
    except OSError as error:
        raise InvalidValue(
            f"the editor cannot be started ({error.strerror}); nothing was stored. Set $EDITOR to an installed"
            " editor",
            where=editor,
        ) from None
    finally:
        signal.signal(signal.SIGINT, handler)
    if done.returncode != 0:
        raise InvalidValue(
            f"the editor ended with code {done.returncode}; nothing was stored", where=editor
        )
    try:
        return _decoded(file)
    except FileNotFoundError:
        raise InvalidValue(
            "the editor removed the text; nothing was stored", where=editor
        ) from None
