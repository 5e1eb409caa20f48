"""A restaurant-booking agent that learns the preferences of its guests.

Shows a custom extractor: any object with `run(message, *, deps)`. The one here is scripted and uses
the same tools as a model. Runs offline. Run: python examples/booking_agent.py [FOLDER]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TYPE_CHECKING

from pydantic import BaseModel

from tomldiary import Diary, PreferenceItem, tools

if TYPE_CHECKING:
    from tomldiary import MemoryDeps

TABLES = {"terrace": "outdoor quiet", "bar": "lively music", "window": "quiet view"}
CUES = {"quiet": "seating", "window": "seating", "vegan": "diet", "nuts": "diet"}


class Guest(BaseModel):
    """Preferences of a restaurant guest.

    diet    : what may and may not be on the plate
    seating : where the guest likes to sit
    """

    diet: dict[str, PreferenceItem] = {}
    seating: dict[str, PreferenceItem] = {}


class Waiter:
    """Stands in for a model: it searches each message for a few cue words."""

    async def run(self, _message: str, *, deps: MemoryDeps) -> None:
        """Store each sentence with a cue, or confirm the entry that has the same cue."""
        context = SimpleNamespace(deps=deps)
        for sentence in deps.user_msg.split(". "):
            cue = self._cue(sentence)
            if cue is None:
                continue
            category = CUES[cue]
            stored = deps.prefs["preferences"].get(category, {}).items()
            known = next((key for key, item in stored if self._cue(item["text"]) == cue), None)
            text = None if known else sentence  # None confirms the stored text
            print("  tool:", await tools.upsert_preference(context, category, known, text))
        summary = f"Booked a table for {deps.session_id}."
        await tools.update_conversation_summary(context, summary, ["booking"])

    @staticmethod
    def _cue(text: str) -> str | None:
        """Return the cue word of a text; texts with the same cue count as the same wish."""
        return next((cue for cue in CUES if cue in text), None)


def main(folder: Path) -> None:
    """Serve a guest twice, and choose the table from memory the third time."""
    diary = Diary(folder, Guest, agent=Waiter())  # with a model: agent="openai-chat:gpt-5-mini"
    for evening, message in {
        "friday": "A quiet corner with no music, please. I eat vegan",
        "sunday": "Again a quiet corner, please. No nuts for my daughter",
    }.items():
        print(f"{evening}: {message}")
        asyncio.run(diary.update_memory("noor", evening, message, "Certainly."))
    noor = diary.user("noor")
    wish = noor.recall("quiet seating", limit=1)[0].text
    best = max(TABLES, key=lambda name: len({*TABLES[name].split()} & {*wish.lower().split()}))
    print(f"\nNoor books again: the {best} table, because of {wish!r}.\n\n{noor.render()}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
