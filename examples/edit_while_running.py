"""A person edits the file in an editor while an agent keeps writing to it.

Shows that a comment, a changed text and an entry added by hand are kept unchanged, that the agent
uses them at once, and that its writes change only their own entries. Runs offline.
Run: python examples/edit_while_running.py [FOLDER]
"""

from __future__ import annotations

import sys
from difflib import unified_diff
from pathlib import Path
from tempfile import TemporaryDirectory

from tomldiary import Diary

BY_HAND = '''
# Told me on the phone. Do not mention it to anyone!
[preferences.biography.surprise]
text    = """plans a surprise party"""   # in June
'''


def save(path: Path, text: str) -> None:
    """Save like an editor: write a temporary file, then rename it."""
    temporary = path.with_name("preferences.toml~")
    temporary.write_text(text, "utf-8")
    temporary.replace(path)


def main(folder: Path) -> None:
    """Let an agent and a person change one file alternately, and print the changes of both."""
    robin = Diary(folder).user("robin")
    path = folder / "robin" / "preferences.toml"
    robin.upsert_preference("likes", "the spring menu", session_id="spring")
    robin.upsert_preference("routines", "eats at seven", session_id="spring")

    # The person adds a comment at the top, improves a text, and adds an entry with other formatting.
    text = path.read_text("utf-8").replace('"eats at seven"', '"eats at seven sharp"')
    if BY_HAND not in text:
        text = f"# Robin is my favourite guest.\n{text}{BY_HAND}"
    save(path, text)

    # The agent is still running and continues with the edited file.
    robin.upsert_preference("likes", "the summer menu", session_id="summer")
    print("the agent reads:", robin.preferences("routines")["pref001"].text)
    print("and remembers:", robin.recall("is there a party?")[0].text)
    before = path.read_text("utf-8")
    robin.upsert_preference("biography", id="surprise", contexts=["June"], session_id="autumn")
    robin.upsert_preference("routines", id="pref001", session_id="autumn")

    after = path.read_text("utf-8")
    print("\nwhat the agent changed after that:")
    print("\n".join(unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)))
    print(f"\nthe file now:\n{after}")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
