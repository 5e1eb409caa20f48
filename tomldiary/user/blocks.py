"""`alice.blocks`: named texts that are set, appended to, edited and read whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tomldiary.entries.kinds.blocks import Blocks, TextBlock, TextBlocks, to_block, unknown_block
from tomldiary.history.record import Source
from tomldiary.runtime.async_bridge import async_twin
from tomldiary.toml.values import checked_text, timestamp
from tomldiary.user.context import DictAccessor

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tomldiary.engine.transaction import Transaction
    from tomldiary.errors import UnknownEntry

_KIND = "blocks"


class UserBlocks(DictAccessor[TextBlock]):
    """The blocks of one user, as `alice.blocks`.

    Reads like a mapping from names to blocks: `blocks["persona"]`, `"persona" in blocks`, `len(blocks)`,
    `for name, block in blocks.items()`. `blocks()` is short for `blocks.all()`.
    A name may begin with `blocks/`, as `recall` shows it.
    """

    def __call__(self) -> TextBlocks:
        """Return all blocks by name, in the order of the file."""
        return self.all()

    def _unknown(self, id: str) -> UnknownEntry:  # noqa: A002 - as in the base class
        return unknown_block(self._name(id))

    def all(self) -> TextBlocks:
        """Return all blocks by name, in the order of the file."""
        return TextBlocks((name, to_block(entry)) for name, entry in self._unexpired().entries())

    aall = async_twin(all)  # noqa: A003 - the method above

    def get(self, name: str) -> TextBlock | None:
        """Return one block, or None."""
        found = self._unexpired().find(self._name(name))
        return None if found is None else to_block(found)

    aget = async_twin(get)

    def set(
        self,
        name: str,
        text: str,
        *,
        pinned: bool | None = None,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        ephemeral: bool = False,
    ) -> TextBlock:
        """Set the text of a block, creating a missing block, and return the block.

        Args:
            name: The block, 1 to 200 characters.
            text: At most 100,000 characters.
            pinned: Whether `render` shows it before unpinned entries; None keeps the setting. A new
                block is pinned by default.
            session_id: Stored in `_created_by` and `_updated_by`, and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            now: The time to store; None is the current time.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            InvalidValue: The name or the text is too long. Nothing was changed.
        """
        name, session_id = self._name(name), self._context.session(session_id)
        moment = timestamp(now)

        text = self._diary.redacted(text)  # before it is compared with what is stored

        def change(book: Blocks) -> None:
            book.put(name, text, now=moment, session=session_id, pinned=pinned)

        why = Source("set_block", session_id, actor, reason, asked=(name, text, pinned))
        return self._write(name, change, why, ephemeral=ephemeral)

    aset = async_twin(set)  # noqa: A003 - the method above

    def append(
        self,
        name: str,
        text: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        operation_id: str = "",
        ephemeral: bool = False,
    ) -> TextBlock:
        """Append `text` to a block as new lines, creating a missing block, and return the block.

        Concurrent appends are all kept.

        Args:
            name: The block.
            text: The text to append.
            session_id: Stored with the block and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            now: The time to store; None is the current time.
            operation_id: An idempotency key; a second call with the same key changes nothing.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            InvalidValue: The block would be too long. Nothing was changed.
            Conflict: The operation id was used for a different change. Nothing was changed.
        """
        name, session_id = self._name(name), self._context.session(session_id)
        moment = timestamp(now)

        def change(book: Blocks) -> None:
            book.append(name, text, now=moment, session=session_id)

        asked = (name, self._context.fingerprinted(operation_id, text))
        why = Source("append_block", session_id, actor, reason, operation_id, asked=asked)
        return self._write(name, change, why, ephemeral=ephemeral)

    aappend = async_twin(append)

    def replace(
        self,
        name: str,
        old: str,
        new: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        now: datetime | None = None,
        ephemeral: bool = False,
    ) -> TextBlock:
        """Replace the only occurrence of `old` in a block, and return the block.

        Args:
            name: The block.
            old: The text to replace; it must occur exactly once.
            new: The replacement; an empty text removes `old`.
            session_id: Stored with the block and in history.
            actor: The author of the change, for history.
            reason: The reason for the change, for history.
            now: The time to store; None is the current time.
            ephemeral: Whether the change becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            UnknownEntry: There is no such block.
            InvalidValue: `old` does not occur exactly once. Nothing was changed.
        """
        name, session_id = self._name(name), self._context.session(session_id)
        moment = timestamp(now)

        def change(book: Blocks) -> None:
            book.replace(name, old, new, now=moment, session=session_id)

        asked = (name, *self._context.fingerprinted("", (old, new)))
        why = Source("replace_in_block", session_id, actor, reason, asked=asked)
        return self._write(name, change, why, ephemeral=ephemeral)

    areplace = async_twin(replace)

    def delete(
        self,
        name: str,
        *,
        session_id: str = "",
        actor: str = "",
        reason: str = "",
        ephemeral: bool = False,
    ) -> TextBlock:
        """Remove a block from the file and return it. History keeps it.

        With `ephemeral` the removal becomes a draft of the session; see `UserDiary.draft`.

        Raises:
            UnknownEntry: There is no such block.
        """
        name = self._name(name)
        why = Source("delete_block", session_id, actor, reason, asked=(name,))
        return self._context.write(
            lambda tx: to_block(Blocks(tx.edit(_KIND)).delete(name)), why, ephemeral=ephemeral
        )

    adelete = async_twin(delete)

    def _write(
        self, name: str, change: Callable[[Blocks], None], why: Source, *, ephemeral: bool
    ) -> TextBlock:
        def write(tx: Transaction) -> TextBlock:
            book = Blocks(tx.edit(_KIND))
            change(book)
            found = book.find(name)
            assert found is not None  # noqa: S101 - it was just stored
            return to_block(found)

        def stored(seq: int) -> TextBlock:
            """Return the current block, or the transaction's version if the block is a draft or was deleted since."""
            made = self._context.change_made(seq)
            found = None if made.is_pending else self._stored().find(name)
            return to_block(made.fields if found is None else found)

        return self._context.write(write, why, ephemeral=ephemeral, on_repeat=stored)

    def _name(self, written: str) -> str:
        """Return the name of a block; `recall` shows it as `blocks/name`."""
        name = checked_text(written, "name")
        is_shown = name.startswith(f"{_KIND}/") and self._stored().find(name) is None
        return name.removeprefix(f"{_KIND}/") if is_shown else name

    def _unexpired(self) -> Blocks:
        return Blocks(self._context.unexpired(_KIND))

    def _stored(self) -> Blocks:
        return Blocks(self._context.read(_KIND))
