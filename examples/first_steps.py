"""First steps: turns and direct changes become TOML files that you can read.

Shows the offline rules extractor, direct changes, recall, the text for a prompt, and the file.
Needs no model, no key and no network. Run: python examples/first_steps.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tomldiary import Diary


def main(folder: Path) -> None:
    """Fill a diary in `folder` and print its content."""
    diary = Diary(folder, agent="rules")
    alice = diary.user("alice")

    # 1. Add a turn of a conversation; the extractor decides what to remember.
    alice.add_turn(
        "I'm allergic to walnuts. Could you find a table for tonight?",
        "Noted: no walnuts. Eight o'clock at the Lindenhof?",
        session_id="monday",
    )

    # 2. Or store an entry directly; an equal text is confirmed, not stored twice.
    key, tea = alice.upsert_preference("likes", "green tea", contexts=["morning"])
    key, tea = alice.upsert_preference("likes", "Green tea!", contexts=["office"])
    print(f"likes/{key}: {tea.text}, said {tea.count} times, contexts {tea.contexts}\n")

    # 3. Search for entries.
    for hit in alice.recall("is she allergic to anything?"):
        print(f"recalled {hit.key}: {hit.text} (because of {', '.join(hit.reasons)})")

    # 4. Render the memory for a model: escaped, and within a token budget.
    print(f"\n{alice.render(query='breakfast', max_tokens=200)}\n")

    # 5. The memory is a file that you can open, edit and diff.
    print((folder / "alice" / "preferences.toml").read_text("utf-8"))


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary))
