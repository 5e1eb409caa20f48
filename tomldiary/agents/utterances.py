"""Decides which words of a run are recorded, for frameworks whose message histories have no ids of messages.

An *utterance* is what a user said once. It is submitted once, by the first run with it that ends. The turn of a run has
the utterances since the last answer. The words of a message history may repeat an utterance that the process knows:

| words | utterance | because |
|---|---|---|
| the prompt, words that are sent during the run | a new one | the user says them now |
| the prompt after a failed run at the same place | that of the failed run | it is a retry |
| in a message of a known run | that of the run | the framework marks its messages |
| before such a message, as words that the run submitted | that of the run | the run had them in its history |
| with the time and the place of submitted words | the submitted one | the host kept its messages |
| with the id that an interface gave to words of the conversation | that of these words | interfaces send their messages again |
| without such an id, as words that the history does not have elsewhere | that of these words | adapters join messages, and lose ids |
| as in the last turn, at its place or after it failed | that of the last turn | the host sent its history again |
| as in a failed turn at the place, without the name of a session | that of the failed turn | histories of texts have no ids |
| as in an open run of the session, at the same place | that of the open run | agents share the history |
| the prompt, as in the history of such a run | that of the open run | the order of their start is chance |
| behind which their run showed the memory of another user | one of that user | runs of other processes had them |
| other words of the history | a new one | no run of this process had them |

If the utterance is one of another user, it is no part of the turn. The place of a turn is a digest of the exchanges before
it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from tomldiary.agents.turn_messages import OTHERS_TURN
from tomldiary.errors import IdentifierError
from tomldiary.runtime.fork_safety import fork_safe
from tomldiary.runtime.lru import Recent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

_KEPT = 4096
"""The number of sessions, runs and submits that are remembered."""


class RunOwner(NamedTuple):
    """The user and the session of a run."""

    user: str
    session: str


class RunIds(NamedTuple):
    """The framework's ids of a run."""

    conversation: str | None
    """Several users may share it."""
    run: str | None


class Heard(NamedTuple):
    """Words of a user in a message history."""

    text: str
    run: RunIds
    """Of the message."""
    mark: str
    """A digest of the text and its time; "" if it has no time."""
    id: str | None = None
    """The id that a user interface gave to the message; "" is lost, because its adapter joined messages; None is none."""
    is_joined: bool = False
    """Whether messages of several runs may have been joined to this one."""
    part: object = None
    """The adapter's object that has the words."""
    is_others: bool = False
    """Whether the history itself shows that they are of another user."""


@dataclass(eq=False)
class Utterance:
    """What a user said once. The turns of overlapping runs share it."""

    text: str
    """ "" for text of the history that no user said; `forms` has it."""
    user: str
    """ "" for another user whose name this process does not know."""
    id: str | None = None
    """See `Heard`."""
    is_submitted: bool = False
    is_before: bool = False
    """Whether it was in the message history of a run."""
    forms: set[str] = field(default_factory=set[str])
    """Other texts that messages have in its place."""

    @property
    def texts(self) -> set[str]:
        """The text in each form that messages may have."""
        return {self.text, *self.forms}


@dataclass(eq=False)
class UserTurn:
    """The user's side of a turn: whose it is, its place, and the utterances since the last answer."""

    memory: str
    """The name of the memory in the agent."""
    owner: RunOwner
    ids: RunIds
    place: str = ""
    """A digest of the exchanges before the turn."""
    answered: int = 0
    """The number of texts of users that were answered before."""
    places: set[str] = field(default_factory=set[str])
    """The places where a host may keep the words; several if the run failed."""
    utterances: list[Utterance] = field(default_factory=list[Utterance])
    is_answered: bool = False
    is_failed: bool = False

    @property
    def spot(self) -> tuple[str, ...]:
        """The place of the turn in the session of the user."""
        return (self.memory, *self.owner, self.place)

    @property
    def said(self) -> list[str]:
        """The user's texts."""
        return [one.text for one in self.utterances if one.text]


class TakenWords(NamedTuple):
    """What a run submits."""

    submission: str
    """The id of the submit, which is the same in a replay."""
    texts: tuple[str, ...]
    utterances: Sequence[Utterance]


class _Known(NamedTuple):
    """The user of a run, and the texts that the run submitted."""

    user: str
    said: Collection[str] = ()
    utterance: Utterance | None = None
    """That of another user, if the run is not answered yet."""


