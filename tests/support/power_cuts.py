"""A disk that remembers what it was told, and can say what a power cut would have left of it.

`Recorder` watches the file operations that a storage really makes. `crash_states` replays them and yields
what may be found after the power went at any of them, by the rules that a file system keeps:

- what was written to a file is on the disk once that file was synced; until then all, some or none of it is, and where
  it was written over, each sector as it was at some time since;
- a name (created, renamed, exchanged, removed) is on the disk once its folder was synced; until then each change
  of names is there as a whole or not at all, in any order;
- what was not synced may be there all the same.
"""

from __future__ import annotations

import copy
import functools
import itertools
import os
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tomldiary.storage.files import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

TOP = 0  # the folder that was there before, whose names are on the disk


@dataclass(frozen=True)
class Write:
    """Bytes written to a file, or (with no data) its new size."""

    node: int
    at: int
    data: bytes | None


@dataclass(frozen=True)
class Names:
    """Names that change together: `(folder, name, what it names now)`."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Sync:
    """A file or a folder that was synced."""

    node: int
    call: str
    path: str


@dataclass(frozen=True)
class Mark:
    """What the workload says: how far it is, and what it is doing."""

    user: str
    done: int
    is_watched: bool = True


class SameDisk(FileSystem):
    """Takes a copy of a folder for the folder itself, as states after a crash are examined in copies."""

    def identity(self, folder) -> str:
        return "the same disk"


class Recorder(SameDisk):
    """Records the operations on everything below a folder; what is there already is on the disk."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.operations: list[Write | Names | Sync | Mark] = []
        self.folders: dict[int, dict[str, int]] = {TOP: {}}
        self.sizes: dict[int, int] = {}
        self.contents: dict[int, bytes] = {}
        self._nodes = itertools.count(1)
        self._opened: dict[int, tuple[int, bool, int]] = {}  # descriptor: node, appends, position
        self._paths: dict[int, str] = {}
        if top.is_dir():
            self._find(top, TOP)
        self.durable = {node: dict(names) for node, names in self.folders.items()}

    def _find(self, folder: Path, node: int) -> None:
        for path in folder.iterdir():
            child = self.folders[node][path.name] = next(self._nodes)
            if path.is_dir():
                self.folders[child] = {}
                self._find(path, child)
            else:
                self.contents[child] = path.read_bytes()
                self.sizes[child] = len(self.contents[child])

    def mark(self, user: str, done: int, *, is_watched: bool = True) -> None:
        self.operations.append(Mark(user, done, is_watched))

    def _place(self, path) -> tuple[int, str] | None:
        """Return the folder and the name that a path means, or None if it is outside of the recorded folder."""
        path = os.fsdecode(path)
        if "/locks/" in path or not Path(path).is_relative_to(self.top):
            return None  # nothing is kept in lock files
        node, name = TOP, ""
        for part in Path(path).relative_to(self.top).parts:
            node, name = self._named((node, name)), part
        return node, name

    def _named(self, place: tuple[int, str]) -> int | None:
        folder, name = place
        return folder if not name else self.folders[folder].get(name)

    def _name(self, *changes: tuple[tuple[int, str], int | None]) -> None:
        names = tuple((folder, name, node) for (folder, name), node in changes)
        self.operations.append(Names(names))
        _apply(self.folders, names)

    def _written(self, node: int, at: int, data: bytes | None) -> None:
        self.sizes[node] = at if data is None else max(self.sizes[node], at + len(data))
        self.operations.append(Write(node, at, data))

    # The calls, each as the system's

    def open(self, path, flags, mode=0o777):
        place = self._place(path)
        descriptor = os.open(path, flags, mode)
        self._paths[descriptor] = os.fspath(path)
        if place is not None:
            node = self._named(place)
            if node is None:
                node = next(self._nodes)
                self.sizes[node] = 0
                self._name((place, node))
            elif flags & os.O_TRUNC:
                self._written(node, 0, None)
            self._opened[descriptor] = (node, bool(flags & os.O_APPEND), 0)
        return descriptor

    def close(self, descriptor):
        self._opened.pop(descriptor, None)
        self._paths.pop(descriptor, None)
        os.close(descriptor)

    def dup(self, descriptor):
        copy = os.dup(descriptor)
        self._paths[copy] = self._paths[descriptor]
        if descriptor in self._opened:
            self._opened[copy] = self._opened[descriptor]
        return copy

    def write(self, descriptor, data):
        length = os.write(descriptor, data)
        if descriptor in self._opened:
            node, appends, at = self._opened[descriptor]
            at = self.sizes[node] if appends else at
            self._written(node, at, bytes(data)[:length])
            self._opened[descriptor] = (node, appends, at + length)
        return length

    def lseek(self, descriptor, offset, how):
        at = os.lseek(descriptor, offset, how)
        if descriptor in self._opened:
            self._opened[descriptor] = (*self._opened[descriptor][:2], at)
        return at

    def sync_file(self, descriptor):
        os.fsync(descriptor)
        self._synced("sync_file", descriptor)

    def sync_data(self, descriptor):
        os.fsync(descriptor)
        self._synced("sync_data", descriptor)

    def _synced(self, call, descriptor):
        if descriptor in self._opened:
            node = self._opened[descriptor][0]
            call = "sync_folder" if node in self.folders else call
            self.operations.append(Sync(node, call, self._paths[descriptor]))

    def replace(self, source, target):
        FileSystem.replace(source, target)
        old, new = self._place(source), self._place(target)
        if old is not None:
            self._name((old, None), (new, self._named(old)))

    def exchange(self, one, two):
        done = FileSystem.exchange(one, two)
        if done:
            first, second = self._place(one), self._place(two)
            self._name((first, self._named(second)), (second, self._named(first)))
        return done

    def link(self, source, target):
        os.link(source, target)
        self._name((self._place(target), self._named(self._place(source))))

    def mkdir(self, path, mode=0o777):
        FileSystem.mkdir(path, mode)
        place = self._place(path)
        if place is not None:
            node = next(self._nodes)
            self.folders[node] = {}
            self._name((place, node))

    def unlink(self, path):
        FileSystem.unlink(path)
        self._removed(path)

    def rmdir(self, path):
        FileSystem.rmdir(path)
        self._removed(path)

    def remove_tree(self, path):
        """Make the operations that `shutil.rmtree` makes."""
        for entry in list(os.scandir(path)):
            if entry.is_dir(follow_symlinks=False):
                self.remove_tree(entry.path)
            else:
                self.unlink(entry.path)
        self.rmdir(path)

    def _removed(self, path):
        place = self._place(path)
        if place is not None:
            self._name((place, None))

    def ftruncate(self, descriptor, size):
        os.ftruncate(descriptor, size)
        if descriptor in self._opened:
            self._written(self._opened[descriptor][0], size, None)

    def truncate(self, path, size):
        os.truncate(path, size)
        place = self._place(path)
        if place is not None:
            self._written(self._named(place), size, None)


