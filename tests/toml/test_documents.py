"""Documents: what is written parses back, and an edit touches nothing but its entry."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from datetime import UTC, date, datetime, time, timedelta, timezone
from functools import reduce

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tomldiary.errors import DocumentError, InvalidTOML, InvalidValue, UnsafeDocument
from tomldiary.toml.document import Document
from tomldiary.toml.edit import Edit
from tomldiary.toml.lexer import may_span_lines, split_blocks
from tomldiary.toml.parse import parse_toml
from tomldiary.toml.values import decode_nulls, encode_nulls, render_value, same_value

text = st.text(st.characters(exclude_categories=["Cs"]))
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), text, st.integers(10**18, 10**60)
)


def entries(most_leaves=20, most_fields=5):
    values = st.recursive(
        scalars,
        lambda inner: st.lists(inner) | st.dictionaries(text, inner),
        max_leaves=most_leaves,
    )
    return st.dictionaries(text.filter(lambda key: key != "_null"), values, max_size=most_fields)


few_fields = entries(4, 2)  # for tests of many entries, whose values take longest to draw

HAND = """\
# my memory, please keep tidy

[_meta]
version = "0.3"   # do not touch

# likes come first
[preferences.likes.pref001]
text = "dark roast"    # every morning
contexts = [
    "morning",  # early
]
_count = 2
# about coffee

# ---- dislikes ----

