"""The torture run: clean on this library, and it does see what a broken storage would do."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

import pytest

import programs
from tomldiary import Diary
from tomldiary.backends import LocalBackend
from torture import Size, torture, without_syncs

ROOT = Path(__file__).parents[2]


class Unlocked(LocalBackend):
    """A lock that excludes no process."""

    def lock(self, user, timeout):
        return contextlib.nullcontext()


class Forgetful(LocalBackend):
    """Acknowledges every third commit without storing it."""

    def __init__(self, folder):
        super().__init__(folder)
        self.commits = itertools.count(1)

    def commit(self, user, commit):
        if next(self.commits) % 3 == 0:
            return dict.fromkeys(commit.texts, (0, 0, 0, 0))
        return super().commit(user, commit)


class Garbling(LocalBackend):
    """Damages what it has logged."""

    def commit(self, user, commit):
        done = super().commit(user, commit)
        for segment in (self.folder(user) / "history").iterdir():
            segment.write_bytes(segment.read_bytes().replace(b"likes", b"Likes", 1))
        return done


class Refusing(LocalBackend):
    """Fails."""

    def commit(self, user, commit):
        raise OSError(28, "No space left on device")


def test_many_writers_and_kills_lose_nothing(tmp_path):
    figures = torture(tmp_path, Size(processes=3, updates=15, cycles=3))
    assert figures.is_clean, figures
    assert figures.acknowledged > 3 * 15
    assert (figures.cycles, figures.kept) == (3, "")
    assert list(tmp_path.iterdir()) == []


def test_a_broken_lock_is_detected(tmp_path):
    size = Size(processes=4, updates=15)
    figures = torture(tmp_path, size, opener=Unlocked)
    assert figures.lost + figures.failed > 0
    assert not figures.is_clean
    assert Path(figures.kept).is_dir()  # to be inspected


@pytest.mark.parametrize(
    ("opener", "size", "what"),
    [
        (Forgetful, Size(processes=1, updates=15), "lost"),
        (Forgetful, Size(cycles=3), "lost"),
        (Garbling, Size(processes=1, updates=3), "unreadable"),
        (Refusing, Size(processes=1, updates=3), "failed"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_broken_storage_is_detected(tmp_path, opener, size, what):
    figures = torture(tmp_path, size, opener=opener)
    assert getattr(figures, what) > 0, figures
    assert not figures.is_clean


def test_15_kills_of_two_writers_lose_and_repeat_nothing(tmp_path):
    size = Size(cycles=15)
    figures = torture(tmp_path, size, opener=without_syncs)
    assert figures.is_clean, figures
    assert figures.cycles == 15
    assert figures.acknowledged >= 15


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("part", [1, 2, 3, 4])
def test_2000_kills_in_four_parts_lose_and_repeat_nothing(tmp_path, part):
    figures = torture(tmp_path, Size(cycles=500), seed=part)
    assert figures.is_clean, figures
    assert figures.cycles == 500
    assert figures.acknowledged >= 500


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
@pytest.mark.parametrize("number", [1, 2, 3])
def test_4000_updates_of_8_processes_are_all_kept(tmp_path, number):
    figures = torture(tmp_path, Size(processes=8, updates=500), seed=number)
    assert figures.is_clean, figures
    assert figures.acknowledged == 8 * 500


def test_concurrent_updates_are_all_kept(tmp_path):
    _mixed_crowd(tmp_path, processes=2, updates=10)


@pytest.mark.torture
@pytest.mark.usefixtures("_asked_for")
def test_4000_concurrent_updates_are_all_kept(tmp_path):
    _mixed_crowd(tmp_path, processes=4, updates=333)


def _mixed_crowd(folder, *, processes, updates):
    """Add one to a number from several processes, and from four threads and four tasks of this one."""
    code = (
        "import sys\nfrom tomldiary import Diary\n"
        f"user = Diary({str(folder)!r}, agent='rules').user('u')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        f"for _ in range({updates}):\n"
        "    with user.transaction():\n"
        "        text = user.preferences('likes')['sum'].text\n"
        "        user.upsert_preference('likes', str(int(text) + 1), id='sum', count_up=False)\n"
    )
    diary = Diary(folder, agent="rules")
    user = diary.user("u")
    user.upsert_preference("likes", "0", id="sum")
    children = [programs.start("-c", code) for _ in range(processes)]
    for child in children:
        assert child.stdout.readline() == "ready\n"

    def add():
        text = user.preferences("likes")["sum"].text
        user.upsert_preference("likes", str(int(text) + 1), id="sum", count_up=False)

    def in_thread():
        for _ in range(updates):
            with user.transaction():
                add()

    async def in_task():
        for _ in range(updates):
            async with user.atransaction():
                add()

    async def here():
        for child in children:
            child.stdin.write("go\n")
        threads = (asyncio.to_thread(in_thread) for _ in range(4))
        await asyncio.gather(*threads, *(in_task() for _ in range(4)))

    asyncio.run(here())
    for child in children:
        child.communicate()
        assert child.returncode == 0
    assert user.preferences("likes")["sum"].text == str((processes + 8) * updates)
