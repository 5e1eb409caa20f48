"""The blocks of one user: texts that are set, added to, changed in one place, and read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tomldiary.engine.transaction import Source, fingerprint
from tomldiary.entries.blocks import Blocks, TextBlock, to_block
from tomldiary.entries.models import timestamp
from tomldiary.errors import UnknownEntry
from tomldiary.history.entry_changes import change_made, refuse_within
from tomldiary.runtime.async_bridge import async_twin

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tomldiary.engine.engine import Engine, Transaction

__all__ = ["BlockVerbs"]

_KIND = "blocks"


class BlockVerbs:
    """The part of `UserDiary` that is about blocks."""

    diary: Any
    user_id: str
    _engine: Engine

    def blocks(self) -> dict[str, TextBlock]:
        """Return all blocks by name, in the order of the file."""
        return {name: to_block(entry) for name, entry in self._blocks().entries()}

    ablocks = async_twin(blocks)

    def block(self, name: str) -> TextBlock:
        """Return one block.

        Raises:
            UnknownEntry: There is no such block.
        """
        found = self._blocks().find(name)
        if found is None:
            raise UnknownEntry(f"{_KIND}/{name}")
        return to_block(found)

    ablock = async_twin(block)

    def set_block(
        self,
        name: str,
        text: str,
        *,
        pinned: bool | None = None,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
    ) -> TextBlock:
        """Make a block hold exactly `text`, and return it; one that does not exist is created.

        Args:
            name: The block, 1 to 200 characters.
            text: At most 100,000 characters.
            pinned: Whether `render` shows it before everything else; None leaves it as it is, and a new
                block is pinned.
            session_id: Kept in `_created_by` and `_updated_by`, and in history.
            actor: Who does it, for history.
            reason: Why, for history.
            now: The time to write down; None is the time now.

        Raises:
            InvalidValue: The name or the text is too long. Nothing was changed.
        """
        session_id = session_id or self._engine.session_here(self.user_id)
        moment = timestamp(now)

        def change(book: Blocks) -> None:
            book.put(name, text, now=moment, session=session_id, pinned=pinned)

        asked = fingerprint("set_block", name, text, pinned)
        return self._write(
            name, change, Source("set_block", session_id, actor, reason, content=asked)
        )

    aset_block = async_twin(set_block)

    def append_block(
        self,
        name: str,
        text: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        operation_id: str = "",
    ) -> TextBlock:
        """Add `text` as lines of its own below what a block holds; one that does not exist is created.

        Several who append at once all have their lines in it.

        Args:
            name: The block.
            text: What to add.
            session_id: Kept with the block and in history, like `actor` and `reason` in history alone.
            actor: Who does it.
            reason: Why.
            now: The time to write down; None is the time now.
            operation_id: An id of your own: the same one a second time changes nothing.

        Raises:
            InvalidValue: The block would be too long. Nothing was changed.
            Conflict: The operation id was used for something else. Nothing was changed.
        """
        refuse_within(self._engine, self.user_id, operation_id)
        session_id = session_id or self._engine.session_here(self.user_id)
        moment = timestamp(now)

        def change(book: Blocks) -> None:
            book.append(name, text, now=moment, session=session_id)

        asked = fingerprint("append_block", name, text)
        why = Source("append_block", session_id, actor, reason, operation_id, asked)
        return self._write(name, change, why)

    aappend_block = async_twin(append_block)

    def replace_in_block(
        self,
        name: str,
        old: str,
        new: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
    ) -> TextBlock:
        """Replace the one place in a block where `old` stands; nothing happens unless there is one.

        Args:
            name: The block.
            old: The text to replace, with enough around it to be unique.
            new: The text in its place; empty to take it out.
            session_id: Kept with the block and in history, like `actor` and `reason` in history alone.
            actor: Who does it.
            reason: Why.
            now: The time to write down; None is the time now.

        Raises:
            UnknownEntry: There is no such block.
            InvalidValue: `old` is not there, or more than once. Nothing was changed.
        """
        session_id = session_id or self._engine.session_here(self.user_id)
        moment = timestamp(now)

        def change(book: Blocks) -> None:
            book.replace(name, old, new, now=moment, session=session_id)

        asked = fingerprint("replace_in_block", name, old, new)
        why = Source("replace_in_block", session_id, actor, reason, content=asked)
        return self._write(name, change, why)

    areplace_in_block = async_twin(replace_in_block)

    def forget_block(
        self, name: str, *, session_id: str = "", actor: str = "", reason: str = ""
    ) -> TextBlock:
        """Remove a block from the file and return it; history keeps it, see `forget`.

        Raises:
            UnknownEntry: There is no such block.
        """
        asked = fingerprint("forget_block", name)
        why = Source("forget_block", session_id, actor, reason, content=asked)
        return self._engine.write(
            self.user_id, lambda tx: to_block(Blocks(tx.edit(_KIND)).delete(name)), why
        )

    aforget_block = async_twin(forget_block)

    def _write(self, name: str, change: Callable[[Blocks], None], why: Source) -> TextBlock:
        def write(tx: Transaction) -> TextBlock:
            book = Blocks(tx.edit(_KIND))
            change(book)
            found = book.find(name)
            assert found is not None  # noqa: S101 - it was just stored
            return to_block(found)

        def stored(seq: int) -> TextBlock:
            """Return the block as it is now; as the transaction left it if it was removed since."""
            found = self._blocks().find(name)
            made = change_made(self._engine.backend, self.user_id, seq)
            return to_block(found if found is not None else made.after or {})

        return self._engine.write(
            self.user_id, write, why, on_repeat=stored if why.operation else None
        )

    def _blocks(self) -> Blocks:
        return Blocks(self._engine.document(self.user_id, _KIND))