[preferences.dislikes.pref001]
'text' = 'cilantro'
extra = { by = "hand" }
"""


@settings(max_examples=25)
@given(entries(10))
def test_any_json_entry_comes_back_equal(entry):
    edit = Edit(Document.parse(""))
    edit.put(("items", "k"), encode_nulls(entry))
    read = Document.parse(edit.done().text).table(("items", "k"))
    assert read is not None
    assert same_value(decode_nulls(read), entry)


@pytest.mark.parametrize(
    "pointer",
    [f"/l/{'9' * 5000}", f"/l/{'9' * 5000}/x", "/l/x", "/x/y", "/l/2", "/l/2/x", "/l/1", "/n/0", 1],
)
def test_a_pointer_that_leads_nowhere_is_ignored(pointer):
    values = {"l": ["", "kept"], "n": 5}
    assert decode_nulls({**values, "_null": [pointer]}) == values


def test_values_read_from_a_document_are_copies():
    document = Document.parse('[a]\nx = [[1, ""]]\n_null = ["/x/0/1"]\n')
    decode_nulls(document.table(("a",)))["x"][0].append(2)
    assert document.table(("a",))["x"] == [[1, ""]]


@settings(max_examples=25)
@given(st.data())
def test_edited_values_and_parsed_text_agree_after_any_series_of_edits(data):
    document = Document.parse(data.draw(st.sampled_from(["", HAND, HAND.replace("\n", "\r\n")])))
    keys = st.sampled_from(["pref001", "pref002", "a b", "é", "pref.3"])
    for _ in range(data.draw(st.integers(1, 6))):
        edit = Edit(document)
        for _ in range(data.draw(st.integers(1, 4))):
            path = (
                "preferences",
                data.draw(st.sampled_from(["likes", "dislikes"])),
                data.draw(keys),
            )
            if data.draw(st.booleans()):
                old = dict(edit.table(path) or {})
                old.update(encode_nulls(data.draw(few_fields)))
                edit.put(path, old)
            else:
                edit.delete(path)
        document = edit.done()
        assert edit.size == len(document.text)
        # The whole text is parsed afresh: block-wise reasoning must give the same values.
        assert same_value(_pruned(tomllib.loads(document.text)), _pruned(document.data))
        fresh = Document.parse(document.text)
        assert [b.path for b in fresh.blocks] == [b.path for b in document.blocks]
        assert [b.text for b in fresh.blocks] == [b.text for b in document.blocks]


def _pruned(data):
    """Leave out parents that became empty: without entries they are not written."""
    return {
        key: inner
        for key, inner in ((k, _pruned(v) if isinstance(v, dict) else v) for k, v in data.items())
        if inner != {} or not isinstance(inner, dict)
    }


single = st.one_of(
    st.integers(0, 3),
    st.sampled_from(
        ["", "x", "\na = 1\n", "\na = 1\n\nb = 2\n", 'a = "x"', "a\\", True, 1.5, ["x"], []]
    ),
)


@settings(max_examples=60)
@given(
    st.dictionaries(st.sampled_from("abc"), single),
    st.sampled_from("abcd"),
    single,
    st.sampled_from(["own", "parsed", "by hand"]),
)
@example({"a": 1, "b": "\na = 1\n"}, "a", 2, "own")
@example({"a": 1, "b": "\na = 1\n"}, "a", 2, "by hand")
def test_text_and_values_agree_after_one_key_changed(table, key, value, source):
    edit = Edit(Document.parse("# a = 1\n"))
    edit.put(("items", "first"), {"a": 1})
    edit.put(("items", "k"), table)
    edit.put(("items", "last"), {"a": 1})
    document = edit.done()
    if source != "own":
        text = (
            document.text
            if source == "parsed"
            else document.text.replace("[items.k]\na = ", "[items.k]\na=")
        )
        document = Document.parse(text)
    edit = Edit(document)
    wanted = {**document.table(("items", "k")), key: value}
    edit.put(("items", "k"), wanted)
    assert same_value(tomllib.loads(edit.done().text), edit.done().data)
    assert same_value(edit.done().table(("items", "k")), wanted)


@pytest.mark.parametrize("line", [1, 2])
def test_two_threads_may_read_the_blocks_of_a_joined_document(line):
    parsed = Document.parse("[a]\nn = 1\n")
    document, seen = Document(lambda: list(parsed.blocks), parsed.data), []

    def read_in_between(_frame, event, _):
        seen.append(event)
        if seen.count("line") == line and event == "line":
            assert document.blocks == parsed.blocks  # as another thread at this moment
        return read_in_between

    known = sys.gettrace()
    sys.settrace(read_in_between)
    try:
        found = document.blocks
    finally:
        sys.settrace(known)
    assert found == parsed.blocks


def test_a_table_is_added_after_a_last_comment_without_a_line_break():
    edit = Edit(Document.parse("[a]\nx = 1\n# about x"))
    edit.put(("b",), {"y": 2})
    assert edit.done().text == "[a]\nx = 1\n# about x\n\n[b]\ny = 2\n"


def test_an_edit_changes_only_the_touched_value():
    edit = Edit(Document.parse(HAND))
    path = ("preferences", "likes", "pref001")
    edit.put(path, {**(edit.table(path) or {}), "_count": 3})
    assert edit.done().text == HAND.replace("_count = 2", "_count = 3")


def test_an_edit_without_a_difference_returns_the_same_document():
    document = Document.parse(HAND)
    path = ("preferences", "likes", "pref001")
    edit = Edit(document)
    edit.put(path, dict(document.table(path) or {}))
    assert edit.done() is document


def test_a_nested_table_is_read_in_the_order_of_the_text():
    edit = Edit(Document.parse("[b]\nx = 1\n\n[a.c]\nx = 2\n"))
    assert edit.nest(["b"], "a")
    assert list(edit.done().data["a"]) == ["b", "c"]


def test_an_inline_table_is_restored_without_its_other_values():
    edit = Edit(Document.parse("[a]\nb = { x = 1, y = { z = 2 } } # one\n"))
    edit.restore(("a", "b"), "[a.b]\nx = 3\n", {"x": 3})
    assert edit.done().data == {"a": {"b": {"x": 3}}}


def test_threads_that_split_a_document_at_once_get_the_same_blocks():
    """Otherwise each later edit fails, because it finds an indexed block by its identity."""
    calls = []

    def split():
        calls.append(1)
        made = split_blocks("[a]\nx = 1\n")
        # As if another thread needed the index now.
        assert len(calls) > 1 or document.index
        return made

    document = Document(split, {"a": {"x": 1}})
    edit = Edit(document)
    edit.put(("a",), {"x": 2})
    assert edit.done().text == "[a]\nx = 2\n"


def test_a_list_that_replaces_a_header_is_not_indexed_as_one():
    lists = "[[items.a.rooms]]\nn = 1\n"
    edit = Edit(Document.parse(f'[items.a]\ntext = "tea"\n\n{lists}\n[items.b]\nx = 1\n'))
    edit.restore(("items", "a"), lists, {"rooms": [{"n": 1}]})
    made = edit.done()
    assert made.text == f"{lists}\n[items.b]\nx = 1\n"
    read = Document.parse(made.text)
    assert (made.index.keys(), made.parents) == (read.index.keys(), read.parents)


def test_a_restored_table_is_read_in_the_order_of_the_text():
    edit = Edit(Document.parse("[p.a]\nn = 1\n\n[p.c]\nn = 3\n"))
    edit.restore(("p", "b"), "[p.b]\nn = 2\n", {"n": 2}, after=("p", "a"))
    assert list(edit.done().table(("p",))) == ["a", "b", "c"]


def test_the_fields_of_a_restored_table_are_read_before_its_inner_tables():
    edit = Edit(Document.parse("[a]\nx = 1\n\n[a.b]\ny = 1\n"))
    edit.restore(("a",), "[a]\nx = 2\n", {"x": 2})
    assert list(edit.done().data["a"]) == list(parse_toml(edit.done().text)["a"])


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("[a]\nx = 1", "[a]\nx = 2"),  # no final line break
        ("[a]\nx = 1 # one\n\n# end", "[a]\nx = 2 # one\n\n# end"),
        ("[a]\nx = 1\n\n# of b\n[a.b]\ny = 1 # one\n", "[a]\nx = 2\n\n# of b\n[a.b]\ny = 3 # one\n"),
        ('[a]\nx = """\n1"""\nb = 0x10\n', '[a]\nx = "2"\nb = 0x10\n'),
    ],
)  # fmt: skip
def test_a_change_keeps_the_notation_of_the_rest(text, changed):
    edit = Edit(Document.parse(text))
    edit.put(("a",), parse_toml(changed)["a"])
    assert edit.done().text == changed


@pytest.mark.parametrize(
    ("head", "changed", "kept"),
    [
        ("a.b.x = 1\na.b.y = 2\n", "a.b.x = 3\n", ""),
        ("[a]\nb.x = 1\nb.y = 2\n", "[a]\nb.x = 3\n", "[a]\n"),
        ("[a.b]\nx = 1\ny = 2\n", "[a.b]\nx = 3\n", ""),
    ],
)
@pytest.mark.parametrize("other", ["[a.c]\nz = 1\n", "[a.c]\nz = 1\n\n[[d]]\nz = 1\n"])
def test_a_table_in_dotted_keys_may_have_neighbours_with_headers(head, changed, kept, other):
    text = f"{head}\n{other}"
    edit = Edit(Document.parse(text))
    edit.put(("a", "b"), {"x": 3})
    assert edit.done().text == f"{changed}\n{other}"
    edit = Edit(Document.parse(text))
    assert edit.delete(("a", "b"))
    assert edit.done().text.lstrip("\n") == f"{kept}\n{other}".lstrip("\n")


def test_an_undone_table_is_no_longer_above_its_inner_tables():
    edit = Edit(Document.parse("[a]\nx = 1\n"))
    undo = edit.savepoint()
    edit.put(("a", "b", "c"), {"y": 1})
    undo()
    edit.put(("a",), {"b": {"y": 2}})
    assert edit.done().own_values(("a",)) == {"b": {"y": 2}}


def test_a_change_reaches_neither_a_savepoint_nor_a_document_before_it():
    edit = Edit(Document.parse("[a.b]\nx = 1\n"))
    edit.put(("a", "c"), {"x": 2})
    undo = edit.savepoint()
    edit.put(("a", "d"), {"x": 3})
    undo()
    edit.put(("a", "e"), {"x": 4})
    seen = edit.peek()
    edit.put(("a", "f"), {"x": 5})
    assert list(seen.data["a"]) == ["b", "c", "e"]
    assert list(edit.done().data["a"]) == ["b", "c", "e", "f"]


def test_the_size_of_an_edit_is_exact_after_each_change():
    edit = Edit(Document.parse("[a.one]\nx = 1\n\n# free\n"))
    undo = edit.savepoint()
    changes = [
        lambda: edit.put(("a", "two"), {"x": "long"}),
        lambda: edit.put(("a", "one"), {"x": 1000}),
        lambda: edit.nest(["a"], "b"),
        lambda: edit.restore(("b", "a", "one"), "[b.a.one]\nx = 1  # old\n", {"x": 1}),
        lambda: edit.delete(("b", "a", "two")),
        undo,
    ]
    for change in changes:
        change()
        assert edit.size == len(edit.peek().text)


def test_a_nested_table_keeps_the_comment_behind_its_header():
    edit = Edit(Document.parse('["a#b"]  # one [two]\nx = 1\n\n["a#b".y]\n\n[a]\n'))
    assert edit.nest(["a#b"], "c d")
    assert edit.done().text == '["c d"."a#b"]  # one [two]\nx = 1\n\n["c d"."a#b".y]\n\n[a]\n'
    edit = Edit(Document.parse("a.x = 1 # one\nb.x = 1\n"))
    assert edit.nest(["a"], "c")
    assert edit.done().text == "c.a.x = 1 # one\nb.x = 1\n"


def test_no_table_is_nested_in_one_that_is_written_inline():
    document = Document.parse("a = { b = {} }\n[c]\nx = 1\n")
    edit = Edit(document)
    assert not edit.nest(["c"], "a")
    assert edit.done() is document


def test_no_table_is_nested_in_place_of_another_one():
    document = Document.parse("[a]\nx = 1\n[b.a]\nx = 2\n")
    edit = Edit(document)
    assert not edit.nest(["a"], "b")
    assert edit.done() is document


def test_no_table_is_nested_if_a_text_has_a_line_with_its_key():
    document = Document.parse('x = """\na = 1\n"""\na.y = 1\n')
    edit = Edit(document)
    assert not edit.nest(["a"], "b")
    assert edit.peek().data == document.data


@pytest.mark.parametrize("value", ["a = 1", "a = []", "[[a]]"])
def test_no_table_is_nested_in_a_value_or_a_list(value):
    edit = Edit(Document.parse(f"{value}\n[c]\nx = 1\n"))
    with pytest.raises(DocumentError):
        edit.nest(["c"], "a")


@pytest.mark.parametrize("head", ["a.b.x = 1\n", "[a]\nb.x = 1\n", '[a]\n"\\u0062".x = 1\n'])
@pytest.mark.parametrize(
    "values",
    [
        {"x": 2, "c": {"z": 1}},
        {"x": 1, "c": {"z": 2}, "w": 3},
        {"c": {"z": 1}},
        {"c": {}},
        {"x": 1},
        {"x": {"y": 1}, "c": [1]},
        {"x": 1, "c": "text"},
        {},
    ],
)
def test_a_table_in_dotted_keys_may_go_on_below_a_header(head, values):
    edit = Edit(Document.parse(f"{head}\n[a.b.c]\nz = 1 # one\n"))
    edit.put(("a", "b"), values)
    found = edit.done()
    assert parse_toml(found.text) == found.data == {"a": {"b": values}}


def test_a_table_whose_header_is_new_has_its_values_in_their_order():
    edit = Edit(Document.parse("[a.b]\nx = 1\n"))
    edit.put(("a",), {"b": "text", "c": 1})
    assert edit.done().text == '[a]\nb = "text"\nc = 1\n'


def test_a_text_that_ends_like_a_comment_is_deleted_with_its_table():
    edit = Edit(Document.parse('[a]\nx = """\n\n# no comment """\n\n[b]\ny = 1\n'))
    assert edit.delete(("a",))
    assert edit.done().text == "[b]\ny = 1\n"


