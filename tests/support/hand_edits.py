"""What a person does to a file, and what an agent finds in it then."""

from __future__ import annotations

import os
import threading


def age(file, seconds=5):
    """Let a file, or a folder, have been changed `seconds` ago, so that nobody waits for the rest of a save."""
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - int(seconds * 1e9)))


def texts(alice, category="likes"):
    """What is remembered in a category, in its order."""
    return [item.text for item in alice.preferences(category).values()]


def begin(save, *arguments):
    """Have somebody begin to save; return the thread, in which whoever is at the file may keep them waiting."""
    saver = threading.Thread(target=save, args=arguments)
    saver.start()
    saver.join(0.2)
    return saver
