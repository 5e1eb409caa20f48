"""Parts that a host writes itself, as a type checker sees them; checked, never run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, assert_type

from tomldiary import CompactionConfig, CompactionDeps, Diary, MemoryDeps
from tomldiary.storage.async_methods import AsyncVerbs
from tomldiary.testing import AtomicBackendSuite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from tomldiary.storage import Backend
    from tomldiary.storage.protocol import Commit, Durability, Rewrite, Stored


def extract(message: str, *, deps: MemoryDeps) -> None:
    """Keep what the user says."""
    deps.upsert("likes", None, deps.user_msg or message, ["evening"])
    assert_type(deps.now, str)


async def compact(message: str, *, deps: CompactionDeps) -> None:
    """Shorten what is long."""
    for block_id, fields in deps.preference_blocks():
        deps.rewrite_preference_block(block_id, text=f"{message}{fields['text']}")


class Filtered(Diary):
    """Leaves out some turns."""

    async def update_memory(
        self,
        user_id: str,
        session_id: str,
        user_msg: str,
        assistant_msg: str,
        *,
        context_now: datetime | None = None,
        earlier: object = None,
    ) -> None:
        """Leave out what is confidential."""
        if "confidential" not in user_msg:
            await super().update_memory(
                user_id, session_id, user_msg, assistant_msg, context_now=context_now
            )


class Own(AsyncVerbs):
    """Storage by the sync protocol."""

    is_atomic = True
    is_shared = False
    is_quick = True
    durability: Durability = "none"

    def lock(self, user: str, timeout: float) -> AbstractContextManager[None]:
        return nullcontext()

    def token(self, user: str, kind: str) -> int | None:
        return None

    def read(self, user: str, kind: str) -> Stored | None:
        return None

    def kinds(self, user: str) -> list[str]:
        return []

    def commit(self, user: str, commit: Commit) -> dict[str, int]:
        return {kind: len(text) for kind, text in commit.texts.items()}

    def last_record(self, user: str) -> str | None:
        return None

    def records(self, user: str) -> Iterator[str]:
        yield from ()

    def users(self) -> list[str]:
        return []

    def erase(self, user: str, kind: str) -> None:
        pass

    def epoch(self, user: str) -> int:
        return 0

    def rewrite(self, user: str, rewrite: Rewrite) -> dict[str, str]:
        return {}

    def prune(self, user: str, seq: int, snapshot: str) -> None:
        pass

    def place(self, user: str, kind: str) -> str:
        return kind


class TestOwn(AtomicBackendSuite):
    """The suite for it."""

    def make_backend(self, tmp_path: Path) -> Own:
        """Return a new, empty backend."""
        return Own()


own: Backend = Own()
config = CompactionConfig(enabled=True)
Diary(own, agent=extract, compactor=compact, compaction_config=config, scorer=lambda one, other: 0)