def test_a_new_entry_goes_after_its_siblings_before_a_free_comment():
    edit = Edit(Document.parse(HAND))
    edit.put(("preferences", "likes", "pref002"), {"text": "tea"})
    added = '# about coffee\n\n[preferences.likes.pref002]\ntext = "tea"\n\n# ---- dislikes'
    assert edit.done().text == HAND.replace("# about coffee\n\n# ---- dislikes", added)


@pytest.mark.parametrize(
    ("written", "values", "expected"),
    [
        ('a = """\nb\n""" # one\n', {"c": 1}, "# two\nc = 1\n"),
        ("a.b = { c = 1 } # one\n", {"a": {}}, "# two\na = {}\n"),
    ],
)
def test_a_new_field_of_a_hand_written_table_stands_before_a_free_comment(
    written, values, expected
):
    free = "\n# free\n"
    edit = Edit(Document.parse(f"[x]\n{written}# two\n{free}"))
    edit.put(("x",), values)
    assert edit.done().text == f"[x]\n{expected}{free}"


def test_a_hand_written_table_is_changed_as_asked_or_refused_unchanged():
    edit = Edit(Document.parse("[a]\nb = { c.x.p = 1, c.x.q = 2 }\n"))
    values = {"b": {"c": {"x": {"z": 1}}}}
    try:
        edit.put(("a",), values)
    except InvalidValue:  # tomlkit 0.15 leaves a comma behind
        values = {"b": {"c": {"x": {"p": 1, "q": 2}}}}
    assert parse_toml(edit.done().text) == {"a": values}


