"""What needs an optional dependency says which extra installs it, for every extra."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import programs

ROOT = Path(__file__).parents[2]
ALICE = "from tomldiary import Diary; alice = Diary('memory:', agent='rules').user('alice'); "
REPORT = (
    "from tomldiary.evaluation import Collection, Entry, Question, Report, evaluate\n"
    "asked = Collection('a', [Question('tea?', frozenset(['1']))], [Entry('1', 'tea')])\n"
    "Report([evaluate([asked])]).plot('x.png')"
)
STORE = "from tomldiary.importers import carry_over; carry_over(alice, 'langgraph-store', 'postgres://x/y')"
USES = [
    ("cli", "typer", "from tomldiary.__main__ import main; main()"),
    ("cli", "rich", "from tomldiary.__main__ import main; main()"),
    ("langgraph", "langgraph", "import tomldiary_langgraph"),
    ("langchain", "langchain_core", "import tomldiary_langchain"),
    ("pydantic-ai", "pydantic_ai", "import tomldiary_pydantic_ai"),
    ("pydantic-ai", "pydantic_ai", "from tomldiary import DefaultPrefTable, extractor_agent; extractor_agent(DefaultPrefTable)"),
    (
        "openai",
        "pydantic_ai",
        "from tomldiary import Diary; Diary('memory:', agent='openai:gpt-5').user('a').add_turn('x', 'y', 's')",
    ),
    ("chroma", "chromadb", "from tomldiary.hooks.chroma import ChromaHook; ChromaHook('x')"),
    (
        "qdrant",
        "qdrant_client",
        "from tomldiary.hooks.qdrant import QdrantHook; QdrantHook('x', embed=len)",
    ),
    ("embeddings", "wordllama", "from tomldiary.retrieval.embedders import *; local_embedder()"),
    ("embeddings", "numpy", "from tomldiary.retrieval.vector_index import numpy; numpy()"),
    ("firestore", "google.cloud.firestore", "from tomldiary import Diary; Diary('firestore://p/a/b')"),
    ("postgres", "psycopg_pool", "from tomldiary import Diary; Diary('postgresql://localhost/x')"),
    ("postgres", "psycopg", ALICE + STORE),
    ("redis", "redis", "from tomldiary import Diary; Diary('redis://localhost/0')"),
    ("notebook", "pandas", ALICE + "alice.preferences().to_pandas()"),
    ("notebook", "matplotlib", ALICE + "alice.plot_history()"),
    ("notebook", "matplotlib", REPORT),
]  # fmt: skip
BLOCK = """
import importlib.abc, sys
class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == {name!r} or name.startswith({name!r} + "."):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *args: None if name == {name!r} else found(name, *args)
"""


def test_every_extra_has_a_use_here():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert {extra for extra, *_ in USES} == extras.keys() - {"all", "docs", "lint", "test"}


@pytest.mark.parametrize(
    ("extra", "missing", "use"), USES, ids=[f"{extra}-{name}" for extra, name, _ in USES]
)
def test_a_missing_dependency_names_the_command_that_installs_it(extra, missing, use, tmp_path):
    done = programs.run("-c", BLOCK.format(name=missing) + use, cwd=tmp_path)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert f'python -m pip install "tomldiary-kit[{extra}]"' in last
