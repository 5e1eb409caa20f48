"""The index of a history: the newest record of each document and the keys are found in few passes over history."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from calls import noted_calls
from tomldiary import Diary
from tomldiary.backends import MemoryBackend
from tomldiary.engine.engine import Source
from tomldiary.errors import InvalidTOML
from tomldiary.history.record import (
    SNAPSHOT,
    HistoryIndex,
    Latest,
    Record,
    is_whole,
    next_sequence,
    operation_of,
    parse_record,
    render_record,
)
from tomldiary.history.timeline import Timeline


class History:
    """A history in memory that counts the records that were read, oldest first."""

    def __init__(self):
        self.texts = []
        self.read = 0

    def add(self, *kinds, type="put", operation=""):  # noqa: A002 - the name in the record
        seq = next_sequence(self.last)
        results = {kind: f"{kind}@{seq}" for kind in kinds}
        made = Record(seq, type, [], dict.fromkeys(kinds, ""), results, operation=operation)
        self.texts.append(render_record(made))
        return made

    @property
    def last(self):
        return self.texts[-1] if self.texts else None

    def records(self, _):
        for text in self.texts[::-1]:
            self.read += 1
            yield text


def replaced(text):
    """Return a record as the snapshot that retention leaves of it."""
    return render_record(replace(parse_record(text), type=SNAPSHOT))


def checked(history, latest, kind):
    records = Timeline(history, "alice").records()
    last = next((record for record in records if kind in record.results), None)
    expected = None if last is None else Latest(last.seq, last.type, last.results[kind])
    assert latest.of(kind) == expected


@pytest.mark.parametrize(
    "order", [random.Random(1).sample(range(400), 400), range(299, -1, -1), range(400)]
)
def test_many_documents_need_a_few_passes_over_history(order):
    history = History()
    for number in range(300):
        history.add(f"items/t{number}")
    for _ in range(700):
        history.add("items/live")
    latest = HistoryIndex(history, "alice")
    for number in order:
        latest.of(f"items/t{number}")  # those from 300 on are not in history
    assert history.read < 5 * len(history.texts)


def test_writes_to_many_documents_read_the_new_records_only():
    history = History()
    for number in range(300):
        history.add(f"items/t{number}")
    latest = HistoryIndex(history, "alice")
    latest.of("items/t0")
    begun = history.read
    for number in range(300):
        history.add("items/live")
        found = latest.of(f"items/t{number}")
        assert found is not None
        assert found.seq == number + 1
    assert history.read - begun == 2 * 300


def test_a_reader_of_a_new_record_keeps_the_index_of_the_whole_history():
    history = History()
    for number in range(300):
        history.add(f"items/t{number}")
    index = HistoryIndex(history, "alice")
    index.at(history.last, is_whole=True)
    for _ in range(5):
        history.add("items/t0")
        begun = history.read
        index.of("items/t0")
        index.at(history.last, is_whole=True)
        assert history.read - begun <= 4


def test_a_reader_checks_only_the_records_that_tell_of_another_document():
    history = History()
    for kind in ["facts", *["conversations"] * 50]:
        history.add(kind, operation=f"op{len(history.texts)}")
    with noted_calls(is_whole) as checks, noted_calls(operation_of) as operations:
        found = HistoryIndex(history, "alice").of("facts")
    assert found == Latest(1, "put", "facts@1")
    assert len(checks) <= 3  # of the newest record, and of one for each document
    assert not operations


def test_the_newest_document_needs_one_record():
    history = History()
    for number in range(100):
        history.add(f"items/t{number}")
    HistoryIndex(history, "alice").of("items/t99")
    assert history.read == 1


@pytest.mark.parametrize("seed", range(6))
def test_each_answer_is_that_of_a_whole_search(seed):
    chance, history = random.Random(seed), History()
    latest = HistoryIndex(history, "alice")
    kinds = [f"items/t{number}" for number in range(12)]
    for _ in range(150):
        what = chance.random()
        if what < 0.5 or not history.texts:
            some = chance.sample(kinds[:-1], chance.choice([1, 1, 1, 3]))
            history.add(*some, type=chance.choice(["put", "put", "hand"]))
        elif what < 0.52:  # another program removed records, and others follow
            del history.texts[chance.randrange(len(history.texts)) :]
        elif what < 0.53:
            history.add(*kinds[:6], type=SNAPSHOT)
        else:
            checked(history, latest, chance.choice(kinds))


@pytest.mark.parametrize("seed", range(10))
def test_readers_and_the_writer_see_what_a_whole_search_sees(seed):
    chance, history = random.Random(seed), History()
    index = HistoryIndex(history, "alice")
    kinds = [f"items/t{number}" for number in range(8)]
    for _ in range(150):
        what = chance.random()
        if what < 0.25:  # another process
            history.add(*chance.sample(kinds[:-1], 2), operation=chance.choice(["", "o"]))
        elif what < 0.5:
            if chance.random() < 0.8:
                index.at(history.last)
            last = history.last
            made = history.add(chance.choice(kinds[:-1]), operation=chance.choice(["", "o"]))
            index.note(made, history.last, last)
            if chance.random() < 0.2:  # the transaction was not stored
                history.texts.pop()
        elif what < 0.53 and history.texts:
            del history.texts[chance.randrange(len(history.texts)) :]
        elif what < 0.55 and history.texts:
            history.texts[:-1] = []
            history.texts[0] = replaced(history.texts[0])
        elif what < 0.75:
            checked(history, index, chance.choice(kinds))
        else:
            found = index.at(history.last, is_whole=chance.random() < 0.3)
            whole = HistoryIndex(history, "alice").at(history.last, is_whole=True)
            newer = {kind for kind, last in whole.documents.items() if last.seq > found.start}
            assert newer <= found.documents.keys()
            assert found.documents.items() <= whole.documents.items()
            if not found.start:
                assert found.operations == whole.operations


def test_a_reader_without_a_pending_transaction_keeps_the_writers_index():
    history = History()
    for number in range(300):
        history.add(f"items/t{number}", operation=f"o{number}")
    index = HistoryIndex(history, "alice")
    index.at(history.last, is_whole=True)
    last, made = history.last, history.add("items/t299", operation="pending")
    index.note(made, history.last, last)
    pending = history.texts.pop()
    checked(history, index, "items/t299")
    history.texts.append(pending)
    begun = history.read
    assert index.at(history.last, is_whole=True).operations["pending"][0] == made.seq
    checked(history, index, "items/t299")
    assert history.read - begun < 5


def test_a_later_write_does_not_change_an_index_that_is_in_use():
    history = History()
    history.add("items/a")
    index = HistoryIndex(history, "alice")
    found = index.at(history.last, is_whole=True)
    last, made = history.last, history.add("items/a", "items/b")
    index.note(made, history.last, last)
    assert found.documents == {"items/a": (1, "put", "items/a@1")}


def test_records_that_a_snapshot_replaces_are_not_indexed():
    history = History()
    history.add("items/a")  # retention was interrupted before it removed this record
    history.add("items/b", type=SNAPSHOT)
    found = HistoryIndex(history, "alice").at(history.last, is_whole=True)
    assert found.documents.keys() == {"items/b"}


@pytest.mark.parametrize("torn", [20, 3])
def test_a_torn_end_is_not_kept(torn):
    history = History()
    history.add("items/a")
    history.add("items/a", "items/b")
    whole, history.texts[-1] = history.texts[-1], history.texts[-1][:-torn]
    latest = HistoryIndex(history, "alice")
    assert latest.of("items/a") == (1, "put", "items/a@1")
    assert latest.of("items/b") is None
    history.texts[-1] = whole
    assert latest.of("items/b") == (2, "put", "items/b@2")


def test_a_damaged_record_of_the_document_is_an_error():
    history = History()
    history.add("items/a")
    history.add("items/b")
    history.texts[0] = history.texts[0].replace('check = "', 'check = "0')
    with pytest.raises(InvalidTOML):
        HistoryIndex(history, "alice").of("items/a")


def test_an_altered_record_that_was_read_for_another_document_is_an_error():
    history = History()
    for kind in ("items/a", "items/b", "items/c"):
        history.add(kind)
    history.texts[1] = history.texts[1].replace("items/b@2", "items/b@9")
    latest = HistoryIndex(history, "alice")
    assert latest.of("items/a") == (1, "put", "items/a@1")
    for _ in range(2):
        with pytest.raises(InvalidTOML, match="history record 2 was altered"):
            latest.of("items/b")


def test_a_record_that_follows_a_cut_line_is_an_error_too():
    history = History()
    for kind in ("items/a", "items/b", "items/c", "items/d"):
        history.add(kind)
    first, cut, glued, last = history.texts
    history.texts = [
        first,
        cut.partition("\nchanges")[0] + glued,
        last,
    ]  # as they are read from a file
    with pytest.raises(InvalidTOML, match="history record 2 was altered"):
        HistoryIndex(history, "alice").of("items/c")


@pytest.mark.parametrize("line", ['check = "', "seq = "])
def test_a_writer_sees_which_document_an_altered_record_changed(line):
    history = History()
    for kind in ("items/a", "items/b", "items/c"):
        history.add(kind)
    history.texts[1] = history.texts[1].replace(line, f"# {line}")
    index = HistoryIndex(history, "alice")
    with pytest.raises(InvalidTOML):
        index.of("items/b")
    found = index.at(history.last, is_whole=True)
    latest = Latest(1, "put", "items/a@1"), None, Latest(3, "put", "items/c@3")
    assert tuple(found.documents[kind] for kind in ("items/a", "items/b", "items/c")) == latest


class CountingBackend(MemoryBackend):
    """A backend in memory that counts the history records that were read."""

    count = 0

    def records(self, user):
        for text in super().records(user):
            self.count += 1
            yield text


def test_a_first_recall_in_many_documents_reads_history_a_few_times():
    backend = CountingBackend()
    diary = Diary(backend, agent="rules")
    for number in range(300):
        kind = f"items/t{number}" if number < 150 else "items/live"
        diary.engine.write(
            "alice",
            lambda tx, kind=kind: tx.edit(kind).put(("items", "k"), {"text": kind}),
            Source("put"),
        )
    alice, backend.count = Diary(backend, agent="rules").user("alice"), 0
    assert alice.recall("live")
    assert backend.count < 10 * 300


def test_a_rollback_reads_only_the_new_records_again():
    backend = CountingBackend()
    alice = Diary(backend, agent="rules").user("alice")
    for number in range(200):
        alice.blocks.set("plan", f"version {number}")
    for _ in range(3):
        backend.count = 0
        alice.rollback()
        assert backend.count < 50
    assert alice.block("plan").text == "version 198"


def test_a_record_that_was_altered_for_a_while_is_found_again():
    history = History()
    for kind in ("items/a", "items/b", "items/c"):
        history.add(kind)
    whole, history.texts[1] = history.texts[1], history.texts[1].replace("items/b@2", "items/b@9")
    latest = HistoryIndex(history, "alice")
    assert latest.of("items/a") == (1, "put", "items/a@1")
    with pytest.raises(InvalidTOML):
        latest.of("items/b")
    history.texts[1] = whole  # from a backup
    assert latest.of("items/b") == (2, "put", "items/b@2")


class InterruptedText(str):
    """A record whose indexing is interrupted."""

    __slots__ = ()

    def partition(self, _):
        raise KeyboardInterrupt


def test_an_interrupted_note_leaves_no_key_of_a_refused_transaction():
    history = History()
    history.add("items/a")
    index = HistoryIndex(history, "alice")
    index.at(history.last, is_whole=True)
    last, made = history.last, history.add("items/a", operation="refused")
    text = InterruptedText(history.texts.pop())
    with pytest.raises(KeyboardInterrupt):
        index.note(made, text, last)
    assert index.at(last, is_whole=True).operations == {}
