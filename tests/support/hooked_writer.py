"""A process that writes to a memory with a slow hook until it is killed: folder, index, kind of index, seed."""

from __future__ import annotations

import itertools
import random
import sys
from contextlib import closing, contextmanager

from outside_index import FileIndex
from tomldiary import Diary

USERS = ("alice", "bob")


@contextmanager
def open_index(kind, path):
    """Open the index of a run, as the parent and the process do, and close it at the end."""
    if kind == "chroma":
        from tomldiary.hooks.chroma import ChromaHook  # noqa: PLC0415 - optional

        yield ChromaHook(path, embed=lambda texts: [[1.0, float(len(text))] for text in texts])
    else:
        with closing(FileIndex(path)) as index:
            yield index


def main(folder, path, kind, seed, strict):
    """Write until the process is killed, with the index as a hook."""
    diary = Diary(folder, agent="rules", durability="process", max_prefs_per_category=100_000)
    with open_index(kind, path) as index:
        diary.hooks.add(index, name="index", strict=strict == "strict")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        write_forever(diary, random.Random(int(seed)))


def write_forever(diary, choose):
    """Write, change and remove entries of all kinds, and forget some now and then."""
    for number in itertools.count():
        user = diary.user(choose.choice(USERS))
        verb = choose.random()
        if verb < 0.5:
            user.upsert_preference("likes", f"thing {number} {choose.random()}", id="new")
        elif verb < 0.7:
            user.blocks.append("notes", f"line {number}", session_id=f"s{number % 7}")
        elif verb < 0.9 and user.preferences("likes"):
            user.remove_preference("likes", choose.choice([*user.preferences("likes")]))
        elif verb < 0.93:
            user.forget(session_id=f"s{choose.randrange(7)}")
        elif verb < 0.94:
            user.forget(everything=True)
        else:
            with user.transaction():
                user.blocks.set(f"block{choose.randrange(9)}", f"text {number}")
                user.episodes.add(f"question {number}", "answer")


if __name__ == "__main__":
    main(*sys.argv[1:])
