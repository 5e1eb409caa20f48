"""What a reader pastes into a notebook runs in a real kernel, whose event loop runs already."""

from __future__ import annotations

import pytest
from test_readme import README, ROOT, TEST_FILE, blocks, matches

from kernels import execute, running_kernel

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

PAGES = [
    README,
    *(ROOT / "docs" / f"{name}.md" for name in ("langgraph", "langchain", "pydantic-ai")),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with running_kernel(tmp_path_factory.mktemp("pages")) as client:
        yield client


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_of_a_page_runs_in_a_notebook(page, client, tmp_path):
    shown, sources = [], []
    for block in blocks(page):
        if block.language == "python" and not TEST_FILE.match(block.text):
            sources.append(block.text)
        elif block.language == "text" and sources:
            shown.append((len(sources) - 1, block))
    cells = execute(client, [f"%cd -q {tmp_path}", *sources])[1:]
    printed = [
        "".join(output.get("text", "") for output in cell.outputs if output.get("name") == "stdout")
        for cell in cells
    ]
    told = [each.text for cell in cells for each in cell.outputs if each.get("name") == "stderr"]
    assert "".join(told) == ""
    for number, block in shown:
        assert matches(block.text, printed[number]), f"{block.place} should be:\n{printed[number]}"
