"""Count the code lines and modules of the packages, and how far the tests reach into them.

Run: python .ci/count_lines.py

A code line holds code: blank lines, comments and docstrings are not counted. A module at an import path of
TOMLDiary 0.9 only repeats names; it is counted apart. `tests/project/test_structure.py` checks what is counted here.
"""

from __future__ import annotations

import ast
import gc
import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
CORE = "tomldiary"
ADAPTERS = tuple(sorted(each.parent.name for each in ROOT.glob("integrations/*/__init__.py")))
MOST_MODULES = 12  # in one package, beside its subpackages
MOST_FLAT = 6  # in tomldiary/ itself, beside __init__ and __main__
MOST_PRIVATE = 59  # uses of private names and patched attributes in tests
MOST_OLD_PATH_LINES = 8  # code lines of a module that only repeats names for TOMLDiary 0.9


class Module(NamedTuple):
    """One file of a package."""

    name: str
    path: Path
    source: str
    tree: ast.Module

    @property
    def code_lines(self) -> int:
        """The number of lines with code on them."""
        return code_lines(self.source, self.tree)

    @property
    def package(self) -> str:
        """The package that the file stands in."""
        return self.name if self.path.stem == "__init__" else self.name.rpartition(".")[0]

    @property
    def is_counted(self) -> bool:
        """Whether it counts as one of the modules of its package."""
        return self.path.stem not in {"__init__", "__main__"} and not self.is_old_path

    @property
    def is_old_path(self) -> bool:
        """Whether it only repeats names at an import path of TOMLDiary 0.9."""
        first = (ast.get_docstring(self.tree) or "").split("\n")[0]
        return "import path of TOMLDiary 0.9" in first and self.code_lines <= MOST_OLD_PATH_LINES


class Import(NamedTuple):
    """One import of one module of the packages by another."""

    importer: str
    imported: str
    line: int
    in_function: bool


def code_lines(source: str, tree: ast.Module) -> int:
    """The number of lines with code on them."""
    lines = {
        number
        for number, line in enumerate(source.split("\n"), 1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    docstrings = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if first is not None and ast.get_docstring(node, clean=False) is not None:
                docstrings.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
        elif isinstance(node, ast.Constant | ast.JoinedStr):  # all lines of a text are code
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines - docstrings)


def modules(*packages: str, root: Path = ROOT) -> dict[str, Module]:
    """The modules of packages by their names."""
    found = dict[str, Module]()
    for package in packages:
        folder = root / package if package == CORE else root / "integrations" / package
        for path in sorted(folder.rglob("*.py")):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            source = path.read_text("utf-8")
            found[name] = Module(name, path, source, ast.parse(source))
    return found


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def _statements(node: ast.AST, *, in_function: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Each import statement that runs, and whether it stands in a function."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield node, in_function
    in_function = in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # no statement is inside an expression
        if not _is_type_checking(child):
            yield from _statements(child, in_function=in_function)
        elif isinstance(child, ast.If):
            for each in child.orelse:
                yield from _statements(each, in_function=in_function)


def imports(known: dict[str, Module]) -> list[Import]:
    """The imports among known modules; those for type checkers only are left out."""
    found = list[Import]()
    for module in known.values():
        for node, in_function in _statements(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                names = [f"{node.module}.{each.name}" for each in node.names]
                targets = {name if name in known else node.module for name in names}
            elif isinstance(node, ast.Import):
                targets = {each.name for each in node.names}
            else:
                continue
            found += [
                Import(module.name, target, node.lineno, in_function)
                for target in sorted(targets & known.keys())
            ]
    return found


def circles(arrows: Iterable[Import]) -> list[list[str]]:
    """The groups of modules that import each other, directly or through others."""
    graph = defaultdict[str, set[str]](set)
    for arrow in arrows:
        if arrow.importer != arrow.imported:
            graph[arrow.importer].add(arrow.imported)
    reached = {start: _reachable(graph, start) for start in list(graph)}
    groups = {
        frozenset(other for other in ends if start in reached.get(other, ()))
        for start, ends in reached.items()
    }
    return sorted(sorted(group) for group in groups if group)


def _reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found, todo = set[str](), [start]
    while todo:
        fresh = graph.get(todo.pop(), set()) - found
        found |= fresh
        todo += fresh
    return found


def _package_names(nodes: list[ast.AST]) -> tuple[set[str], int]:
    """The names that a test binds to parts of the packages, and how many of them are private."""
    bound, private = set[str](), 0
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(CORE):
            bound |= {each.asname or each.name for each in node.names}
            private += sum(_is_private(each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            bound |= {
                (each.asname or each.name).split(".")[0]
                for each in node.names
                if each.name.startswith(CORE)
            }
    return bound, private


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _is_patch(node: ast.AST, bound: set[str]) -> bool:
    """Whether a call replaces an attribute of a module or class of the packages."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr != "setattr" or not node.args:
        return False
    target = node.args[0]
    if isinstance(target, ast.Constant):
        return isinstance(target.value, str) and target.value.startswith(CORE)
    while isinstance(target, ast.Attribute):
        target = target.value
    return isinstance(target, ast.Name) and target.id in bound


def private_uses() -> Counter[str]:
    """How often the tests use private names of the packages and patch their modules."""
    found = Counter[str]()
    for path in sorted((ROOT / "tests").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        bound, private = _package_names(nodes)
        found["imports of private names"] += private
        found["patched attributes of modules and classes"] += sum(
            _is_patch(node, bound) for node in nodes
        )
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", "SLF001"]
    done = subprocess.run(  # noqa: S603 - our own arguments
        [*ruff, "--ignore-noqa", "--output-format", "json", "tests"],
        cwd=ROOT,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if not done.stdout:
        raise SystemExit(
            f"ruff did not run: {done.stderr.strip()}. Run: python -m pip install ruff"
        )
    found["uses of private attributes"] = len(json.loads(done.stdout))
    return found


def main() -> None:
    """Print the counts, and fail if tests use too many private names."""
    gc.disable()  # it would go through all trees again and again, for a third of the time
    for group in ((CORE,), ADAPTERS):
        known = modules(*group)
        counted = [each for each in known.values() if each.is_counted]
        areas = Counter[str]()
        for module in known.values():
            areas[".".join(module.package.split(".")[: 2 if group == (CORE,) else 1])] += (
                module.code_lines
            )
        for area, lines in sorted(areas.items()):
            inside = [each for each in counted if f"{each.package}.".startswith(f"{area}.")]
            flat = [each for each in inside if each.package == area]
            files = f"{len(flat if area == CORE else inside)} modules"
            print(f"{area:28} {lines:6} lines  {files}")
        print(f"{'in all':28} {areas.total():6} lines  {len(known)} files")
        per_package = Counter(each.package for each in counted)
        for package, number in sorted(per_package.items()):
            most = MOST_FLAT if package == CORE else MOST_MODULES
            if number > most:
                names = [each.path.stem for each in known.values() if each.package == package]
                print(f"  over {most}: {package} has {number}: {' '.join(sorted(names))}")
        old = [each.name for each in known.values() if each.is_old_path]
        if old:
            print(f"  import paths of TOMLDiary 0.9, counted apart: {' '.join(old)}")
        print()
    uses = private_uses()
    for name, number in uses.items():
        print(f"tests: {number:4} {name}")
    if uses.total() > MOST_PRIVATE:
        raise SystemExit(f"tests: over {MOST_PRIVATE} private uses. Use the public surface.")


if __name__ == "__main__":
    main()
