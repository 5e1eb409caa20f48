"""Makes the pictures of the README from real output: a terminal as SVG, and a notebook's views as PNG.

    python .ci/pictures.py

It needs the extra `all`, and Chromium for the notebook. Run it when the command line or the views change.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tomldiary import Diary

IMAGES = Path(__file__).parents[1] / "docs/images"
COLUMNS = 92
COMMANDS = ["show alice", "search coffee --user alice", "diff --user alice"]
PAGE = """<!doctype html><meta charset="utf-8">
<style>body {{font: 14px system-ui, sans-serif; margin: 16px; width: 620px}} pre {{color: #555; margin: 12px 0 4px}}</style>
{cells}"""


def remembered(folder: str) -> Diary:
    """Return a diary with one user who said three things."""
    diary = Diary(folder, agent="rules")
    alice = diary.user("alice")
    alice.add_turn("I'm allergic to walnuts. I love dark roast.", "Noted.", session_id="monday")
    alice.upsert_preference(
        "likes", "dark roast in the morning", id="pref001", session_id="tuesday"
    )
    alice.add_turn("I never drink coffee after noon.", "Noted.", session_id="wednesday")
    return diary


def printed(command: str, folder: str) -> str:
    """Return what a command prints on a terminal, with its colours."""
    arguments = [sys.executable, "-m", "tomldiary", *command.split()]
    found: list[bytes] = []

    def read(descriptor: int) -> bytes:
        data = os.read(descriptor, 4096)
        found.append(data)
        return data

    os.environ.update(COLUMNS=str(COLUMNS), TERM="xterm-256color", TOMLDIARY_PATH=folder)
    with Path(os.devnull).open("w") as silent:
        ours = os.dup(1)
        os.dup2(silent.fileno(), 1)  # pty.spawn copies to it
        try:
            pty.spawn(arguments, read)
        finally:
            os.dup2(ours, 1)
    return b"".join(found).decode().replace("\r\n", "\n")


def terminal(folder: str) -> None:
    """Write `terminal.svg`."""
    console = Console(width=COLUMNS, record=True, file=io.StringIO(), force_terminal=True)
    for command in COMMANDS:
        console.print(Text.assemble(("$ ", "green"), f"tomldiary {command}"))
        console.print(Text.from_ansi(printed(f"{command} --path {folder}", folder)))
    svg = console.export_svg(title="tomldiary", unique_id="tomldiary")
    svg = re.sub(r"@font-face \{.*?\}", "", svg, flags=re.DOTALL)  # no request to another host
    (IMAGES / "terminal.svg").write_text(re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE), "utf-8")


def notebook(diary: Diary, folder: str) -> None:
    """Write `notebook.png`."""
    alice = diary.user("alice")
    shown = {
        'alice = diary.user("alice"); alice': alice,
        'alice.recall("coffee")': alice.recall("coffee"),
        "alice.history(limit=3)": alice.history(limit=3),
    }
    cells = "".join(f"<pre>{code}</pre>{view._repr_html_()}" for code, view in shown.items())
    page = Path(folder) / "page.html"
    page.write_text(PAGE.format(cells=cells), "utf-8")
    target = IMAGES / "notebook.png"
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    subprocess.run(  # noqa: S603 - our own arguments
        [*browser, "--window-size=660,690", f"--screenshot={target}", page.as_uri()],
        check=True,
        capture_output=True,
    )


def main() -> None:
    """Make both pictures."""
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        diary = remembered(f"{folder}/memories")
        terminal(f"{folder}/memories")
        notebook(diary, folder)


if __name__ == "__main__":
    main()
