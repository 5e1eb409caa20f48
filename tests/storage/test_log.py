"""The record log: complete records survive incomplete appends, concurrent rewrites and failed appends."""

from __future__ import annotations

import errno
import os

import pytest

from tomldiary.storage.files import FileSystem
from tomldiary.storage.log import LogFile, cut_torn_tail, render_record, rewrite_log, scan_log


def record(number):
    return render_record("turn", f'number = {number}\ntext = "of {number}"\n')


def numbers(path):
    return [each.data["number"] for each in scan_log(path.read_bytes()) if each.data]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "000001.toml"


@pytest.fixture
def file(path, files):
    opened = LogFile(files)
    opened.create(str(path))
    yield opened
    opened.close()


@pytest.mark.parametrize("tail", [b"\0" * 512, b"[[tu", b"[[turn]]\ncheck = ", b"\n\n\0"])
def test_a_torn_tail_is_cut_behind_the_last_whole_record(path, tail):
    whole = (record(1) + record(2)).encode()
    path.write_bytes(whole + tail)
    descriptor = os.open(path, os.O_RDWR)
    assert [each.data["number"] for each in cut_torn_tail(FileSystem(), descriptor)] == [1, 2]
    os.close(descriptor)
    assert path.read_bytes() == whole


def test_a_record_with_a_changed_byte_has_no_values(path):
    path.write_bytes((record(1) + record(2) + record(3)).encode().replace(b"of 2", b"of 7"))
    found = scan_log(path.read_bytes())
    assert [each.body is None for each in found] == [False, True, False]
    assert found[1].text == record(2).replace("of 2", "of 7")


@pytest.mark.parametrize("kept", [0, 2])
def test_an_append_to_a_shortened_file_damages_no_record(path, file, kept):
    ends = [0]
    for number in range(4):
        file.append(lambda number=number: record(number))
        ends.append(file.end)
    os.truncate(path, ends[kept])
    file.append(lambda: record(8))
    file.append(lambda: record(9))
    assert b"\0" not in path.read_bytes()
    assert numbers(path) == [*range(kept), 8, 9]


def test_an_append_after_a_rewrite_goes_to_the_new_file(path, file):
    file.append(lambda: record(1) + record(2))
    rewrite_log(FileSystem(), path, lambda found: [found[1].text])
    file.append(lambda: record(3))
    assert numbers(path) == [2, 3]


def test_a_rewrite_that_changes_nothing_keeps_the_file(path, file):
    file.append(lambda: record(1))
    inode = path.stat().st_ino
    rewrite_log(FileSystem(), path, lambda found: [each.text for each in found])
    assert path.stat().st_ino == inode


def test_a_failed_append_leaves_the_file_as_it_was(path, file, files):
    file.append(lambda: record(1))

    def full(name, _path, data=b"", *_):
        if name == "write":
            if len(data) <= 20:
                raise OSError(errno.ENOSPC, "No space left on device")
            return data[: len(data) - 20]  # a short write
        return None

    files.hook = full
    with pytest.raises(OSError, match="No space left"):
        file.append(lambda: record(2))
    files.hook = None
    assert path.read_text() == record(1)
    assert file.problem is None
    file.append(lambda: record(3))
    assert numbers(path) == [1, 3]


def test_a_failed_append_that_cannot_be_removed_is_reported(file, files):
    def failing(name, *_):
        if name in {"write", "ftruncate"}:
            raise OSError(errno.EIO, "Input/output error")

    files.hook = failing
    with pytest.raises(OSError, match="Input/output"):
        file.append(lambda: record(1))
    assert "cannot be removed" in file.problem


def test_records_after_a_part_that_cannot_be_removed_are_whole(path, file, files):
    file.append(lambda: record(1))

    def failing(name, _path, data=b"", *_):
        if name == "ftruncate" or (name == "write" and len(data) <= 20):
            raise OSError(errno.EIO, "Input/output error")
        return data[:20] if name == "write" else None

    files.hook = failing
    with pytest.raises(OSError, match="Input/output"):
        file.append(lambda: record(2))
    files.hook = None
    file.append(lambda: record(3))  # turns go to another journal, but not what earlier ones need
    assert numbers(path) == [1, 3]