def without_syncs(recorder: Recorder, is_left_out) -> Recorder:
    """Return the record of the same operations without some of the syncs that the workload made.

    Args:
        recorder: What was done.
        is_left_out: Called with the record so far, the name of a sync and its path.
    """
    left = copy.copy(recorder)
    left.operations = []
    left.last_synced = ""  # the last file
    is_watched = True
    for operation in recorder.operations:
        if isinstance(operation, Mark):
            is_watched = operation.is_watched
        is_sync = isinstance(operation, Sync)
        if not (is_sync and is_watched and is_left_out(left, operation.call, operation.path)):
            left.operations.append(operation)
        if is_sync and operation.node in recorder.sizes:
            left.last_synced = operation.path
    return left


@dataclass
class _File:
    """What of a file is on the disk, and what was written since."""

    durable: bytes = b""
    pending: list[Write] = field(default_factory=list)

    def content(self, how: str) -> bytes:
        if how == "lost" or not self.pending:
            return self.durable
        last = self.pending[-1]
        if how == "kept" or last.data is None:
            return _written(self.durable, self.pending)
        before, size = _written(self.durable, self.pending[:-1]), len(last.data)
        old = before[last.at : last.at + size].ljust(size, b"\0")
        if how == "zeros":  # the size is on the disk, the blocks are not
            return _written(before, [Write(last.node, last.at, old)])
        if how == "holes":  # the blocks went to the disk out of order
            holed = old[: size // 2] + last.data[size // 2 :]
            return _written(before, [Write(last.node, last.at, holed)])
        cut = int(how)
        cut = max(0, size + cut) if cut < 0 else min(cut, size)
        return _written(before, [Write(last.node, last.at, last.data[:cut])])


def _written(data: bytes, writes: list[Write]) -> bytes:
    for write in writes:
        if write.data is None:
            data = data[: write.at].ljust(write.at, b"\0")
        elif write.data:
            data = data.ljust(write.at, b"\0")
            data = data[: write.at] + write.data + data[write.at + len(write.data) :]
    return data


Tree = dict[str, bytes | None]
"""Content by path; None is a folder."""


@dataclass(frozen=True)
class CrashState:
    """What is found after a crash, and what had been acknowledged before it."""

    step: int
    durable: dict[int, dict[str, int]]
    """The names that are on the disk."""
    kept: tuple[Names, ...]
    """The later changes of names that are there as well."""
    contents: Callable[[str], dict[int, bytes]]
    """Returns the contents of the files; only the states that a test examines compute them."""
    data: str
    """What becomes of unsynced data."""
    acknowledged: dict[str, int]
    is_power_cut: bool
    how: str

    @functools.cached_property
    def tree(self) -> Tree:
        return _tree(_renamed(self.durable, self.kept), self.contents(self.data))


KEPT = ("kept",)
TORN = (
    "lost", "kept", "zeros", "holes", "1", "3", "7", "8", "40", "-1", "-2", "-3",
)  # fmt: skip


def crash_states(
    recorder: Recorder,
    *,
    seed: int = 0,
    subsets: int = 6,
    cuts: Iterable[int] = (),
):
    """Yield what may be left by a crash behind each operation.

    Args:
        recorder: What was done.
        seed: Of the choices.
        subsets: How many subsets of the unsynced changes of names are tried, besides the obvious ones.
        cuts: Further lengths of the last write that are tried, in bytes.
    """
    torn = (*TORN, *map(str, cuts))
    choose = random.Random(seed)
    files = {node: _File(recorder.contents.get(node, b"")) for node in recorder.sizes}
    durable = {node: dict(recorder.durable.get(node, {})) for node in recorder.folders}
    pending: list[Names] = []
    acknowledged: dict[str, int] = {}
    is_watched = True
    for step, operation in enumerate(recorder.operations):
        if isinstance(operation, Mark):
            acknowledged = {**acknowledged, operation.user: operation.done}
            is_watched = operation.is_watched
        elif isinstance(operation, Write):
            files[operation.node].pending.append(operation)
        elif isinstance(operation, Names):
            pending.append(operation)
        elif operation.node in files:
            file = files[operation.node]
            file.durable, file.pending = file.content("kept"), []
        else:
            pending = _sync_folder(operation.node, durable, pending)
        if not is_watched:
            continue
        contents = _contents_of(files)
        is_dirty = any(file.pending for file in files.values())
        known = _renamed(durable, ())
        for kept, data, how in _cuts(pending, torn if is_dirty else KEPT, choose, subsets):
            found = known, tuple(kept), contents, data
            yield CrashState(step, *found, acknowledged, how != "killed", how)


def _contents_of(files: dict[int, _File]) -> Callable[[str], dict[int, bytes]]:
    """Return a function that tells what is in the files as they are now, by what becomes of unsynced data."""
    synced = {node: file.durable for node, file in files.items()}
    dirty = {
        node: _File(file.durable, [*file.pending]) for node, file in files.items() if file.pending
    }

    @functools.cache
    def contents(data: str) -> dict[int, bytes]:
        return synced | {node: file.content(data) for node, file in dirty.items()}

    return contents


def _cuts(pending, torn, choose, subsets):
    """Yield which changes of names are kept, and what becomes of unsynced data."""
    yield pending, "kept", "killed"
    for data in torn:
        yield pending, data, f"names kept, data {data}"
        yield [], data, f"names lost, data {data}"
    for number in range(max(0, len(pending) - 5), len(pending)):
        alone = pending[number : number + 1]
        without = pending[:number] + pending[number + 1 :]
        for data in torn[:2]:
            yield alone, data, f"only change {number} of names, data {data}"
            yield without, data, f"without change {number} of names, data {data}"
            yield pending[:number], data, f"names up to {number}, data {data}"
    if len(pending) > 1:
        for _ in range(subsets):
            share = choose.random()
            kept = [change for change in pending if choose.random() < share]
            data = choose.choice(torn)
            yield kept, data, f"{len(kept)} of {len(pending)} changes of names, data {data}"


def _sync_folder(node, durable, pending):
    """Put a folder's names on the disk; what changes other folders in the same step goes with it."""
    chosen, rest, names = [], [], set()
    for change in reversed(pending):
        keys = {(folder, name) for folder, name, _ in change.changes}
        # What a name meant before is behind what it means now, in whichever folder the step was synced.
        if any(folder == node for folder, _ in keys) or keys & names:
            chosen.append(change)
            names |= keys
        else:
            rest.append(change)
    for change in reversed(chosen):
        _apply(durable, change.changes)
    return rest[::-1]


def _apply(folders, names) -> None:
    for folder, name, node in names:
        if node is None:
            folders[folder].pop(name, None)
        else:
            folders[folder][name] = node


def _renamed(durable, changes):
    folders = {node: dict(names) for node, names in durable.items()}
    for change in changes:
        _apply(folders, change.changes)
    return folders


def _tree(folders, contents, node: int = TOP, path: str = "") -> Tree:
    tree: Tree = {}
    for name, child in folders[node].items():
        place = f"{path}/{name}" if path else name
        if child in folders:
            tree[place] = None
            tree.update(_tree(folders, contents, child, place))
        else:
            tree[place] = contents[child]
    return tree


def tree_of(folder: Path) -> Tree:
    """Return what really stands in a folder."""
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


def materialise(tree: Tree, folder: Path, moment: float | None) -> None:
    """Write a tree into an empty folder; `moment` is the files' time in seconds, None is now."""
    top = os.fspath(folder)
    for path, data in sorted(tree.items()):
        place = f"{top}/{path}"
        if data is None:
            os.mkdir(place, 0o700)  # noqa: PTH102 - thousands of times
            continue
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT, 0o600)
        os.write(descriptor, data)
        os.close(descriptor)
        if moment is not None:
            os.utime(place, (moment, moment))
