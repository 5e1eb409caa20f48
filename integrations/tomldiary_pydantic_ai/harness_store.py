"""A store for pydantic-ai-harness's `Memory`, kept in a diary: `Memory(store=TomlMemoryStore("./memories"))`."""

from __future__ import annotations

import asyncio
import importlib
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import anyio.to_thread

from tomldiary.diary import Diary, diary_of
from tomldiary.errors import Conflict, MissingExtra
from tomldiary.runtime.async_bridge import current_task
from tomldiary_pydantic_ai.memory_files import (
    FileMutation,
    MemoryFiles,
    OperationReused,
    check_prefix,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

T = TypeVar("T")
_LONGEST_TURN = 2.0  # seconds; the task may never try again


class TomlMemoryStore:
    """Memory files as text blocks of a diary: safe for several processes, with history, editable by hand.

    It is a `MemoryStore`, a `MetadataMemoryStore` and a `SearchableMemoryStore` of pydantic-ai-harness. The first
    part of a namespace is the user of a file, so that forgetting this user removes it. A file without a namespace
    belongs to no user. Searches find and score files like the harness's own stores; files with other forms of the
    words follow.

    Args:
        diary: A `Diary`, or its folder or address.

    Raises:
        MissingExtra: pydantic-ai-harness is not installed.
    """

    def __init__(self, diary: Diary | str | os.PathLike[str]) -> None:
        try:
            # A late import: the harness pins the framework's version, so the adapter must not require it.
            self._types: Any = importlib.import_module("pydantic_ai_harness.memory")
        except ModuleNotFoundError as error:
            raise MissingExtra("TomlMemoryStore", package="pydantic-ai-harness") from error
        self.diary = diary_of(diary)
        self._files = MemoryFiles(self.diary)
        self._turns = WriteTurns()

    def __repr__(self) -> str:
        return f"TomlMemoryStore({self.diary!r})"

    async def read(self, path: str, *, max_chars: int) -> Any:
        """Return the file at `path`, cut to `max_chars` characters; None if there is none.

        Raises:
            ValueError: The path is invalid, or `max_chars` is not positive.
        """
        if max_chars <= 0:
            raise ValueError("max_chars must be positive")
        await self._turns.wait(path)
        found = await self._call(self._files.read, path)
        if found is None:
            return None
        return self._types.MemoryFile(
            content=found.content[:max_chars],
            version=found.version,
            operation_id=found.operation,
            truncated=len(found.content) > max_chars,
            metadata=found.metadata,
        )

    async def get_operation(self, operation: Any) -> Any:
        """Return the result of the operation with an id, or None.

        Raises:
            MemoryOperationConflictError: The id was used for another operation.
        """
        done = await self._call(self._files.done, operation.id, operation.fingerprint)
        return None if done is None else self._mutation(done)

    async def write(
        self, path: str, content: str, *, expected_version: str | None, operation: Any = None
    ) -> Any:
        """Create or replace a file that has the expected version, without metadata.

        Raises:
            MemoryConflictError: Another write came first. Nothing was changed.
            MemoryOperationConflictError: The operation id was used for another operation.
            ValueError: The path is invalid, or the content is too long.
        """
        return await self.write_with_metadata(
            path, content, expected_version=expected_version, metadata=None, operation=operation
        )

    async def write_with_metadata(
        self,
        path: str,
        content: str,
        *,
        expected_version: str | None,
        metadata: Mapping[str, str] | None,
        operation: Any = None,
    ) -> Any:
        """Create or replace a file that has the expected version, with metadata.

        Raises:
            MemoryConflictError: Another write came first. Nothing was changed.
            MemoryOperationConflictError: The operation id was used for another operation.
            ValueError: The path is invalid, or the content or the metadata cannot be stored.
        """
        change = partial(
            self._files.write,
            path,
            content,
            expected=expected_version,
            metadata=metadata,
            **_named(operation),
        )
        return await self._change(path, change)

    async def delete(
        self, path: str, *, expected_version: str | None, operation: Any = None
    ) -> Any:
        """Remove a file that has the expected version.

        Raises:
            MemoryConflictError: Another write came first. Nothing was changed.
            MemoryOperationConflictError: The operation id was used for another operation.
        """
        change = partial(self._files.delete, path, expected=expected_version, **_named(operation))
        return await self._change(path, change)

    async def list_paths(self, prefix: str = "", *, limit: int) -> list[str]:
        """Return the paths that begin with `prefix`, sorted, at most `limit`.

        Raises:
            ValueError: `limit` is not positive, or no path can begin with the prefix.
        """
        if limit <= 0:
            raise ValueError("limit must be positive")
        return (await self._call(lambda: list(self._files.paths(prefix))))[:limit]

    async def search(
        self,
        prefix: str,
        query: str,
        *,
        limit: int,
        max_files: int,
        max_chars: int,
        max_file_chars: int,
    ) -> Any:
        """Return the files directly below `prefix` that match best, each with a part of its text.

        Args:
            prefix: The scope to search; files in deeper scopes belong to other owners.
            query: Words.
            limit: The maximum number of files returned.
            max_files: The maximum number of files searched.
            max_chars: The maximum number of characters of all paths and parts together.
            max_file_chars: The number of characters searched at the beginning of a file.

        Raises:
            ValueError: No path can begin with the prefix.
        """
        result = partial(self._types.MemorySearchResult, matches=[], scanned=0, truncated=False)
        check_prefix(prefix)
        if not query.split() or min(limit, max_files, max_chars, max_file_chars) <= 0:
            return result()
        look = partial(self._files.search, prefix, query, most=max_files, window=max_file_chars)
        search = await self._call(look)
        matches: list[Any] = []
        left = max_chars
        for one in search.found[:limit]:
            visible = one.path[len(prefix) :]
            if left <= len(visible):
                break
            part = _part(one.content, one.words, left - len(visible))
            left -= len(visible) + len(part)
            matches.append(
                self._types.MemorySearchMatch(path=one.path, snippet=part, score=one.score)
            )
        return result(
            matches=matches,
            scanned=search.scanned,
            truncated=search.is_cut or len(search.found) > len(matches),
        )

    async def _change(self, path: str, change: Callable[[], FileMutation]) -> Any:
        try:
            done = await self._call(change)
        except self._types.MemoryConflictError:
            self._turns.conflicted(path)
            raise
        self._turns.written(path)
        return self._mutation(done)

    async def _call(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await anyio.to_thread.run_sync(partial(function, *arguments))
        except OperationReused as error:
            raise self._types.MemoryOperationConflictError(str(error)) from error
        except Conflict as error:
            raise self._types.MemoryConflictError(str(error)) from error

    def _mutation(self, done: FileMutation) -> Any:
        return self._types.MemoryMutation(
            version=done.version, replayed=done.is_replayed, existed=done.existed
        )


class WriteTurns:
    """Lets the tasks whose writes of a path conflicted try again one after another; other tasks never wait."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[Any, str], asyncio.Lock] = WeakValueDictionary()
        self._turns: dict[tuple[Any, str], tuple[asyncio.Lock, asyncio.TimerHandle] | None] = {}
        """By the task and the path; None until the turn begins."""

    def conflicted(self, path: str) -> None:
        """Let the running task, whose write conflicted, wait for its turn from now on."""
        task: asyncio.Task[Any] | None = current_task()
        if task is not None and (task, path) not in self._turns:
            self._turns[task, path] = None
            task.add_done_callback(lambda _: self._end(task, path))

    async def wait(self, path: str) -> None:
        """Wait for the turn of the running task, if a write of it conflicted."""
        task: asyncio.Task[Any] | None = current_task()
        if task is None or self._turns.get((task, path), ()) is not None:
            return
        loop = task.get_loop()
        lock = self._locks.setdefault((loop, path), asyncio.Lock())
        await lock.acquire()
        self._turns[task, path] = lock, loop.call_later(_LONGEST_TURN, self._end, task, path)

    def written(self, path: str) -> None:
        """End the turn of the running task after its write."""
        self._end(current_task(), path)

    def _end(self, task: asyncio.Task[Any] | None, path: str) -> None:
        if turn := self._turns.pop((task, path), None):
            lock, timer = turn
            timer.cancel()
            lock.release()


def _named(operation: Any) -> dict[str, str]:
    if operation is None:
        return {}
    return {"operation": operation.id, "fingerprint": operation.fingerprint}


def _part(content: str, words: list[str], length: int) -> str:
    """Return a part of a text around the first of these words."""
    lower = content.lower()
    places = [at for word in words if (at := lower.find(word.lower())) >= 0]
    start = max(0, min(min(places, default=0) - length // 3, len(content) - length))
    part = content[start : start + length]
    if start:
        part = f"...{part[_DOTS:]}" if len(part) >= _DOTS else "." * len(part)
    if start + length < len(content):
        part = f"{part[:-_DOTS]}..." if len(part) >= _DOTS else "." * len(part)
    return part


_DOTS = 3
