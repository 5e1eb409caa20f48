"""Files with versions for a framework's memory store: compare and swap, one effect for one operation."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest

from tomldiary import Conflict, Diary
from tomldiary.doctor.doctor import check
from tomldiary.errors import InvalidValue
from tomldiary.identifiers.namespaces import SHARED
from tomldiary_pydantic_ai import memory_files
from tomldiary_pydantic_ai.memory_files import MemoryFiles, OperationReused

PATH = "alice/main/MEMORY.md"


@pytest.fixture
def files(tmp_path):
    return MemoryFiles(Diary(tmp_path))


def test_the_first_part_of_a_path_names_the_owner_of_the_file(files):
    files.write(PATH, "of alice", expected=None)
    files.write("main/MEMORY.md", "shared notes", expected=None)
    diary = files.diary
    assert diary.user("alice").blocks["main/MEMORY.md"].text == "of alice"
    assert diary.user(SHARED).blocks["main/MEMORY.md"].text == "shared notes"
    diary.user("alice").blocks.set("persona", "no file")
    assert list(files.paths()) == [PATH, "main/MEMORY.md"]
    diary.user("alice").forget(everything=True)
    assert files.read(PATH) is None


@pytest.mark.parametrize("selector", [{"matching": "walnut"}, {"key": "blocks/main/MEMORY.md"}])
def test_the_receipts_of_erased_texts_are_erased(files, tmp_path, selector):
    """The fingerprint of a request and the version of a file are digests, which could confirm a guess of the text."""
    first = files.write(PATH, "walnuts", expected=None, operation="op1", fingerprint="digest1")
    again = files.write(
        PATH, "walnuts", expected=first.version, operation="op2", fingerprint="digest2"
    )
    files.write(PATH, "tea", expected=again.version, operation="op3", fingerprint="digest3")
    files.write("alice/main/b.md", "jazz", expected=None, operation="op4", fingerprint="digest4")
    files.diary.user("alice").forget(**selector)
    left = "".join(file.read_text() for file in (tmp_path / "alice").rglob("*.toml"))
    for gone in ("op1", "digest1", "op2", "digest2", first.version, again.version, "digest3"):
        assert gone not in left
    assert ("tea" in left) is ("matching" in selector)
    assert files.done("op4", "digest4").is_replayed


def test_no_digest_of_a_request_is_stored_by_a_diary_that_redacts(tmp_path):
    files = MemoryFiles(Diary(tmp_path, redact=True))
    done = files.write(PATH, "a@b.org", expected=None, operation="op", fingerprint="digest")
    again = files.write(PATH, "a@b.org", expected=None, operation="op", fingerprint="digest")
    assert again == files.done("op", "digest") == dataclasses.replace(done, is_replayed=True)
    assert not any("digest" in file.read_text() for file in (tmp_path / "alice").rglob("*.toml"))
    assert (
        MemoryFiles(Diary(tmp_path)).done("op", "digest") == again
    )  # of a diary that does not redact


def test_the_metadata_of_a_file_are_redacted(tmp_path):
    files = MemoryFiles(Diary(tmp_path, redact=True))
    files.write(PATH, "tea", expected=None, metadata={"by": "a@b.org"})
    assert files.read(PATH).metadata == {"by": "[redacted: email]"}
    assert not any("a@b.org" in file.read_text() for file in (tmp_path / "alice").rglob("*.toml"))


def test_a_receipt_of_before_the_diary_redacted_is_found(files, tmp_path):
    files.write(PATH, "one", expected=None, operation="op", fingerprint="digest")
    later = MemoryFiles(Diary(tmp_path, redact=True))
    assert later.write(PATH, "one", expected=None, operation="op", fingerprint="digest").is_replayed
    with pytest.raises(OperationReused):
        later.write(PATH, "two", expected=None, operation="op", fingerprint="other")


def test_a_write_needs_the_current_version(files):
    first = files.write(PATH, "one", expected=None)
    second = files.write(PATH, "one", expected=first.version)
    assert second.version != first.version
    for expected in (None, first.version):
        with pytest.raises(Conflict, match="has changed since it was read"):
            files.write(PATH, "two", expected=expected)
        with pytest.raises(Conflict):
            files.delete(PATH, expected=expected)
    assert files.read(PATH).content == "one"
    assert files.delete(PATH, expected=second.version).existed
    assert files.read(PATH) is None


def test_a_hand_edit_makes_a_new_version(files, tmp_path):
    first = files.write(PATH, "by the agent", expected=None)
    document = tmp_path / "alice" / "blocks.toml"
    document.write_text(document.read_text("utf-8").replace("by the agent", "by a person"), "utf-8")
    assert files.read(PATH).content == "by a person"
    with pytest.raises(Conflict):
        files.write(PATH, "again", expected=first.version)


def test_an_operation_has_one_effect_also_after_a_restart(files, tmp_path):
    done = files.write(PATH, "one", expected=None, operation="op", fingerprint="f")
    for each in (files, MemoryFiles(Diary(tmp_path))):
        again = each.write(PATH, "two", expected="x", operation="op", fingerprint="f")
        assert (again.version, again.is_replayed) == (done.version, True)
        assert each.done("op", "f") == again
        with pytest.raises(OperationReused):
            each.done("op", "other")
        with pytest.raises(OperationReused):
            each.delete(PATH, expected=done.version, operation="op", fingerprint="other")
    assert files.read(PATH).content == "one"
    assert files.done("unknown", "f") is None


def test_a_limited_number_of_receipts_is_kept(files, monkeypatch):
    monkeypatch.setattr(memory_files, "_KEPT_RECEIPTS", 5)
    version = None
    for number in range(8):
        done = files.write(PATH, f"{number}", expected=version, operation=f"op {number}")
        version = done.version
    assert [files.done(f"op {number}", "") is not None for number in range(8)] == [False] * 3 + [True] * 5  # fmt: skip
    assert [found for found in check(files.diary) if found.level != "note"] == []


@pytest.mark.parametrize(
    "path",
    [
        "",
        ".",
        "..",
        "a/../b",
        "/a",
        "a//b",
        "a/b/",
        "a/\n/b",
        "a/\0/b",
        "a b.md",
        "é.md",
        "a\\b",
        "x" * 201,
    ],
)
def test_a_path_that_leads_elsewhere_is_refused(files, tmp_path, path):
    for use in (files.read, lambda path: files.write(path, "x", expected=None)):
        with pytest.raises(InvalidValue, match="is no path"):
            use(path)
    assert not list(tmp_path.glob("*.toml"))


def test_one_of_concurrent_writes_of_a_version_succeeds(files):
    first = files.write(PATH, "base", expected=None)
    together = threading.Barrier(8)
    won = []

    def write(number):
        together.wait()
        with contextlib.suppress(Conflict):
            won.append(files.write(PATH, f"{number}", expected=first.version))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert files.read(PATH).version == won[0].version


def test_metadata_belongs_to_one_write(files):
    first = files.write(PATH, "one", expected=None, metadata={"by": "ui"})
    assert files.read(PATH).metadata == {"by": "ui"}
    files.write(PATH, "two", expected=first.version)
    assert files.read(PATH).metadata is None
    for wrong in ({"a": 1}, {"a": "\0"}, {"a": "x" * 5000}):
        with pytest.raises(InvalidValue, match="metadata"):
            files.write("alice/main/b.md", "x", expected=None, metadata=wrong)
    assert files.read("alice/main/b.md") is None


@pytest.mark.parametrize("prefix", ["/", "../", "a//", "a b/", "é"])
def test_a_prefix_that_leads_elsewhere_is_refused(files, prefix):
    with pytest.raises(InvalidValue, match="is no path"):
        files.search(prefix, "tea", most=9, window=99)
    with pytest.raises(InvalidValue, match="is no path"):
        list(files.paths(prefix))


def test_a_search_counts_words_within_words_and_in_any_script(files):
    texts = {
        "a.md": "012345alpha-tail, alpha",
        "b.md": "barbaz",
        "c.md": "彼女は東京に住んでいます",
    }
    for name, text in texts.items():
        files.write(f"ann/main/{name}", text, expected=None)

    def found(query, **bounds):
        search = files.search("ann/main/", query, **{"most": 9, "window": 99, **bounds})
        return [(one.path[-4:], one.score) for one in search.found]

    assert found("alpha") == [("a.md", 2.0)]
    assert found("baz alpha") == [("a.md", 2.0), ("b.md", 1.0)]
    assert found("東京") == [("c.md", 1.0)]
    assert found("b.md") == [("b.md", 2.0)]
    assert found("alpha", window=8) == []
    assert found("baz", most=1) == []
    assert files.search("ann/main/", "x", most=9, window=8).is_cut
    assert not files.search("ann/main/", "x", most=9, window=99).is_cut
