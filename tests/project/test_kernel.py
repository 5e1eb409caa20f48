"""What a reader pastes into a notebook runs in a real kernel, whose event loop runs already."""

from __future__ import annotations

import os

import pytest
from test_readme import README, ROOT, TEST_FILE, blocks, matches

nbclient = pytest.importorskip("nbclient", reason='pip install "tomldiary-kit[test]"')
nbformat = pytest.importorskip("nbformat", reason='pip install "tomldiary-kit[test]"')
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PAGES = [
    README,
    *(ROOT / "docs" / f"{name}.md" for name in ("langgraph", "langchain", "pydantic-ai")),
]


def run(sources, folder):
    """Run cells in a new kernel in a folder; return what each one printed."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    notebook = nbformat.v4.new_notebook(cells=cells)
    client = nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'integrations'}"})
    return [
        "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for cell in cells
    ]


@pytest.fixture
def kernel_folder(tmp_path, monkeypatch):
    """An empty folder; no key, and settings of Jupyter itself stay below it."""
    monkeypatch.setenv("EXTRACTOR_MODEL", "rules")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    work = tmp_path / "work"
    work.mkdir()
    return work


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_of_a_page_runs_in_a_notebook(page, kernel_folder):
    shown, sources = [], []
    for block in blocks(page):
        if block.language == "python" and not TEST_FILE.match(block.text):
            sources.append(block.text)
        elif block.language == "text" and sources:
            shown.append((len(sources) - 1, block))
    printed = run(sources, kernel_folder)
    for number, block in shown:
        assert matches(block.text, printed[number]), f"{block.place} should be:\n{printed[number]}"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name
)
def test_a_notebook_runs_in_a_kernel(path, kernel_folder):
    notebook = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert any(run(sources, kernel_folder))