def test_deleting_an_entry_keeps_comments_that_do_not_belong_to_it():
    edit = Edit(Document.parse(HAND))
    assert edit.delete(("preferences", "likes", "pref001"))
    assert edit.done().text == HAND[: HAND.index("# likes come")] + HAND[HAND.index("# ---- d") :]


def test_a_free_comment_does_not_join_the_table_after_a_deleted_one():
    edit = Edit(Document.parse("# free\n\n[a]\nx = 1\n[b]\ny = 1\n[c]\nz = 1\n"))
    edit.delete(("a",))
    document = Document.parse(edit.done().text)
    assert document.text == "# free\n\n[b]\ny = 1\n[c]\nz = 1\n"
    edit = Edit(document)
    edit.delete(("b",))
    assert edit.done().text == "# free\n\n[c]\nz = 1\n"


@pytest.mark.parametrize(
    ("above", "path"), [("[a]\n# one\n", ("a", "b")), ("\ufeff# one\n", ("b",))]
)
def test_a_comment_above_a_deleted_inline_table_does_not_join_the_next_one(above, path):
    edit = Edit(Document.parse(f"{above}b = {{ x = 1 }}\n[c]\ny = 1\n"))
    edit.delete(path)
    assert edit.done().text == f"{above}\n[c]\ny = 1\n"


