"""What README and docs show is run, compared and followed, page by page, as a reader would do it.

In the order of a page, in one folder and one namespace:

python    is run, with `await` allowed; one that begins with `# test_….py` is a file for pytest
text      is what the Python block before it printed
toml      is TOML; one that begins with `# memories/….toml` is that file as it is then
console   is a session: each `$` line is run, and what follows is what it prints

Time stamps are taken to be equal everywhere, and outside TOML "…" stands for any text.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pytest

import pictures
import programs
import tomldiary
from command_line import call
from count_lines import ADAPTERS
from tomldiary import Diary, UserDiary
from tomldiary.storage import protocol

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
SET_UP = [
    'python -m pip install ".[all]" && python -m tomldiary demo',
    'python -m pip install -e ".[all,test]" && python -m pytest',
]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+\+00:00")
FILE = re.compile(r"# (memories/\S+\.toml)\n")
NEEDS = re.compile(r"# needs tomldiary-kit\[([\w,]+)\]\n")
MODULES = {"chroma": "chromadb", "qdrant": "qdrant_client"}
"""Libraries that are tested in an environment of their own."""
HOOKS = "reopened or processes_lose"
"""The tests of a suite that call the methods of a class on a page; tests/storage/test_backends.py runs the others."""
TEST_FILE = re.compile(r"# (test_\w+\.py)\n")


class Block(NamedTuple):
    language: str
    text: str
    place: str
    line: int


def blocks(page):
    text = page.read_text("utf-8")
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start()) + 1
        yield Block(found[1], found[2], f"{name(page)}:{line}", line)


def name(page):
    return page.relative_to(ROOT).as_posix()


def timeless(text):
    return TIME.sub("TIME", text).strip()


def matches(shown, found):
    pattern = re.escape(timeless(shown)).replace("…", ".*")
    return re.fullmatch(pattern, timeless(found)) is not None


def in_another_process(*arguments):
    """Run Python like a reader who installed this tree, and return its exit code and what it prints."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "integrations")])
    env = {**os.environ, "PYTHONPATH": paths, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = programs.run(*arguments, env=env)
    return done.returncode, done.stdout + done.stderr


class Reader:
    """Follows one page."""

    def __init__(self, loop):
        self.loop = loop
        self.names = {"__name__": "page"}
        self.printed = ""
        self.is_run = True

    def python(self, block):
        file = TEST_FILE.match(block.text)
        if file is not None:
            Path(file[1]).write_text(block.text, "utf-8")
            options = ["-p", "no:cacheprovider", "-q", "-k", HOOKS]
            code, told = in_another_process("-m", "pytest", *options, file[1])
            assert code == 0, f"{block.place}\n{told}"
            assert "passed" in told
            return
        needs = NEEDS.match(block.text)
        self.is_run = needs is None or all(find_spec(MODULES[each]) for each in needs[1].split(","))
        if not self.is_run:
            return
        # As many lines in front as on the page: a traceback names the page's own line.
        code = compile(
            "\n" * block.line + block.text,
            block.place,
            "exec",
            ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            dont_inherit=True,
        )
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = eval(code, self.names)  # noqa: S307 - running what the page shows is the test
            if inspect.iscoroutine(result):
                self.loop.run_until_complete(result)
        self.printed = printed.getvalue()

    def text(self, block):
        assert not self.is_run or matches(block.text, self.printed), (
            f"{block.place} should be:\n{self.printed}"
        )

    def toml(self, block):
        tomllib.loads(block.text)
        file = FILE.match(block.text)
        if file is not None:
            assert timeless(block.text[file.end() :]) == timeless(Path(file[1]).read_text("utf-8"))

    def console(self, block):
        for session in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, _, shown = session.partition("\n")
            command = shlex.split(line)
            assert command[:3] == ["python", "-m", "tomldiary"], f"{block.place}: {line}"
            done = call(*command[3:], cwd=Path.cwd())
            told = done.stdout + done.stderr
            assert matches(shown, told), f"{block.place}: {line} prints:\n{told}"


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """A reader in an empty folder, with no key and one event loop."""
    monkeypatch.chdir(tmp_path)
    for name in ("EXTRACTOR_MODEL", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)  # else run_sync of a framework makes one and leaves it open
    yield Reader(loop)
    asyncio.set_event_loop(None)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_of_a_page_runs_with_the_shown_output(page, reader):
    for block in blocks(page):
        getattr(reader, block.language, lambda _: None)(block)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_block_names_its_language(page):
    known = {"python", "text", "toml", "console", "bash", "diagram"}
    assert [block.place for block in blocks(page) if block.language not in known] == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_code_in_a_list_is_shown_as_code(page):
    """The site shows code within a list as code if it has a fence that is indented by four spaces."""
    text = page.read_text("utf-8")
    assert re.findall(r"^ {1,3}```.*", text, re.MULTILINE) == []
    assert re.findall(r"^(?:\d+\.|-) .+(?:\n +.+)*\n\n {4}(?!```)\S.*", text, re.MULTILINE) == []


def test_the_readme_begins_with_ten_lines_and_the_file_they_wrote():
    first, second = list(blocks(README))[:2]
    assert first.language == "python"
    assert len(first.text.splitlines()) <= 10
    assert second.language == "toml"
    assert FILE.match(second.text)
    before = README.read_text("utf-8").partition("```")[0]
    assert len(before.split()) <= 55


def test_the_picture_of_a_terminal_shows_the_score_of_a_hit(tmp_path):
    diary = pictures.remembered(str(tmp_path))
    (hit,) = diary.user("alice").recall("coffee")
    assert f"{hit.score:.2f}" in (ROOT / "docs/images/terminal.svg").read_text("utf-8")


@pytest.mark.parametrize("line", SET_UP)
def test_the_readme_shows_the_set_up_commands(line):
    shown = [block.text.splitlines() for block in blocks(README) if block.language == "bash"]
    assert any(line in lines for lines in shown)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_link_targets_a_file_and_every_claim_a_test(page):
    wrong = []
    for text, target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if target.startswith(("https://", "http://", "#")):  # mkdocs checks the anchors
            continue
        path = page.parent / target.partition("#")[0]
        if not path.is_file():
            wrong.append(f"{target} is not there")
        elif ROOT / "tests" in path.resolve().parents and not text.startswith("`"):
            # The words of a link to a test are the test's name.
            test = f"def test_{re.sub(r'[^a-z0-9]+', '_', text.lower())}("
            if test not in path.read_text("utf-8"):
                wrong.append(f"{target} has no {test})")
    assert wrong == []


def test_the_readme_has_at_most_200_lines():
    assert len(README.read_text("utf-8").splitlines()) <= 200


def test_every_page_of_the_docs_is_in_the_navigation_once():
    listed = re.findall(r"^ +- (\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize(
    ("module", "pages"),
    [
        ("tomldiary", ("core", "user", "errors")),
        ("tomldiary.evaluation", ("core",)),
        ("tomldiary.importers", ("core",)),
        ("tomldiary.ingest", ("core",)),
        ("tomldiary.storage", ("storage",)),
        ("tomldiary.testing", ("storage",)),
        *((name, (name.partition("_")[2].replace("_", "-"),)) for name in ADAPTERS),
    ],
)
def test_every_public_name_has_an_entry_in_the_reference(module, pages):
    shown = "".join((ROOT / f"docs/reference/{page}.md").read_text("utf-8") for page in pages)
    entries = set(re.findall(r"^::: ([\w.]+)$", shown, re.MULTILINE))
    public = importlib.import_module(module)
    missing = {
        name
        for name in public.__all__
        if not name.startswith("__")
        and not (
            f"tomldiary.{name}" in entries and getattr(tomldiary, name) is getattr(public, name)
        )
        and f"{module}.{name}" not in entries
        and getattr(getattr(public, name), "__module__", "") not in entries
    }
    assert missing == set()


def test_every_verb_of_a_user_is_on_the_reference_page():
    page = (ROOT / "docs/reference/user.md").read_text("utf-8")
    shown = {"diary", "user_id"}
    for entry in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE):
        module, _, kind = entry.rpartition(".")
        shown |= set(vars(getattr(importlib.import_module(module), kind)))
    alice = UserDiary(Diary("memory:"), "alice")
    assert [verb for verb in dir(alice) if not verb.startswith("_") and verb not in shown] == []


