"""The preferences of a user, as mypy and pyright see them."""

from typing import assert_type

import tomldiary.storage
import tomldiary.writer
from tomldiary import Diary, PreferenceItem

alice = Diary("memory:").user("alice")
assert_type(alice.preferences("likes")["pref001"], PreferenceItem)
assert_type(alice.preferences()["likes"]["pref001"], PreferenceItem)
assert_type(alice.recall("tea", limit=3)[0].text, str)

# A misspelled name is found.
tomldiary.Dairy("memory:")  # type: ignore[attr-defined]
tomldiary.storage.FolderBakend("./memories")  # type: ignore[attr-defined]
tomldiary.writer.MemoryWritter()  # type: ignore[attr-defined]


async def main() -> None:
    """Read the same with coroutines."""
    assert_type((await alice.apreferences("likes"))["pref001"], PreferenceItem)
    assert_type((await alice.apreferences())["likes"]["pref001"], PreferenceItem)