def test_values_and_text_agree_after_a_table_in_dotted_keys_and_below_a_header_is_deleted():
    edit = Edit(Document.parse("a.b.x = 1\n\n[a.b.c]\ny = 1\n"))
    edit.delete(("a", "b"))
    assert parse_toml(edit.done().text) == edit.done().data == {"a": {}}


@pytest.mark.parametrize("head", ["", 'note = "x"\n'])
def test_an_entry_below_a_hand_written_category_header_is_deleted(head):
    category = f"[preferences.likes]\n{head}\n"
    other = '[preferences.likes.b]\ntext = "2"\n'
    edit = Edit(Document.parse(f'{category}[preferences.likes.a]\ntext = "1"\n\n{other}'))
    assert edit.delete(("preferences", "likes", "a"))
    assert edit.done().text == category + other


def test_a_table_whose_tables_were_all_deleted_can_be_written_to():
    edit = Edit(Document.parse("[a.b]\nk = 1\n"))
    edit.delete(("a", "b"))
    edit.put(("a",), {"k": 2})
    assert parse_toml(edit.done().text) == {"a": {"k": 2}}


@pytest.mark.parametrize("table", ["[a.b]", "[a.b.c]", "[[a.b]]"])
def test_a_value_in_place_of_a_table_stays_at_later_changes(table):
    document = Document.parse(f"[a]\nx = 1\n{table}\ny = 1\n")
    for number in (2, 3):
        edit = Edit(document)
        edit.put(("a",), {"x": number, "b": 5})
        document = edit.done()
        assert parse_toml(document.text) == document.data == {"a": {"x": number, "b": 5}}


def test_adding_and_deleting_gives_the_same_bytes_back():
    document = Document.parse(HAND)
    edit = Edit(document)
    edit.put(("preferences", "dislikes", "pref002"), {"text": "x"})
    edit.put(("preferences", "likes", "pref002"), {"text": "x"})
    edit = Edit(Document.parse(edit.done().text))
    edit.delete(("preferences", "dislikes", "pref002"))
    edit.delete(("preferences", "likes", "pref002"))
    assert edit.done().text == HAND


def test_an_unusual_notation_is_changed_in_place():
    source = 'likes.a = { text = "x", n = 1 } # one\n[t]\nb.text = "y" # two\nc = 1\n'
    edit = Edit(Document.parse(source))
    edit.put(("likes", "a"), {"text": "z", "n": 1})
    edit.put(("t", "b"), {"text": "w"})
    edit.put(("t", "d"), {"text": "v"})
    done = edit.done()
    assert tomllib.loads(done.text) == done.data
    assert done.data["likes"]["a"]["text"] == "z"
    assert "# one" in done.text
    assert "# two" in done.text


def test_a_header_inside_a_text_or_a_list_is_no_header():
    source = '[a]\nx = """\n[b]\n# c"""\ny = [\n["b"]\n]\n[c]\nz = 1\n'
    document = Document.parse(source)
    assert [block.path for block in document.blocks] == [(), ("a",), ("c",)]
    edit = Edit(document)
    edit.delete(("a",))
    assert edit.done().text == "[c]\nz = 1\n"


def test_a_member_of_a_list_of_tables_is_refused_not_damaged():
    edit = Edit(Document.parse("[[a]]\nx = 1\n[a.b]\ny = 1\n"))
    with pytest.raises(DocumentError, match=r"expected a table"):
        edit.put(("a", "b"), {"y": 2})


@pytest.mark.parametrize(
    ("bad", "told"),
    [("\ud800", "surrogate"), ("ok \udfff", "surrogate"), ("\udcff", r"not UTF-8 \(0xFF\)")],
)
@pytest.mark.parametrize("lines", ["", "two\nlines "])
def test_half_a_surrogate_pair_is_refused_with_its_place(bad, told, lines):
    with pytest.raises(InvalidValue, match=rf"likes\.pref001\.text: .*{told}"):
        Edit(Document.parse("")).put(("likes", "pref001"), {"text": lines + bad})


def test_the_error_for_a_key_with_half_a_pair_can_be_printed():
    with pytest.raises(InvalidValue, match="surrogate") as error:
        Edit(Document.parse("")).put(("likes", "pref001"), {"\ud800": None})
    assert str(error.value).encode()


def test_text_with_characters_that_mislead_readers_is_escaped():
    rendered = render_value("safe\u202etxt.exe\u2028\x1b[2J\x00")
    assert rendered.isascii()
    assert rendered.isprintable()
    assert tomllib.loads(f"k = {rendered}")["k"] == "safe\u202etxt.exe\u2028\x1b[2J\x00"


