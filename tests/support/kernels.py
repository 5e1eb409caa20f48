"""A Jupyter kernel in which many notebooks run one after another: what they import is imported once."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import nbformat
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

ROOT = Path(__file__).parents[2]


@contextmanager
def running_kernel(folder):
    """Return a client of a new kernel that works in a folder, without keys, and keeps its settings there."""
    hidden = {"EXTRACTOR_MODEL", "OPENAI_API_KEY", "TOMLDIARY_BENCH_DATA"}
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    own = {"IPYTHONDIR": str(folder)}
    env |= {**own, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "integrations")])}
    manager = KernelManager()
    with patch.dict(os.environ, own):  # the client looks for kernels there
        manager.start_kernel(cwd=str(folder), env=env)
    client = NotebookClient(nbformat.v4.new_notebook(), km=manager, timeout=120, coalesce_streams=True)  # fmt: skip
    yield client
    client.kc.stop_channels()
    manager.shutdown_kernel(now=True)
    manager.cleanup_resources()


def execute(client, folder, sources):
    """Run cells in a folder, in a kernel that has forgotten all names; return them with what each one printed."""
    # What was imported stays, so that garbage collection need not look at it for each notebook.
    first = ("%reset -f", "import gc; gc.freeze(); del gc", f"%cd -q {folder}")
    cells = [nbformat.v4.new_code_cell(source) for source in (*first, *sources)]
    client.nb = nbformat.v4.new_notebook(cells=cells)
    client.execute()
    return cells[len(first) :]
