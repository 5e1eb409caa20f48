"""What a real TOMLDiary 0.9 does to a folder; run by a Python that has it installed.

`make FOLDER` writes the golden files beside this script (as user "guest"); `update FOLDER USER` loads
what another program wrote, changes it with every tool, and saves it; `needs FOLDER` tells which fields
of an entry it cannot do without. Each line of the input is one of these, as a list in JSON. A line
answers it: whether it was done, and the result or the error.
"""

import asyncio
import json
import sys
import tomllib
import traceback
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import tomli_w
from pydantic import BaseModel

from tomldiary import Diary, PreferenceItem, tools
from tomldiary.backends import LocalBackend

EVENING = datetime(2025, 3, 14, 18, 30, tzinfo=UTC)
FIELDS = ("text", "contexts", "_count", "_created", "_updated", "_created_by", "_updated_by")


class GuestTable(BaseModel):
    """
    tastes    : dishes and drinks a guest likes
    allergies : what must not be on the plate
    occasions : evenings worth remembering
    """

    tastes: dict[str, PreferenceItem] = {}
    allergies: dict[str, PreferenceItem] = {}
    occasions: dict[str, PreferenceItem] = {}


class Scripted:
    """Calls the tools it was told to call, as a model would."""

    def __init__(self):
        self.calls = []
        self.answers = []

    async def run(self, message, *, deps):
        for name, arguments in self.calls:
            answer = await getattr(tools, name)(SimpleNamespace(deps=deps), **arguments)
            self.answers.append(answer)


def upsert(category, **arguments):
    return "upsert_preference", {"category": category, **arguments}


def summary(text, *keywords):
    return "update_conversation_summary", {"summary": text, "keywords": list(keywords)}


TURNS = {
    "booking-1": [
        [
            upsert("tastes", text="orecchiette with turnip tops", contexts=["dinner", "starter"]),
            upsert("tastes", text='the house red, "not too cold"', contexts=["dinner"]),
            upsert("allergies", text="hazelnuts", contexts=["health"]),
            summary(
                "Booked a corner table for two; asked what is free of nuts.", "booking", "nuts"
            ),
        ],
        [
            upsert("tastes", id="pref001", contexts=["lunch"]),
            upsert("allergies", id="pref001", text="hazelnuts and almonds"),
            upsert("occasions", text="Zoë's birthday, 14 March\nwith candles", contexts=["family"]),
        ],
    ],
    "booking-2": [
        [
            upsert("tastes", id="pref002"),
            upsert("tastes", text="affogato"),
            upsert("occasions", text="wedding anniversary in May"),
            ("forget_preference", {"category": "occasions", "id": "pref002"}),
            summary("Changed the time to 19:30.", "booking"),
        ]
    ],
}


def diary_in(folder):
    return Diary(LocalBackend(Path(folder)), GuestTable, agent=Scripted())


async def make(folder):
    diary, now = diary_in(folder), EVENING
    for session, turns in TURNS.items():
        for calls in turns:
            diary.agent.calls = calls
            await diary.update_memory("guest", session, "a question", "an answer", context_now=now)
            now += timedelta(minutes=7)


async def update(folder, user):
    diary = diary_in(folder)
    diary.agent.calls = [
        ("list_categories", {}),
        ("list_preferences", {}),
        upsert("tastes", id="pref001", text="ravioli with sage", contexts=["supper"]),
        upsert("allergies", id="new", text="celery"),
        ("list_conversation_summary", {"session_id": "visit-1"}),
        summary("Asked about the wine list.", "wine"),
    ]
    await diary.update_memory(user, "visit-2", "a question", "an answer")
    shown = [await diary.pretty_preferences(user), await diary.pretty_conversations(user)]
    return {"answers": diary.agent.answers, "shown": shown}


async def needs(folder):
    needed = {}
    for field in FIELDS:
        await make(folder)
        path = Path(folder) / "guest" / "preferences.toml"
        data = tomllib.loads(path.read_text("utf-8"))
        del data["preferences"]["tastes"]["pref001"][field]
        path.write_text(tomli_w.dumps(data), "utf-8")
        diary = diary_in(folder)
        diary.agent.calls = [
            ("list_preferences", {}),
            upsert("tastes", id="pref001"),
            upsert("tastes", id="pref001", text="plain orecchiette", contexts=["lunch"]),
        ]
        try:
            await diary.update_memory("guest", "booking-2", "a question", "an answer")
            await diary.pretty_preferences("guest")
        except KeyError as error:
            needed[field] = repr(error)
        path.unlink()
    return needed


if __name__ == "__main__":
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            work = {"make": make, "update": update, "needs": needs}[name]
            answer = True, asyncio.run(work(*arguments))
        except Exception:  # noqa: BLE001 - the test that asked shows it, and others may ask on
            answer = False, traceback.format_exc()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
