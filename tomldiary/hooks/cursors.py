"""Durable cursors: the position of each hook in the history of each user.

They are stored in a hidden document of the user, `.hooks`, with a table for each hook:

    [hooks.chroma]
    seq = 12
    time = "2026-11-20T03:37:54.320748+00:00"
    keys = ["likes/pref001"]    # a strict hook got these before their transaction was stored

The document outlives the user's memory until each hook has removed the user's entries.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tomldiary.hooks.change import START, Position
from tomldiary.runtime.sources import HOOKS
from tomldiary.toml.values import render_key, render_text, render_value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tomldiary.storage.protocol import KeepsHidden

__all__ = ["Cursor", "Cursors", "redacted"]


@dataclass(frozen=True, slots=True)
class Cursor:
    """The position of one hook in the history of one user."""

    position: Position
    keys: tuple[str, ...] = ()
    """Entries that the hook may have in a state that was never stored."""

    @classmethod
    def new(cls) -> Cursor:
        """Return the cursor of a hook that needs the whole state, because its entries are unknown."""
        return cls(Position(seq=START))


class Cursors:
    """The cursors of one hook.

    Args:
        backend: The storage of the cursors.
        hook: The name of the hook.
    """

    def __init__(self, backend: KeepsHidden, hook: str) -> None:
        self._backend = backend
        self._hook = hook

    def of(self, user: str) -> Cursor | None:
        """Return the cursor of a user, or None if the hook has received nothing of the user."""
        return _parsed(self._backend.hidden(user, HOOKS)[0]).get(self._hook)

    def users(self) -> list[str]:
        """Return the users with a cursor of any hook."""
        return self._backend.holders(HOOKS)

    def move(self, user: str, expected: Cursor | None, cursor: Cursor | None) -> bool:
        """Replace a cursor, or remove it if `cursor` is None; return False if another process has moved it."""
        return self._change(user, lambda now: cursor if now == expected else now) == cursor

    def add_keys(self, user: str, keys: set[str]) -> None:
        """Store the keys of entries that the hook is about to get; the caller holds the user's lock."""

        def added(now: Cursor | None) -> Cursor:
            known = now or Cursor.new()
            return Cursor(known.position, tuple(sorted({*known.keys, *keys})))

        self._change(user, added, is_locked=True)

    def _change(
        self,
        user: str,
        change: Callable[[Cursor | None], Cursor | None],
        *,
        is_locked: bool = False,
    ) -> Cursor | None:
        found: list[Cursor | None] = []

        def changed(text: str, _: int) -> str:
            cursors = _parsed(text)
            fresh = change(cursors.get(self._hook))
            found[:] = [fresh]
            cursors.pop(self._hook, None)
            return _rendered({**cursors, self._hook: fresh} if fresh is not None else cursors)

        self._backend.change_hidden(user, HOOKS, changed, is_locked=is_locked)
        return found[-1]


def _parsed(text: str) -> dict[str, Cursor]:
    try:
        tables: dict[str, dict[str, Any]] = tomllib.loads(text).get("hooks", {})
        return {
            name: Cursor(Position(each["epoch"], each["seq"], each["time"]), tuple(each["keys"]))
            for name, each in tables.items()
        }
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError):
        return {}  # a hook without a cursor gets the whole state again


def _rendered(cursors: Mapping[str, Cursor]) -> str:
    return "\n".join(
        f"[hooks.{render_key(name)}]\nepoch = {each.position.epoch}\nseq = {each.position.seq}\n"
        f"time = {render_text(each.position.time)}\nkeys = {render_value(list(each.keys))}\n"
        for name, each in sorted(cursors.items())
    )


def redacted(text: str, user: str, selection: Mapping[str, Any], epoch: int) -> str:  # noqa: ARG001 - a common signature
    """Return the cursors without keys of entries, reset to before the erasure, so that each hook applies it."""
    return _rendered(
        {
            name: Cursor(Position(min(each.position.epoch, epoch - 1), START))
            for name, each in _parsed(text).items()
        }
    )
