"""A folder of documents that `pull` wrote, and the list of their texts."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from tomldiary.cli.places import replace_file, replace_version, staged
from tomldiary.errors import InvalidValue
from tomldiary.storage.files import FileSystem


class Pulled(NamedTuple):
    """One line about a file: its text, and where and when it was pulled."""

    digest: str
    epoch: int
    """The user's fencing token at that time."""
    database: str


class PulledFolder:
    """A folder that `pull` wrote, with a list of its texts that shows which files were edited since.

    The list is the file `.pulled`. It has one line for each text that was written or pushed, with the user's fencing
    token at that time and the database. A line is added before its file is written, so no file looks edited after an
    interrupted `pull`.
    """

    def __init__(self, folder: Path, database: str) -> None:
        self._folder = folder
        self._database = database
        self._list = folder / ".pulled"
        self._texts: dict[str, list[Pulled]] = {}
        """All texts that a file had, by its name, the newest one last."""
        lines = self._list.read_text("utf-8").splitlines() if self._list.exists() else []
        for line in lines:
            # The last line of an interrupted pull may be incomplete; its file was not written.
            with suppress(ValueError, TypeError):
                name, digest, epoch, database = json.loads(line)
                if _is_document(Path(name)):
                    self._texts.setdefault(name, []).append(Pulled(digest, epoch, database))

    def edited(self) -> list[str]:
        """Return the names of the files that were added or edited, sorted."""
        return [name for name in self._names() if self.is_edited(name)]

    def is_edited(self, name: str) -> bool:
        """Return whether a file has a text that was neither written nor pushed; False for a missing file."""
        file = self._folder / name
        known = {each.digest for each in self._texts.get(name, ())}
        return file.exists() and _digest(file.read_bytes()) not in known

    def removed(self) -> list[str]:
        """Return the names of the files that were pulled and are missing."""
        return sorted(name for name in self._texts if not (self._folder / name).exists())

    def _names(self) -> list[str]:
        """Return the names of all documents; the folder of a user may end in `.toml` too."""
        files = (file for file in self._folder.rglob("*.toml") if not file.is_dir())
        paths = [file.relative_to(self._folder) for file in files]
        return sorted(path.as_posix() for path in paths if _is_document(path))

    def lines(self, name: str) -> list[Pulled]:
        """Return the lines of a file, the newest one last; none for a file that was added.

        After an interrupted `pull`, the file may have the text of an older line.
        """
        return self._texts.get(name, [])

    def note(self, name: str, data: bytes, epoch: int) -> None:
        """Add a line to the list: the file has this text, which is stored."""
        self._texts.setdefault(name, []).append(Pulled(_digest(data), epoch, self._database))
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._list, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(descriptor, "w", encoding="utf-8") as out:  # noqa: PTH123 - `Path.open` accepts no descriptor
            out.write(self._line(name))

    def _line(self, name: str) -> str:
        return f"{json.dumps([name, *self._texts[name][-1]])}\n"

    def write(self, name: str, text: str, epoch: int) -> None:
        """Add a file to the list, then write it atomically.

        Raises:
            InvalidValue: The file has been edited meanwhile, or another program has it open for writing.
        """
        file = self._folder / name
        # A link is replaced, whatever its target holds meanwhile.
        version = None if file.is_symlink() else FileSystem().token(file)
        self._keep_edited(name)
        self.note(name, text.encode(), epoch)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not replace_version(file, text, staged(file), version):
            raise self._edited(name)

    def keep_only(self, names: set[str]) -> None:
        """Remove the files that are not in `names`, and the lines of texts that no file has.

        What an interrupted `pull` left of them is removed, too: staged files and empty folders.
        """
        for name in sorted({*self._names(), *self._texts} - names):
            self._keep_edited(name)
            file = self._folder / name
            for each in (file, staged(file)):
                each.unlink(missing_ok=True)
            for parent in Path(name).parents[:-1]:  # their names may be that of an erased user
                with suppress(OSError):  # not empty
                    (self._folder / parent).rmdir()
        if names:
            replace_file(self._list, "".join(map(self._line, sorted(names))))
        else:
            for each in (self._list, staged(self._list)):
                each.unlink(missing_ok=True)

    def _keep_edited(self, name: str) -> None:
        if self.is_edited(name):
            raise self._edited(name)

    def _edited(self, name: str) -> InvalidValue:
        return InvalidValue(
            "was edited or open for writing during this call and was not overwritten. Close it, push it, then pull"
            " again",
            where=str(self._folder / name),
        )


def _is_document(path: Path) -> bool:
    """Return whether a path in the folder may be that of a document.

    Names of documents and users begin with no dot, unlike those of editors' lock files and of `.git`.
    """
    is_hidden = any(part.startswith(".") for part in path.parts)
    return path.suffix == ".toml" and not path.is_absolute() and not is_hidden


def _digest(data: bytes) -> str:
    return sha256(data).hexdigest()