def test_text_with_line_breaks_is_readable_and_exact():
    value = 'one\n  two """ three\\\n\r\nfour"'
    rendered = render_value(value, lines=True)
    assert "\n  two" in rendered
    assert tomllib.loads(f"k = {rendered}")["k"] == value


@pytest.mark.parametrize(
    "value",
    [{1, 2}, b"x", object(), {1: 2}, 10**5000, reduce(lambda inner, _: [inner], range(64), 1)],
    ids=lambda value: type(value).__name__,
)
def test_a_value_without_a_toml_form_is_refused(value):
    with pytest.raises(InvalidValue, match=r"items\.k"):
        render_value([value], where="items.k")


class _OwnDate(date):
    """As a library of dates could have it."""

    def isoformat(self):
        return "2026-01-01\n[evil]"


@pytest.mark.parametrize(
    "value", [time(1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=timezone(timedelta(seconds=90)))]
)
def test_a_time_that_toml_cannot_write_is_refused_with_its_place(value):
    with pytest.raises(InvalidValue, match=r"items\.k\.0: .* zone"):
        render_value([value], where="items.k")


def test_a_date_of_a_subclass_is_written_as_a_date_and_nothing_else():
    assert render_value(_OwnDate(2026, 1, 1)) == "2026-01-01"


def test_same_value_tells_types_apart():
    assert same_value({"a": [math.nan]}, {"a": [math.nan]})
    assert not same_value(1, True)
    assert not same_value(1, 1.0)
    assert not same_value(0.0, -0.0)
    assert not same_value([1], [1, 2])


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ("a = 1\nb 2\n", "f.toml:2:3"),
        ("a = \n", "f.toml:1:5"),
        ('a = "x\n', "f.toml:1"),
        ("a = [1,\n", "f.toml:2:1"),
    ],
)
def test_a_syntax_error_names_path_line_and_column(source, place):
    with pytest.raises(InvalidTOML) as caught:
        parse_toml(source, path="f.toml")
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize(
    ("hostile", "told"),
    [
        (".".join("a" * 5000) + " = 1", "^1: a dotted key has more than 64 parts"),
        ("[" + ".".join("a" * 5000) + "]", "^1: a dotted key has more than 64 parts"),
        ("x = { " + ".".join('"a"' for _ in range(500)) + " = 1 }", "^1: a dotted key has more"),
        ("x = " + "[" * 5000, "^1: arrays or inline tables are nested deeper than 64"),
        ("x = " + "[\n" * 5000, "^65: arrays or inline tables are nested deeper than 64"),
        ("x = " + "{a = " * 5000, "^1: arrays or inline tables are nested deeper than 64"),
        ("x = " + '["]",\n' * 100_000, "^65: arrays or inline tables are nested deeper than 64"),
        ("a" * 16 * 1024 * 1024 + "aa", "^the document is larger than 16384 KiB"),
        (".".join(['"="'] * 100_000) + " = 1", "^1: a dotted key has more than 64 parts"),
    ],
    ids=lambda text: text[:8],
)
def test_a_hostile_document_is_refused_before_it_is_parsed(hostile, told):
    with pytest.raises(UnsafeDocument, match=told):
        parse_toml(hostile)


@pytest.mark.parametrize(
    "hostile",
    [
        '"' + '\\"' * 200_000,
        "'" + "'a" * 200_000,
        "x.y\n" * 100 + '"""' + 'a"\\"""' * 200_000,
    ],
    ids=lambda text: text[:8],
)
def test_a_hostile_text_is_refused_with_a_typed_error(hostile):
    with pytest.raises(InvalidTOML):
        parse_toml(hostile)


def test_text_with_many_dots_and_brackets_is_accepted():
    value = "a." * 500 + "[" * 500 + "..." * 100
    assert parse_toml(f"k = {render_value(value)}")["k"] == value


def test_a_byte_order_mark_is_kept_and_ignored():
    document = Document.parse("\ufeff[a]\nx = 1\n")
    edit = Edit(document)
    edit.put(("a",), {"x": 2})
    edit.put(("a", "b"), {"y": 1})
    edit.set_meta(seq=1)
    assert edit.done().text == "\ufeff[_meta]\nseq = 1\n\n[a]\nx = 2\n\n[a.b]\ny = 1\n"
    edit.delete(("_meta",))
    assert edit.done().text == "\ufeff[a]\nx = 2\n\n[a.b]\ny = 1\n"
    assert not Document.parse("\ufeff# a note\n").is_bare