def test_every_example_is_linked_from_a_page():
    pages = "".join(page.read_text("utf-8") for page in PAGES)
    examples = [path.relative_to(ROOT).as_posix() for path in (ROOT / "examples").rglob("*.py")]
    assert len(examples) > 15
    assert [each for each in examples if f"{each})" not in pages] == []


def test_every_test_in_the_table_of_stores_exists():
    page = (ROOT / "docs/langgraph-store.md").read_text("utf-8")
    table = page.partition("## Behaviour where stores differ")[2].partition("\n## ")[0]
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "tomldiary/testing/store").glob("*.py")]
    known = "".join(file.read_text("utf-8") for file in files)
    named = re.findall(r"`(test_\w+)(…?)`", table)
    assert len(named) > 30
    assert [name for name, more in named if f"def {name}{'' if more else '('}" not in known] == []


def test_the_pages_of_the_adapters_answer_the_same_questions():
    asked = []
    for page in ("langgraph", "langchain", "pydantic-ai"):
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        table = text.partition("## At a glance")[2].partition("## ")[0]
        asked.append(re.findall(r"^\| ([^|`-]+) \|", table, re.MULTILINE))
    assert len(asked[0]) > 10
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.parametrize("page", ["langgraph", "langchain", "pydantic-ai", "scaling"])
def test_a_page_to_begin_with_has_at_most_2300_words(page):
    """What few readers need is on a page of its own."""
    assert len((ROOT / f"docs/{page}.md").read_text("utf-8").split()) <= 2300


