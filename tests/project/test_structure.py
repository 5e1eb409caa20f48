"""The packages keep their structure: no import circle, no import without a reason, small packages."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter

import pytest

from count_lines import (
    ADAPTERS,
    CORE,
    MOST_FLAT,
    MOST_MODULES,
    ROOT,
    Import,
    circles,
    code_lines,
    imports,
    modules,
)

CASTS = 1  # of `cast("Any"` in the core; lowered as they go


@pytest.fixture(scope="module")
def everything():
    return modules(CORE, *ADAPTERS)


@pytest.fixture
def core(everything):
    return {name: each for name, each in everything.items() if name.split(".")[0] == CORE}


def lines_with(known, mark):
    """Each line of the sources that holds a mark, from the mark on."""
    return [
        (f"{module.name}:{number}", line[line.index(mark) :])
        for module in known.values()
        for number, line in enumerate(module.source.splitlines(), 1)
        if mark in line
    ]


def test_no_modules_import_each_other(everything):
    assert circles(imports(everything)) == []


def lists_in(value):
    """Each list of texts in a TOML value."""
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from lists_in(each)


def test_each_list_of_adapters_in_the_project_file_names_all_of_them():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    named = [{each.removeprefix("integrations/") for each in one} for one in lists_in(known)]
    lists = [one & {*ADAPTERS} for one in named if one & {*ADAPTERS}]
    assert len(lists) == 6
    assert [{*ADAPTERS} - one for one in lists if one != {*ADAPTERS}] == []


def test_an_import_in_a_function_of_the_core_has_a_reason(core):
    texts = {name: module.source.splitlines() for name, module in core.items()}
    hidden = [each for each in imports(core) if each.in_function]
    assert [
        f"{each.importer}:{each.line}"
        for each in hidden
        if not re.search(r"# noqa: PLC0415 - \S", texts[each.importer][each.line - 1])
    ] == []


def test_no_package_has_more_modules_than_the_limit(everything):
    counted = Counter(module.package for module in everything.values() if module.is_counted)
    limits = dict.fromkeys(counted, MOST_MODULES) | {CORE: MOST_FLAT}
    full = {package: number for package, number in counted.items() if number > limits[package]}
    assert full == {}, f"at most {MOST_MODULES} modules each: join two, or make a subpackage"


def test_the_core_casts_nothing_to_any(core):
    assert len(lines_with(core, 'cast("Any"')) <= CASTS


def test_a_pyright_ignore_of_the_core_has_a_reason(core):
    found = lines_with(core, "# pyright: ignore")
    bare = [(place, text) for place, text in found if not re.search(r"\] - \S", text)]
    assert bare == []


def test_the_checks_name_only_tests_that_exist():
    text = (ROOT / ".ci/run").read_text("utf-8")
    named = re.findall(r"tests/[\w/*.-]*[\w*]", text)
    assert len(named) > 20
    assert [each for each in named if not list(ROOT.glob(each))] == []


@pytest.mark.parametrize(
    ("source", "number"),
    [
        ('"""A module."""\n\nx = 1  # one\n# two\n', 1),
        ('def f():\n    """Said."""\n    return """\n\n"""\n', 4),
        ("f(\n    1,\n\n)\n", 3),
    ],
)
def test_code_lines_are_neither_blank_nor_comments_nor_docstrings(source, number):
    assert code_lines(source, ast.parse(source)) == number


def test_a_circle_of_imports_is_found_through_any_number_of_modules():
    arrows = [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "e"), ("e", "e")]
    assert circles(Import(*pair, 1, in_function=False) for pair in arrows) == [["a", "b", "c"]]


def test_imports_for_type_checkers_are_left_out(tmp_path):
    (tmp_path / "tomldiary").mkdir()
    (tmp_path / "tomldiary/a.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from tomldiary import b\nelse:\n    from tomldiary import c\n"
        "def f():\n    from tomldiary.d import x\n"
    )
    for name in "bcd":
        (tmp_path / f"tomldiary/{name}.py").write_text("")
    assert imports(modules(CORE, root=tmp_path)) == [
        Import("tomldiary.a", "tomldiary.c", 5, in_function=False),
        Import("tomldiary.a", "tomldiary.d", 7, in_function=True),
    ]
