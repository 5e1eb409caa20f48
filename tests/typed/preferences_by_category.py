"""The preferences of a user, as mypy and pyright see them."""

from typing import assert_type

from tomldiary import Diary, PreferenceItem

alice = Diary("memory:").user("alice")
assert_type(alice.preferences("likes")["pref001"], PreferenceItem)
assert_type(alice.preferences()["likes"]["pref001"], PreferenceItem)
assert_type(alice.recall("tea", limit=3)[0].text, str)


async def main() -> None:
    """Read the same with coroutines."""
    assert_type((await alice.apreferences("likes"))["pref001"], PreferenceItem)
    assert_type((await alice.apreferences())["likes"]["pref001"], PreferenceItem)
