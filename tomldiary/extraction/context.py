"""Earlier exchanges of a session, given by the host or cached for active sessions.

An extractor needs them to understand "Yes, peanuts." The texts are bounded. Only the writer's journal stores them in
a file. They are dropped when something of the user is forgotten.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from tomldiary.errors import InvalidValue
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.toml.values import checked_text, timestamp

__all__ = [
    "CONTEXT_TURNS",
    "MAX_EARLIER",
    "MAX_EXCHANGE",
    "Exchange",
    "Sessions",
    "checked_exchanges",
    "checked_turn",
    "storable",
]

Exchange: TypeAlias = tuple[str, str]
"""The texts of the user and the assistant; either may be empty."""
CONTEXT_TURNS = 4
"""The default number of earlier exchanges that an extractor gets with a turn."""
MAX_EXCHANGE = 1_000
"""The maximum number of characters of a message in an earlier exchange; the middle of a longer one is left out."""
MAX_EARLIER = 20
"""The maximum number of earlier exchanges of a turn."""
_SESSIONS = 4_096
_CUT = " […] "
_LONE = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


def storable(text: str) -> str:
    """Return a text with each lone surrogate, which no file can store, replaced by U+FFFD."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.translate(_LONE)
    return text


def checked_turn(
    session_id: object, user_msg: object, assistant_msg: object
) -> tuple[str, str, str]:
    """Return the session id and the texts of a turn as plain text that a file can store.

    Raises:
        InvalidValue: A message or the session id is no text, or the session id is empty.
    """
    session = checked_text(session_id, "session_id")
    if not session:
        raise InvalidValue("the session id is empty. Give one.", where="session_id")
    said = storable(checked_text(user_msg, "user_msg"))
    return session, said, storable(checked_text(assistant_msg, "assistant_msg"))


def checked_exchanges(earlier: Sequence[Sequence[str]], most: int) -> tuple[Exchange, ...]:
    """Return the last exchanges, each message within its limit.

    Args:
        earlier: Pairs of the user's and the assistant's text, oldest first.
        most: The maximum number of exchanges.

    Raises:
        InvalidValue: `earlier` is no sequence of pairs of texts.
    """
    pairs: list[Exchange] = []
    given: Any = earlier
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise _no_exchanges(cast("object", given))
    for each in cast("Sequence[Any]", given):
        if isinstance(each, str) or not isinstance(each, Sequence):
            raise _no_exchanges(cast("object", each))
        pair = list(cast("Sequence[Any]", each))
        if len(pair) != 2 or not all(isinstance(text, str) for text in pair):  # noqa: PLR2004 - a pair
            raise _no_exchanges(cast("object", each))
        pairs.append((_shortened(pair[0]), _shortened(pair[1])))
    spoken = [pair for pair in pairs if any(pair)]
    return tuple(spoken[-most:]) if most > 0 else ()


def _no_exchanges(found: object) -> InvalidValue:
    return InvalidValue(
        f"expected pairs of texts, (user_msg, assistant_msg), oldest first; found {type(found).__name__}.",
        where="earlier",
    )


def _shortened(text: str) -> str:
    text = storable(text).strip()
    if len(text) <= MAX_EXCHANGE:
        return text
    half = (MAX_EXCHANGE - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}"  # a question is often at the end


@dataclass(slots=True)
class _Session:
    epoch: int = 0
    exchanges: list[Exchange] = field(default_factory=list[Exchange])
    taken: str = ""


class Sessions:
    """The recent exchanges of active sessions in this process. Thread-safe.

    Args:
        most: The maximum number of exchanges for each session.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Drop everything; in a forked child no thread would release the lock."""
        # Reentrant, because the garbage collector may end a run, whose turn is then submitted, at any time.
        self._guard = threading.RLock()
        self._known: Recent[tuple[str, str], _Session] = Recent(_SESSIONS)

    def take(self, user: str, session: str) -> tuple[str, str]:
        """Record that a turn was submitted; return the time of the session's previous turn ("" is unknown), and now."""
        now = timestamp()
        with self._guard:
            known = self._of(user, session)
            before, known.taken = known.taken, now
        return before, now

    def before(self, epoch: int, user: str, session: str, said: Exchange) -> tuple[Exchange, ...]:
        """Return the exchanges before `said`, which may be known already; `epoch` is the user's fencing token."""
        pair = (_shortened(said[0]), _shortened(said[1]))
        with self._guard:
            exchanges = self._of(user, session, epoch).exchanges
            return tuple(exchanges[:-1] if exchanges[-1:] == [pair] else exchanges)

    def keep(self, user: str, session: str, said: Exchange, epoch: int) -> None:
        """Keep an exchange for later turns; `epoch` is the user's fencing token."""
        pair = (_shortened(said[0]), _shortened(said[1]))
        if self.most <= 0 or not any(pair):
            return
        with self._guard:
            exchanges = self._of(user, session, epoch).exchanges
            if exchanges[-1:] != [pair]:
                exchanges.append(pair)
                del exchanges[: -self.most]

    def drop(self, user: str) -> None:
        """Drop the exchanges of a user."""
        with self._guard:
            for key in [key for key in self._known if key[0] == user]:
                del self._known[key]

    def _of(self, user: str, session: str, epoch: int | None = None) -> _Session:
        key = (user, session)
        known = self._known.keep(key, self._known.get(key) or _Session())
        if epoch is not None and known.epoch != epoch:
            # The exchanges may quote a text that was forgotten since.
            known.epoch, known.exchanges = epoch, []
        return known