def test_deleting_a_table_deletes_the_lists_of_tables_below_it():
    text = (
        "[[p.a.list]]\nx = 1\n\n# mine\n[p.a]\ny = 1\n\n\n[p.b]\nz = 1\n\n[[p.a.list]]\nx = 2\n"
        "[p.a.list.below]\nx = 3\n[[p.a.list]]\n[p.a.list.below]\nx = 4\n\n# end\n"
    )
    edit = Edit(Document.parse(text))
    assert edit.delete(("p", "a"))
    done = edit.done()
    assert tomllib.loads(done.text) == done.data == {"p": {"b": {"z": 1}}}
    assert done.text.endswith("[p.b]\nz = 1\n\n# end\n")


@pytest.mark.parametrize("literal", [f"0x{'f' * 4000}", f"0b1{'0' * 20_000}"])
def test_an_integer_too_long_to_write_is_refused_with_its_place(literal):
    with pytest.raises(InvalidTOML, match=r"more than 4,000 digits.*quotes") as caught:
        parse_toml(f"# first\n[a]\nlist = [1, {literal}]\n", path="f.toml")
    assert (caught.value.line, caught.value.column) == (3, 12)


def test_text_that_looks_like_a_long_integer_is_text():
    text = f"0x{'f' * 4000}"
    assert parse_toml(f'a = "{text}"\nb = 0x{"f" * 3000}\n')["a"] == text


LISTED = """\
[team]
id = "x"

[[team.members]]
name = "bob"

[[team.members]]
name = "eve"

[other]
n = 1
"""


@pytest.mark.parametrize("members", [[{"name": "zoe"}], "none", {"name": "zoe"}, None])
def test_a_list_of_tables_is_replaced_with_all_its_headers(members):
    edit = Edit(Document.parse(LISTED))
    wanted = {"id": "x", "members": members}
    edit.put(("team",), {key: value for key, value in wanted.items() if value is not None})
    done = edit.done()
    assert done.text.count("[[") == 0
    assert tomllib.loads(done.text) == done.data


def test_a_list_of_tables_stays_as_written_beside_another_change():
    edit = Edit(Document.parse(LISTED))
    edit.put(("team",), {"id": "y", "members": [{"name": "bob"}, {"name": "eve"}]})
    assert edit.done().text == LISTED.replace('"x"', '"y"')


def test_an_inline_table_takes_changes_and_loses_entries():
    edit = Edit(Document.parse("[a]\nlikes = { one = { n = 1 }, two = { n = 2 } }\n"))
    edit.put(("a", "likes", "three"), {"n": 3})
    edit.put(("a", "likes", "two"), {"n": 4})
    edit.delete(("a", "likes", "one"))
    done = edit.done()
    assert done.text.count("\n") == 2
    assert (
        tomllib.loads(done.text)
        == done.data
        == {"a": {"likes": {"two": {"n": 4}, "three": {"n": 3}}}}
    )


_SPANNING = [
    "a = {\n  b = 1\n}\n",
    "a = { b = 1, # one\n  c = 2 }\n",
    "a = { b = 1\n  , c = 2 }\n",
    "a = { b = [1],\r\n}\r\n",
]


@pytest.mark.parametrize("text", _SPANNING)
def test_an_inline_table_of_toml_1_1_may_span_lines(text):
    assert may_span_lines(text)


