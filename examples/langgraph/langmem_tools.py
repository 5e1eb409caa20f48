"""langmem's memory tools with a diary: the memories of the agent are a TOML file.

This example calls the tools directly; an application passes them to an agent. Needs: pip install langmem
Run: python examples/langgraph/langmem_tools.py [FOLDER]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from langmem import create_manage_memory_tool, create_search_memory_tool

from tomldiary_langgraph import DiaryStore


def main(folder: Path) -> None:
    """Store and find memories."""
    store = DiaryStore(folder)
    namespace = ("{langgraph_user_id}", "memories")  # a template of langmem's
    manage = create_manage_memory_tool(namespace, store=store)
    search = create_search_memory_tool(namespace, store=store)
    robin = {"configurable": {"langgraph_user_id": "robin"}}
    print(manage.invoke({"content": "Likes tables by the window."}, robin).split(" ")[0])
    print(manage.invoke({"content": "Is allergic to walnuts."}, robin).split(" ")[0])
    for question in ("Which table?", "walnut"):  # only the best match is returned
        found = search.invoke({"query": question.replace("table?", "tables"), "limit": 1}, robin)
        print(f"{question} {'window' in found} {'walnuts' in found}")
    entries = tomllib.loads((folder / "robin/items/memories.toml").read_text("utf-8"))["items"]
    print(sorted(entry["content"] for entry in entries.values()))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(Path(sys.argv[1]))
    else:
        with TemporaryDirectory() as temporary:
            main(Path(temporary))
