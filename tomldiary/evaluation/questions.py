"""Labelled questions from your own JSON Lines files, and from LoCoMo, PrefEval and BEAM.

Your own files have lines of two forms. `user` names a memory, and is optional if there is only one:

    {"id": "t1", "text": "Anna is allergic to nuts.", "user": "anna", "session": "s1"}
    {"question": "What can Anna not eat?", "gold": ["t1"], "user": "anna", "kind": "food"}

Without lines of the first form, `gold` names entries of an existing diary by their keys, such as "likes/pref001".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from tomldiary.errors import InvalidValue
from tomldiary.ingest.source import as_list, as_object, as_path, parse, read_text
from tomldiary.toml.values import checked_names

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

StoredAs = Literal["preferences", "episodes"]
_KNOWN = "a .jsonl file, or JSON of LoCoMo, PrefEval or BEAM"
_TURN = re.compile(r"D0*(\d+):0*(\d+)")


@dataclass(frozen=True, slots=True)
class Entry:
    """A text to find."""

    id: str
    text: str
    session: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and the ids of the entries that answer it."""

    text: str
    gold: frozenset[str]
    kind: str = ""
    """A label to report by, such as "temporal"."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "gold", frozenset(checked_names(self.gold, "gold")))


@dataclass(frozen=True, slots=True)
class Collection:
    """One memory with its questions."""

    name: str
    """The user of the memory; "" if the file names none."""
    questions: list[Question] = field(default_factory=list[Question])
    entries: list[Entry] = field(default_factory=list[Entry])
    """The entries in chronological order; empty if the memory exists already."""
    stored_as: StoredAs = "preferences"
    """The kind of the entries in a diary."""


def load_questions(path: str | os.PathLike[str]) -> list[Collection]:
    """Read labelled questions from a file or a folder, whose format is detected from the content.

    Args:
        path: A `.jsonl` file of your own; LoCoMo's JSON file; a PrefEval topic or a folder of them; a BEAM chat
            (a folder with `chat.json`) or a folder of them.

    Returns:
        The collections that have questions. Questions without known evidence are left out.

    Raises:
        InvalidValue: The format is unknown or a line is invalid; the message has the file and the line.
    """
    place = as_path(path)
    found = list(_folder(place)) if place.is_dir() else _records(place)
    found = [each for each in found if each.questions]
    if not found:
        raise InvalidValue(
            "no labelled question was found. Give a .jsonl file, or a file or folder of LoCoMo, PrefEval or BEAM.",
            where=str(path),
        )
    return found


def together(collections: Iterable[Collection]) -> Collection:
    """Return one memory with the entries and questions of all collections."""
    every = list(collections)
    return Collection(
        "together",
        [
            replace(each, gold=frozenset(f"{one.name}/{key}" for key in each.gold))
            for one in every
            for each in one.questions
        ],
        [
            Entry(f"{one.name}/{each.id}", each.text, f"{one.name}/{each.session}")
            for one in every
            for each in one.entries
        ],
        every[0].stored_as if every else "preferences",
    )


def _folder(folder: Path) -> Iterator[Collection]:
    chats = sorted(folder.rglob("chat.json"))
    if chats:
        for chat in chats:
            yield from _records(chat)
        return
    for file in sorted(folder.glob("*.json")):
        yield from _records(file)


def _records(file: Path) -> list[Collection]:
    try:
        return list(_file(file))
    except (AttributeError, KeyError, TypeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else "a value has another type"  # fmt: skip
        raise InvalidValue(
            f"a record does not have the format of LoCoMo, PrefEval or BEAM: {reason}.",
            where=str(file),
        ) from error


def _file(file: Path) -> Iterator[Collection]:
    if file.suffix == ".jsonl":
        yield from _own(file)
        return
    if file.name == "chat.json":
        yield _beam(file)
        return
    data: Any = _json(file)
    listed = cast("list[Any]", data) if isinstance(data, list) else []
    rows = [cast("dict[str, Any]", row) for row in listed if isinstance(row, dict)]
    if rows and "conversation" in rows[0]:
        for row in rows:
            yield _locomo(row)
    elif rows and "preference" in rows[0]:
        yield Collection(
            file.stem,
            [Question(str(row["question"]), frozenset([str(n)])) for n, row in enumerate(rows)],
            [Entry(str(n), str(row["preference"])) for n, row in enumerate(rows)],
        )
    else:
        raise InvalidValue(
            "this JSON file has the format of neither LoCoMo nor PrefEval. Write your own questions as .jsonl.",
            where=str(file),
        )


def _json(file: Path) -> Any:
    return parse(read_text(file), str(file), _KNOWN)


def _own(file: Path) -> Iterator[Collection]:
    entries: dict[str, dict[str, Entry]] = {}
    questions: dict[str, list[Question]] = {}
    for number, line in enumerate(read_text(file).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{file}:{number}"
        row: Any = parse(line, str(file), _KNOWN, line=number)
        if not isinstance(row, dict):
            raise InvalidValue("expected a JSON object.", where=where)
        row = cast("dict[str, Any]", row)
        user = str(row.get("user", ""))
        if "question" in row:
            named: Any = row.get("gold")
            if not isinstance(named, list) or not named:
                raise InvalidValue('a question needs "gold", a list of ids.', where=where)
            ids = frozenset(map(str, cast("list[Any]", named)))
            asked = Question(str(row["question"]), ids, str(row.get("kind", "")))
            questions.setdefault(user, []).append(asked)
        elif "id" in row and "text" in row:
            entry = Entry(str(row["id"]), str(row["text"]), str(row.get("session", "")))
            known = entries.setdefault(user, {})
            if entry.id in known:
                raise InvalidValue(
                    f"the id {entry.id} is given twice. Give each text its own id.", where=where
                )
            known[entry.id] = entry
        else:
            raise InvalidValue('expected "question" and "gold", or "id" and "text".', where=where)
    for user, asked in questions.items():
        given = entries.get(user, {})
        gold = {key for each in asked for key in each.gold}
        missing = sorted(gold - given.keys()) if entries else []
        if missing:
            raise InvalidValue(
                f"gold names unknown ids: {', '.join(missing[:5])}. Name the ids of texts in this file.",
                where=str(file),
            )
        has_sessions = any(entry.session for entry in given.values())
        yield Collection(
            user, asked, [*given.values()], "episodes" if has_sessions else "preferences"
        )


def _locomo(row: Mapping[str, Any]) -> Collection:
    entries: list[Entry] = []
    for name, session in row["conversation"].items():
        if not re.fullmatch(r"session_\d+", name):
            continue
        for turn in session:
            caption = f" {turn['blip_caption']}" if turn.get("blip_caption") else ""
            text = f"{turn['speaker']}: {turn['text']}{caption}"
            entries.append(Entry(str(turn["dia_id"]), text, name))
    known = {entry.id for entry in entries}
    questions: list[Question] = []
    for each in row["qa"]:
        evidence = cast("list[str]", each.get("evidence") or [])
        found = {f"D{a}:{b}" for text in evidence for a, b in _TURN.findall(text)}
        if gold := found & known:
            questions.append(
                Question(each["question"], frozenset(gold), str(each.get("category", "")))
            )
    return Collection(str(row.get("sample_id", "")), questions, entries, "episodes")


def _beam(chat: Path) -> Collection:
    entries = [
        Entry(str(each["id"]), f"{each.get('role', 'user')}: {each['content']}", chat.parent.name)
        for each in map(as_object, _values(_json(chat)))
        if "content" in each and "id" in each
    ]
    known = {entry.id for entry in entries}
    questions: list[Question] = []
    for file in sorted(chat.parent.rglob("probing_questions.json")):
        for kind, rows in _json(file).items():
            for row in rows:
                named = _values(row.get("source_chat_ids"))
                gold = known & {str(each) for each in named if isinstance(each, int | str)}
                if gold:
                    questions.append(Question(row["question"], frozenset(gold), kind))
    return Collection(chat.parent.name, questions, entries, "episodes")


def _values(value: object) -> Iterator[object]:
    """Yield a JSON value and all values inside it."""
    yield value
    for each in (*as_object(value).values(), *as_list(value)):
        yield from _values(each)
