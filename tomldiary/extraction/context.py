"""A turn, and what else its extractor must know: the session's earlier exchanges, and what tools changed meanwhile.

An extractor needs earlier exchanges to understand "Yes, peanuts." They are given by the host or cached for active
sessions. The texts are bounded. Only the writer's journal stores them in a file. They are dropped when something of the
user is forgotten.

An agent with memory tools may store a statement, or remove an entry on request, while it answers. The extractor then
reads the same texts, and must repeat neither. The tools' transactions in history have the turn's session and the actor
"agent". Their time is between the submission of the session's previous turn and that of this turn. Changes by the
host's code have another actor or none, and have no effect on the extractor.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - pydantic reads the fields of Turn
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard, get_args

from tomldiary.entries.fields import MAX_SESSION, check_length, entry_text
from tomldiary.entries.kinds import PREFERENCES, entry_kind
from tomldiary.entries.kinds.episodes import ToolStep, checked_steps
from tomldiary.errors import InvalidValue, wrong_value
from tomldiary.history.record import SNAPSHOT, fingerprint, parse_record
from tomldiary.identifiers.user_ids import checked_user
from tomldiary.past.queries import HistoryEntry, entry_changes
from tomldiary.runtime.fork_safety import renew_after_fork
from tomldiary.runtime.lru import Recent
from tomldiary.text.contradiction import covers
from tomldiary.text.languages import NEGATIONS
from tomldiary.text.similarity import conflict, normalise, same_text
from tomldiary.toml.values import (
    checked_count,
    checked_flag,
    checked_text,
    in_own_zone,
    render_text,
    timestamp,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tomldiary.storage.protocol import Backend

Exchange: TypeAlias = tuple[str, str]
"""The texts of the user and the assistant; either may be empty."""
CONTEXT_TURNS = 4
"""The default number of earlier exchanges that an extractor gets with a turn."""
MAX_EXCHANGE = 1_000
"""The maximum number of characters of a message in an earlier exchange; the middle of a longer one is left out."""
_MOST_EARLIER = 20
"""The maximum number of earlier exchanges of a turn."""
_SESSIONS = 4_096
_CUT = " […] "


def storable(text: str) -> str:
    """Return a text with each lone surrogate, which no file can store, replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _checked_exchanges(earlier: Any) -> tuple[Exchange, ...]:
    """Return the last exchanges with a text, as pairs of the user's and the assistant's text.

    Raises:
        InvalidValue: `earlier` is no sequence of pairs of texts.
    """
    given: Sequence[Any] = earlier if _is_sequence(earlier) else [earlier]
    for each in given:
        is_pair = _is_sequence(each) and len(each) == 2  # noqa: PLR2004 - of texts
        if not is_pair or not all(isinstance(text, str) for text in each):
            raise InvalidValue(
                "expected pairs of texts, (user_msg, assistant_msg), oldest first;"
                f" found {type(each).__name__}.",
                where="earlier",
            )
    pairs = [(said, answer) for said, answer in given if said.strip() or answer.strip()]
    return tuple(pairs[-_MOST_EARLIER:])


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def last_exchanges(earlier: Sequence[Exchange], most: int) -> tuple[Exchange, ...]:
    """Return the last `most` exchanges, each message within its limit."""
    last = earlier[-most:] if most > 0 else ()
    return tuple((_shortened(said), _shortened(answer)) for said, answer in last)


def _shortened(text: str) -> str:
    text = storable(text).strip()
    if len(text) <= MAX_EXCHANGE:
        return text
    half = (MAX_EXCHANGE - len(_CUT)) // 2
    return f"{text[:half]}{_CUT}{text[-half:]}"  # a question is often at the end


