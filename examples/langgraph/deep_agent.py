"""Files of deepagents in a diary: `StoreBackend` stores each file of an agent as an item.

This example calls the backend directly; an application passes it to `create_deep_agent(backend=…)`.
Needs: pip install deepagents
Run: python examples/langgraph/deep_agent.py [FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deepagents.backends import StoreBackend

from tomldiary_langgraph import DiaryStore


def main(folder: Path) -> None:
    """Write, edit and search an agent's files."""
    backend = StoreBackend(store=DiaryStore(folder), namespace=lambda _: ("robin", "files"))
    backend.write("/notes/table.md", "By the window.\nNot by the door.\n")
    backend.write("/notes/food.md", "No walnuts.\n")
    backend.edit("/notes/table.md", "window", "garden")
    print(backend.read("/notes/table.md").file_data["content"].splitlines()[0])
    print([found["path"] for found in backend.ls("/notes/").entries])
    print([match["path"] for match in backend.grep("walnuts").matches])
    print((folder / "robin/items/files.toml").read_text("utf-8").count("[items."), "files")


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