def templates():
    """Yield each text of the packages; for an f-string, a pattern that it and its values match."""
    for path in [*(ROOT / "tomldiary").rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (re.escape(part.value) if isinstance(part, ast.Constant) else ".+" for part in node.values)  # fmt: skip
                yield "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)


def test_every_message_in_the_tables_of_errors_is_in_the_code():
    """A "…" on the page stands for a part that differs."""
    quoted = []
    for page in ("langgraph", "langchain", "pydantic-ai"):
        text = (ROOT / f"docs/{page}.md").read_text("utf-8")
        table = text.partition("## Errors and warnings")[2].partition("\n## ")[0]
        quoted += re.findall(r'^\| "([^"|]+)"', table, re.MULTILINE)
    assert len(quoted) > 15
    known = {each for each in templates() if len(each) > 20}
    wrong = []
    for message in quoted:
        parts = [re.escape(part) for part in message.split("…") if part.strip()]
        is_part = all(any(part in each for each in known) for part in parts)
        if not is_part and not any(re.match(each, message) for each in known):
            wrong.append(message)
    assert wrong == []


def test_the_page_about_backends_names_every_protocol_and_member():
    rows = re.findall(r"^\| `.*", (ROOT / "docs/backends.md").read_text("utf-8"), re.MULTILINE)
    named = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`", "\n".join(rows)))))
    kinds = {
        name: kind
        for name, kind in vars(protocol).items()
        if getattr(kind, "_is_protocol", False) and kind.__module__ == protocol.__name__
    }
    members = {
        each for kind in kinds.values() for each in (*vars(kind), *inspect.get_annotations(kind))
    }
    parts = {"Backend", "BackendProtocol", "DocumentSource", "HistorySource"}
    missing = (kinds.keys() - parts | members) - named
    assert {each for each in missing if not each.startswith("_")} == set()


def test_every_path_named_by_the_architecture_page_exists():
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    named = set(re.findall(r"`((?:tomldiary|integrations)/[\w./]*)`", text))
    assert len(named) > 20
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