TurnStatus = Literal["completed", "cancelled", "failed", "aborted"]
"""How the host's run ended. The answer of a run that was not completed may be empty or incomplete."""
_STATUSES = get_args(TurnStatus)


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange between a user and an assistant.

    A lone surrogate in a message is replaced by U+FFFD, since no file can store it.
    """

    user_id: str
    session_id: str
    user_msg: str
    assistant_msg: str
    context_now: datetime | None = None
    """When the exchange happened; None means now."""
    status: TurnStatus = "completed"
    """How the host's run ended; the user's message is read in any case."""
    operation_id: str = ""
    """Idempotency key: a repeated id has one effect. "" generates a new one."""
    earlier: Sequence[tuple[str, str]] | None = None
    """The exchanges before this one, oldest first: pairs of user message and assistant message.

    The extractor gets the last `Diary.context_turns` of them, at most 20, as context for short answers. Each message
    is cut to 1,000 characters. None uses the session's exchanges in this process.
    """

    steps: Sequence[ToolStep] = ()
    """The tool calls of the run, in order; stored in the episode."""
    episode: bool | None = None
    """Whether the turn is stored word for word as an episode; None uses the diary's setting."""
    epoch: int | None = field(default=None, compare=False)
    """The value of `alice.epoch` when the run of the turn began.

    With None, the value is read when the turn is stored, or when the turn begins to wait because the queue is full. If
    the whole user was erased since, the turn is refused with `Forgotten`. Other erasures do not refuse it.
    """

    def __post_init__(self) -> None:
        session = checked_text(self.session_id, "session_id")
        if not session:
            raise InvalidValue("the session id is empty. Give one.", where="session_id")
        object.__setattr__(self, "session_id", session)
        for name in ("user_msg", "assistant_msg"):
            object.__setattr__(self, name, storable(checked_text(getattr(self, name), name)))
        user = checked_text(self.user_id, "user_id") or checked_user("")  # refuses an empty id
        object.__setattr__(self, "user_id", user)
        object.__setattr__(self, "operation_id", checked_text(self.operation_id, "operation_id"))
        if self.status not in _STATUSES:
            raise wrong_value(self.status, f"one of {', '.join(_STATUSES)}", "status")
        if self.context_now is not None:
            said_at = in_own_zone(self.context_now, "context_now")
            object.__setattr__(self, "context_now", said_at)
        if self.steps != ():
            steps = checked_steps(self.steps)
            known = tuple(ToolStep(*(storable(each) for each in step)) for step in steps)
            object.__setattr__(self, "steps", known)
        if self.epoch is not None:
            object.__setattr__(self, "epoch", checked_count(self.epoch, "epoch"))
        if self.episode is not None:
            checked_flag(self.episode, "episode")
        if self.earlier is not None:
            object.__setattr__(self, "earlier", _checked_exchanges(self.earlier))

    @property
    def content(self) -> str:
        """The fingerprint of the content, which is compared if the operation id is repeated."""
        ended = () if self.status == "completed" else (self.status,)
        return fingerprint(self.session_id, self.user_msg, self.assistant_msg, *ended)


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
        """Record that a turn was submitted; return the time of the session's previous turn ("" is unknown), and now.

        Raises:
            InvalidValue: The session id is too long. A turn that was stored with such an id is still applied.
        """
        check_length(len(session), MAX_SESSION, "session_id", "the session id has")
        now = timestamp()
        with self._guard:
            known = self._of(user, session)
            before, known.taken = known.taken, now
        return before, now

    def give_back(self, user: str, session: str, taken: tuple[str, str]) -> None:
        """Undo a `take`, whose result is given, because the turn was withdrawn; later turns keep theirs."""
        before, now = taken
        with self._guard:
            known = self._of(user, session)
            if known.taken == now:
                known.taken = before

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


# What tools changed

_MOST_OTHERS = 64
"""The maximum number of other records to read; what is behind them belongs to earlier turns."""
_HEAD = re.compile(r'\[\[tx\]\]\ncheck = .*\nseq = .*\ntime = "(.*)"\ntype = "(.*)"\n')
_OTHERS = frozenset({"compaction", "rollback", "import", "hand", "put_back", SNAPSHOT})
"""The types of transactions that tools do not make."""
_TOOLS = "agent"
"""The actor of changes by an agent's memory tools."""
_EMPTY = """i me my mine we us our user users the a an and or but of to in on at for with from is am are was were
    be been being have has had do does did that this these those it its he his she her they their them very
    really so too also just please love loves loved like likes liked enjoy enjoys prefer prefers want wants
    favorite favourite fond who whose which what as im ive weve theyre theyve hes shes thats got
    now currently actually"""
_EMPTY_WORDS = frozenset(_EMPTY.split())
_REMEMBER = r"(?:remember|note(?: down)?|(?:keep|bear) in mind|(?:do not|don['’]t) forget)(?: that| this| it)?\b"
_ASKS_TO_REMEMBER = re.compile(
    r"^\W*(?:(?:please|kindly|also|and|so|now|from now on|can you|could you)\W+)*"
    rf"{_REMEMBER}\W*|[,;:.!–—-]\s*(?:please |and )*{_REMEMBER}(?: please)?\W*$",
    re.IGNORECASE,
)
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff]+")
_STEM = 4
"""The minimum number of equal letters at the beginning of two forms of a word."""