@pytest.mark.skipif(sys.version_info < (3, 15), reason="Python 3.15 reads TOML 1.1")
@pytest.mark.parametrize("text", _SPANNING)
def test_an_inline_table_of_toml_1_1_stays_as_written(text):
    edit = Edit(Document.parse(f"[x]\n{text}[y]\nn = 1\n"))
    edit.put(("y",), {"n": 2})
    assert edit.done().text == f"[x]\n{text}[y]\nn = 2\n"
    edit = Edit(Document.parse(f"[x]\n{text}"))
    edit.put(("x",), {"a": edit.table(("x",))["a"], "n": 1})
    assert edit.done().text.startswith(f"[x]\n{text}")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[a.b]\n[a.b]\n", r"f:2:5: the table [a.b] is there twice."),
        ("[a.'x\u202ey']\n[a.'x\u202ey']\n", r"f:2:9: the table [a.x\u202ey] is there twice."),
        (
            "[a.b]\n[a]\nb.c = 1\n",
            "f:3:8: the table or list a.b was completed where it was first written.",
        ),
        ("a = 'x\nb = 'y'\n", "f:1:7: a text is not closed, expected a quote."),
        ("a = 'x", "f:1:7: a text is not closed, expected a quote."),
        ("a = 'x\nb = 1\n", "f:1:7: a text is not closed, expected a quote."),
        ("a = '''x\nb = 1\n", "f:1:9: a text is not closed, expected a quote."),
        ('a = "x\nb = 1\n', "f:1:7: a text is not closed, expected a quote."),
        ('a = """x"""\nb = "y', "f:2:7: a text is not closed, expected a quote."),
        ('a = """x\nb = 1\n', "f:1:9: a text is not closed, expected a quote."),
        ("a = 'x\r\nb = 1\r\n", "f:1:7: a text is not closed, expected a quote."),
        ("\ufeffa = 'x", "f:1:7: a text is not closed, expected a quote."),
        (
            'a = "C:\\Users"\n',
            "f:1:10: a backslash stands alone: write two, or put the text in single quotes.",
        ),
    ],
)
def test_a_mistake_is_told_in_words_of_toml(text, told):
    with pytest.raises(InvalidTOML) as found:
        parse_toml(text, path="f")
    assert str(found.value) == f"{told} Correct the line."


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="Python 3.15 reads TOML 1.1")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = { b = 1\n}\n", '1:12: a table is not closed on its line, expected "}".'),
        ("a = {\n b = 1 }\n", '1:6: a table in "{…}" is on one line, without a comma at its end.'),
        ("a = { b = 1, # c\n}\n", '1:14: a table in "{…}" is on one line, without a'),
        ("x = 1\na = [{ b = '{' , }]\n", '2:18: a table in "{…}" is on one line, without a'),
        ("a = {,}\n", "1:6: expected a key."),
        ("[a.\n", "1:4: expected a key."),
    ],
)
def test_a_mistake_in_an_inline_table_is_told(text, told):
    with pytest.raises(InvalidTOML, match=rf"^f:{re.escape(told)}"):
        parse_toml(text, path="f")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = “tea”", "table, found “ (U+201C). Type"),
        ("a\u3000= 1", '1:2: expected "=" after a key, found U+3000. Type'),
        ("a = ٣", "table, found ٣ (U+0663). Type"),
        ("[likes.お茶]", "1:8: expected a key, found お (U+304A). Type"),
    ],
)
def test_an_error_names_a_sign_of_another_keyboard(text, told):
    with pytest.raises(InvalidTOML) as found:
        parse_toml(text)
    assert told in str(found.value)
    assert str(found.value).endswith('keys with other letters in quotes: "…".')


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a = 1\n<<<<<<< HEAD\nb = 1\n=======\nb = 2\n>>>>>>> other\n", 2),
        ("a = [\n<<<<<<< HEAD\n  1,\n=======\n  2,\n>>>>>>> other\n]\n", 2),
        ("a = 1\n=======\nb = 2\n>>>>>>> other\n", 2),
        ("a = 1\r\n=======\r\nb = 2\r\n", 2),
        ("a = 1\n>>>>>>> other", 2),
        ("a = 1\n||||||| 1a2b3c\nb = 2\n", 2),
    ],
)
def test_a_conflict_of_git_is_told_with_its_remedy(text, line):
    with pytest.raises(InvalidTOML, match="git left a conflict here") as found:
        parse_toml(text, path="f")
    assert found.value.line == line
    assert "<<<<<<<, ======= and >>>>>>>" in str(found.value)


@pytest.mark.parametrize(
    ("where", "line"),
    [
        ("preferences.likes.pref001.text", 4),
        ("preferences.likes.pref001", 2),
        ("preferences.likes.pref001.gone", 2),
        ("preferences.hobbies", 6),
        ("preferences.loose", 10),
        ('preferences."a b"', 11),
        ("other", None),
    ],
)
def test_the_line_of_a_field_or_table_is_found(where, line):
    text = """\
# mine
[preferences.likes.pref001]
contexts = ["text"]
"text" = 5

[preferences.hobbies.pref001]
text = "chess"

[preferences]
loose = 1
[preferences."a b"]
"""
    assert Document.parse(text).line_of(where) == line


def test_a_text_that_ends_in_a_heading_is_removed_with_its_own_lines():
    edit = Edit(Document.parse("[_meta]\nseq = 1\n"))
    edit.put(("blocks", "notes"), {"text": "plans\n\n# travel"})
    edit.put(("blocks", "persona"), {"text": "calm"})
    edit.delete(("blocks", "notes"))
    assert edit.done().text == '[_meta]\nseq = 1\n\n[blocks.persona]\ntext = "calm"\n'


def test_a_table_is_added_beside_one_with_a_header_below_dotted_keys():
    edit = Edit(Document.parse('p.likes.a.text = "x"\n\n[p.likes.b]\ntext = "y"\n'))
    edit.put(("p", "goals", "c"), {"text": "z"})
    edit.delete(("p", "likes", "a"))
    edit.put(("p", "likes", "d"), {"text": "n"})
    document = edit.done()
    assert parse_toml(document.text) == document.data