class Utterances:
    """What this process knows of utterances: their users, and which were submitted. Thread-safe."""

    def __init__(self) -> None:
        self._last: Recent[RunOwner, UserTurn] = Recent(_KEPT)
        """The last submitted turn of each session."""
        self._there: Recent[tuple[str, str, str], UserTurn] = Recent(_KEPT)
        """The last submitted turn of each memory, user and place."""
        self._known: Recent[tuple[str | None, ...], _Known] = Recent(_KEPT)
        """By the ids of a run, or by a mark and where it may be found again."""
        self._shown: Recent[tuple[str | None, ...], list[Utterance]] = Recent(_KEPT)
        """What a user interface sent, by the memory, the conversation and the text."""
        self._submitted: Recent[str, tuple[str, ...]] = Recent(_KEPT)
        """The texts of a submit by its id."""
        self._open: WeakKeyDictionary[UserTurn, None] = WeakKeyDictionary()
        # Reentrant, because the garbage collector may end a run, whose turn is then submitted, at any time.
        self._lock = fork_safe(threading.RLock())

    def enter(self, memory: str, user: str, ids: RunIds, resumed: RunIds | None) -> None:
        """Record the user of a run that begins.

        Args:
            memory: The name of the memory in the agent.
            user: The user of the run.
            ids: The run.
            resumed: The run that it continues, for example after an approval.

        Raises:
            IdentifierError: It continues a turn that another user began.
        """
        began = None if resumed is None else self._known.get((memory, *resumed))
        if began is not None and began.user != user:
            raise IdentifierError(OTHERS_TURN)
        with self._lock:
            self._known.keep((memory, *ids), _Known(user))

    def begin(
        self, turn: UserTurn, answered: Sequence[Heard], before: Sequence[Heard], prompt: str
    ) -> list[Utterance]:
        """Set the utterances of a turn when its run begins, and return those since the last answer, of any user.

        Args:
            turn: The turn.
            answered: The words of users in the history that were answered.
            before: The words that were not.
            prompt: The prompt, or "".
        """
        turn.answered = len(answered)
        turn.places = {turn.place}
        sent = self._sent(turn, answered, before)
        texts = [words.text for words in answered]
        # Words that are alone may also repeat by chance what another user said there.
        is_alone = len(before) == 1 and not prompt
        senders = self._senders(turn, texts, before, is_alone=is_alone)
        of_last, is_retry = self._of_last_turn(turn, texts)
        for words, sender, one in zip(before, senders, sent, strict=True):
            if one or (sender.user == turn.owner.user and words.text in sender.said):
                _take(of_last, words.text)
        of_open = self._of_open_runs(turn)
        since: list[Utterance] = []
        is_repeated = True  # whether all words so far are those of the last turn
        for words, sender, known in zip(before, senders, sent, strict=True):
            one = known or Utterance(words.text, sender.user, words.id, is_before=True)
            if known is None:
                one.is_submitted = words.text in sender.said
                if sender.utterance is not None:
                    # Later runs know it in the forms of this one as well.
                    one.forms = sender.utterance.forms
            is_own = one.user == turn.owner.user
            if is_own and known is None and not one.is_submitted:
                id_ = "" if is_retry else words.id
                is_repeated = is_repeated and _take(of_last, words.text, id_) is not None
                one.is_submitted = is_repeated
                if not is_repeated:
                    one = _take(of_open, words.text) or one
            since.append(one)
            if is_own:
                turn.utterances.append(one)
        self._keep_sent(turn, before, since)
        if prompt:
            is_repeated = is_repeated and is_retry and _take(of_last, prompt) is not None
            heard = [one for one in of_open if one.is_before and not one.is_submitted]
            one = None if is_repeated else _take(heard, prompt)
            since.append(one or Utterance(prompt, turn.owner.user, is_submitted=is_repeated))
            turn.utterances.append(since[-1])
        return since

    def _of_open_runs(self, turn: UserTurn) -> list[Utterance]:
        """Return the utterances of open runs of the session at the place of a turn."""
        here = (turn.owner, turn.place)
        with self._lock:
            overlapping = [one for one in self._open_turns() if (one.owner, one.place) == here]
        return list(dict.fromkeys(one for each in overlapping for one in each.utterances))

    def _sent(
        self, turn: UserTurn, answered: Sequence[Heard], before: Sequence[Heard]
    ) -> list[Utterance | None]:
        """Return what an interface has sent earlier in the conversation, for each of the unanswered words."""
        left = {
            each.text: sorted(
                self._shown.get(_shown_key(turn, each), ()), key=lambda one: not one.id
            )
            for each in before
        }
        ids = {(text, one.id) for text, known in left.items() for one in known}
        # A message of a run is in the history that the server keeps. The interface may send it again.
        sent = [words for words in answered if words.run.run is None]
        begin = len(sent)
        sent += before

        def order(number: int) -> int:
            """Words whose id is lost may be any that the others are not; a new id may be that of words without one."""
            words = sent[number]
            if not words.id:
                return 1
            return 0 if (words.text, words.id) in ids else 2

        found: dict[int, Utterance | None] = {}
        for number in sorted(range(len(sent)), key=order):
            words = sent[number]
            if words.id is not None:
                found[number] = _take(left.get(words.text, []), words.text, words.id)
        return [found.get(number) for number in range(begin, len(sent))]

    def _keep_sent(
        self, turn: UserTurn, before: Sequence[Heard], since: Sequence[Utterance]
    ) -> None:
        """Record the unanswered words that an interface has sent, and the ids that were not known yet."""
        with self._lock:
            for words, one in zip(before, since, strict=True):
                if words.id is not None:
                    one.id = one.id or words.id
                    key = _shown_key(turn, words)
                    known = self._shown.get(key, [])
                    self._shown.keep(key, known if one in known else [*known, one])

    def _of_last_turn(
        self, turn: UserTurn, answered: Sequence[str]
    ) -> tuple[list[Utterance], bool]:
        """Return the utterances of the last turn that a new one may repeat, and whether the last one failed."""
        last = self._last.get(turn.owner)
        is_named = turn.owner.session not in turn.ids
        # Many conversations begin alike, but few go on alike.
        if last is None and turn.answered and not is_named:
            there = self._there.get((turn.memory, turn.owner.user, turn.place))
            last = there if there is not None and there.is_failed else None
        if last is None or (last.is_answered and last.place != turn.place):
            return [], False
        left = [*last.utterances]
        # Words that were answered since are in the history, so the prompt does not repeat them.
        for text in answered[last.answered :]:
            _take(left, text)
        return left, last.is_failed

    def _senders(
        self,
        turn: UserTurn,
        answered: Sequence[str],
        before: Sequence[Heard],
        *,
        is_alone: bool,
    ) -> list[_Known]:
        """Return who sent each of the unanswered words of a history."""
        if not before:
            return []
        with self._lock:
            turns = [*self._open_turns(), *self._last.values()]
        runs = {words.run.run for words in before}
        others = [
            utterance
            for one in turns
            if one.owner.user != turn.owner.user
            # The host may have left out an answer without a text.
            if not one.is_answered or (one.place == turn.place and not is_alone)
            if one.ids.run != turn.ids.run
            or one.memory == turn.memory  # else it belongs to another memory of the agent
            for utterance in _left_of(one, turn, answered, runs)
        ]
        unknown = _Known(turn.owner.user)
        runs_behind: list[RunIds] = []
        for words in reversed(before):
            is_known = words.run.run is not None or not runs_behind
            runs_behind.append(words.run if is_known else runs_behind[-1])
        return [
            _Known(another.user, utterance=another)
            if (another := _take(others, words.text, words.id))
            else self._sender(turn, words, run) or (_Known("") if words.is_others else unknown)
            for words, run in zip(before, reversed(runs_behind), strict=True)
        ]

    def _sender(self, turn: UserTurn, words: Heard, run: RunIds) -> _Known | None:
        """Return the record of the run that submitted words of the history, or None.

        Args:
            turn: The turn that begins.
            words: The words.
            run: The run of their message, or of the next message that has one.
        """
        if words.run.run is None and run.run is not None:
            known = self._known.get((turn.memory, *run))
            if known is not None and words.text in known.said:
                return known
        keys: list[tuple[str | None, ...]] = []
        if words.is_joined:
            keys.append((turn.memory, words.mark))
        if words.run.run is not None and not words.is_others:  # a joined message names its last run
            keys.append((turn.memory, *words.run))
        # A message that the host made has no run, but stays at its place in the conversation.
        if words.mark:
            places = (turn.spot, (turn.memory, turn.ids.conversation))
            keys += [(*place, words.mark) for place in places]
        return next(filter(None, map(self._known.get, keys)), None)

    def opened(self, turn: UserTurn) -> None:
        """Record that a run with a turn has begun."""
        with self._lock:
            self._open[turn] = None

    def _open_turns(self) -> list[UserTurn]:
        # `keyrefs` is one step, during which the garbage collector cannot end a run.
        return [turn for ref in self._open.keyrefs() if (turn := ref()) is not None]

    def take_words(self, turn: UserTurn, submission: str) -> TakenWords:
        """Return the texts that a run has to submit now, and mark their utterances as submitted.

        Args:
            turn: The turn.
            submission: The id of the submit. A replay in this process takes the same texts again, because Prefect finds a
                recorded result by the arguments of the call.
        """
        with self._lock:
            taken = [one for one in turn.utterances if not one.is_submitted]
            for one in taken:
                one.is_submitted = True
            texts = tuple(one.text for one in taken)
            return TakenWords(submission, self._submitted.get(submission, texts), taken)

    def give_back(self, taken: TakenWords) -> None:
        """Record that a run could not submit its texts, so that another run with them does."""
        with self._lock:
            for one in taken.utterances:
                one.is_submitted = False

    def end(self, turn: UserTurn) -> None:
        """Record that the run of a turn submits nothing any more."""
        with self._lock:
            self._open.pop(turn, None)

    def note(
        self,
        turn: UserTurn,
        taken: TakenWords,
        words: Iterable[tuple[str, str, Utterance]],
        *,
        is_answered: bool,
        is_paused: bool,
    ) -> None:
        """Record that a turn was submitted.

        Args:
            turn: The turn.
            taken: What was submitted.
            words: The marks and texts of words since the last answer, with their utterances, of any user.
            is_answered: Whether the run has completed.
            is_paused: Whether another run continues it.
        """
        user, said = turn.owner.user, {text for one in turn.utterances for text in one.texts}
        # A copy, because the user may send more during the run, if an agent in one of its tools has submitted the turn.
        last = replace(
            turn,
            utterances=[*turn.utterances],
            is_answered=is_answered and not is_paused,
            is_failed=not is_answered,
        )
        with self._lock:
            self._submitted.keep(taken.submission, taken.texts)
            self._last.keep(turn.owner, last)
            for place in turn.places:
                self._there.keep((turn.memory, user, place), last)
            self._known.keep((turn.memory, *turn.ids), _Known(user, said))
            for mark, text, one in words:
                # Elsewhere in the conversation, equal words with this time tell the user, but may be said again.
                elsewhere = (turn.memory, turn.ids.conversation)
                for place in ((turn.memory,), turn.spot, elsewhere):
                    is_again = one.is_submitted and place is not elsewhere
                    known = _Known(one.user, (text,) if is_again else ())
                    key = (*place, mark)
                    # What a run of another user noted about its words stays.
                    if one.user == user or (one.user and self._known.get(key) is None):
                        self._known.keep(key, known)


def _left_of(
    other: UserTurn, turn: UserTurn, answered: Sequence[str], runs: Collection[str | None]
) -> list[Utterance]:
    """Return the utterances of another user's turn that the history of a turn may have unanswered.

    Args:
        other: The turn of the other user.
        turn: The turn.
        answered: The texts of users in its history that were answered.
        runs: The runs of those that were not.
    """
    if other.ids.run in runs:
        return other.utterances
    if other.ids.conversation != turn.ids.conversation:
        return []
    # The other run may have failed behind an answer to its first words.
    since = answered[other.answered :]
    left = [*other.utterances]
    are_known = all(_take(left, text) for text in since)
    return left if turn.place in other.places or (since and are_known) else []


def _shown_key(turn: UserTurn, words: Heard) -> tuple[str | None, ...]:
    """Return where words of an interface are kept. It may give equal ids to messages of two conversations in a session."""
    return (turn.memory, turn.ids.conversation, words.text)


def _take(known: list[Utterance], text: str, id_: str | None = None) -> Utterance | None:
    """Remove and return the first utterance with a text, unless both have ids that differ; None if there is none."""
    for one in known:
        if text in one.texts and (not id_ or not one.id or one.id == id_):
            known.remove(one)
            return one
    return None
