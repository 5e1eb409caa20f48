"""A custom preference table with custom fields, loaded and validated by type.

Shows a subclass of `PreferenceItem`, an extractor that sets its fields, typed loading of the file, and
answers to invalid requests. Runs offline. Run: python examples/custom_schema.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field, ValidationError

from tomldiary import Diary, PreferenceItem, PreferenceLoader, show_preferences_schema

if TYPE_CHECKING:
    from tomldiary import MemoryDeps


class Dish(PreferenceItem):
    """A dish, and how hot it should be."""

    heat: int = Field(
        default=0, ge=0, le=5, description="0 is mild, 5 is as hot as the kitchen can"
    )


class Kitchen(BaseModel):
    """What a cook remembers of a household.

    dishes : what they like to eat
    tools  : what is in their kitchen
    """

    dishes: dict[str, Dish] = {}
    tools: dict[str, PreferenceItem] = {}


def listen(_message: str, *, deps: MemoryDeps) -> None:
    """Stand in for a model that extracts a dish and its heat."""
    deps.upsert("dishes", None, "green curry", ["weekend"], fields={"heat": 4})


def request(loader: PreferenceLoader[Kitchen], category: str, body: Any) -> dict[str, Any]:
    """Answer like a web API: with the accepted entries, or with the validation errors."""
    try:
        entries = loader.validate_partial(category, body)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)
        return {"error": [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in wrong]}
    except ValueError as error:
        return {"error": [str(error)]}
    return {"accepted": list(entries)}


def main(folder: Path) -> None:
    """Store a dish, load it typed, and try three requests."""
    print(show_preferences_schema(Kitchen), "\n")
    diary = Diary(folder, Kitchen, agent=listen)
    home = diary.user("household-7")
    home.add_turn("Green curry again on Saturday, hot please!", "With pleasure.", session_id="s1")
    home.upsert_preference("tools", "no oven")

    loader = PreferenceLoader(Kitchen)
    kitchen = loader.load_from_file(folder / "household-7" / "preferences.toml")
    for key, dish in kitchen.dishes.items():
        print(f"dishes/{key}: {dish.text}, heat {dish.heat} ({type(dish).__name__})")

    print(request(loader, "dishes", {"laksa": {"text": "laksa", "heat": 3}}))
    print(request(loader, "dishes", {"phaal": {"text": "phaal", "heat": 9}, "water": {}}))
    print(request(loader, "drinks", {}))


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