@dataclass(frozen=True, slots=True)
class ToolWrites:
    """The preferences that tools changed during one turn."""

    noted: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    """The texts that were stored or confirmed, by category and id."""
    removed: tuple[str, ...] = ()
    """The texts that were removed."""

    def was_removed(self, text: str) -> bool:
        """Return whether a text repeats a statement that was removed in this turn."""
        return any(_states(text, removed) for removed in self.removed)

    def holding(self, text: str) -> tuple[str, str] | None:
        """Return the entry that was stored in this turn, if such entries contain the whole statement of a text.

        Words that ask to remember something are ignored, since they are the reason why the entry was stored.
        """
        if not self.noted:
            return None
        text = _ASKS_TO_REMEMBER.sub("", text)
        words = _words(text)
        best: tuple[int, tuple[str, str]] | None = None
        told: set[str] = set()
        for place, noted in self.noted.items():
            if same_text(text, noted):  # perhaps of insignificant words only, such as "she/her"
                return place
            theirs = _words(noted)
            shared = _shared(words, theirs)
            if not shared or (theirs & NEGATIONS) - words:
                continue  # it says the opposite, or something else
            if not covers(noted, text):
                continue  # the same words with another sign, number or order
            told |= shared
            if best is None or len(shared) > best[0]:
                best = len(shared), place
        return best[1] if best is not None and told == words else None


NO_WRITES = ToolWrites()


def find_tool_writes(
    backend: Backend, user: str, session: str, began: str, ended: str
) -> ToolWrites:
    """Return the changes by tools in a session during a turn.

    Args:
        backend: The backend with the history; without history, no changes are found.
        user: The user.
        session: The turn's session.
        began: When the session's previous turn was submitted, in history's format; "" takes the session's last turn
            in history.
        ended: When this turn was submitted; "" is now.
    """
    noted: dict[tuple[str, str], str] = {}
    removed: list[str] = []
    seen: set[str] = set()
    for change in _changes(backend, user, session, began, ended):
        if change.key in seen:
            continue  # newest first: the last change of an entry counts
        seen.add(change.key)
        category, _, key = change.key.partition("/")
        if change.after is not None:
            noted[category, key] = entry_text(change.after)
        elif change.before is not None:
            removed.append(entry_text(change.before))
    return ToolWrites(noted, tuple(removed)) if seen else NO_WRITES


def _changes(
    backend: Backend, user: str, session: str, began: str, ended: str
) -> Iterator[HistoryEntry]:
    said, others = f"session = {render_text(session)}\n" if session else "", 0
    for text in backend.records(user):
        head = _HEAD.match(text)
        if others == _MOST_OTHERS or head is None:
            return
        time, kind = head.groups()
        if began and time < began:
            return
        changes: list[HistoryEntry] = []
        if said and text.startswith(said, head.end()) and not (ended and time > ended):
            if kind == "turn" and not began:
                return
            if kind != "turn" and kind not in _OTHERS:
                changes = list(_preferences(text))
        yield from changes
        others += not changes


def _preferences(text: str) -> Iterator[HistoryEntry]:
    record = parse_record(text)
    if record.actor != _TOOLS:
        return
    record.changes = [change for change in record.changes if entry_kind(change.doc) is PREFERENCES]
    yield from entry_changes(record)


def _states(text: str, removed: str) -> bool:
    """Return whether a text contains a removed statement, or most of it and nothing else."""
    words, gone = _words(text), _words(removed)
    if not gone or not words:
        return same_text(text, removed)
    if (words & NEGATIONS) - gone:
        return False  # that it no longer holds may be worth storing
    is_whole = len(_shared(gone, words)) == len(gone)
    if is_whole and len(_shared(words, gone)) == len(words):
        return not conflict(text, removed)  # the same words may say something else
    return is_whole or (len(_shared(words, gone)) == len(words) and 2 * len(words) >= len(gone))


def _words(text: str) -> set[str]:
    """Return the significant words of a text; for scripts without spaces, pairs of characters."""
    found: set[str] = set()
    for word in normalise(text).split():
        runs: list[Any] = _UNSPACED.findall(word)
        for run in runs:
            found.update(run[at : at + 2] for at in range(max(1, len(run) - 1)))
        rest = _UNSPACED.sub("", word)
        if rest and rest not in _EMPTY_WORDS:
            found.add(rest)
    return found


def _shared(words: set[str], others: set[str]) -> set[str]:
    """Return the `words` that occur in `others` in any form."""
    return {word for word in words if any(_is_form(word, other) for other in others)}


def _is_form(word: str, other: str) -> bool:
    shorter, longer = sorted((word, other), key=len)
    common = next((n for n, letter in enumerate(shorter) if letter != longer[n]), len(shorter))
    # "peanut" and "peanuts", "live" and "living", "allergic" and "allergy"; not "car" and "carrot".
    if common == len(shorter) and longer[common:] in {"", "s", "es", "d", "ed", "ing", "'s"}:
        return True
    return common >= _STEM and 3 * common >= 2 * len(longer)
