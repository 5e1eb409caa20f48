"""What a person does to a file, and what an agent finds in it then."""

from __future__ import annotations

import os
import threading


def age(file, seconds=5):
    """Set the time of a file or folder to `seconds` ago, so that readers take a save as complete."""
    status = file.stat()
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns - int(seconds * 1e9)))


def texts(alice, category="likes"):
    """What is remembered in a category, in its order."""
    return [item.text for item in alice.preferences(category).values()]


def begin(save, *arguments):
    """Begin a save in a thread, because a lock on the file may make it wait; return the thread."""
    saver = threading.Thread(target=save, args=arguments)
    saver.start()
    saver.join(0.2)
    return saver
