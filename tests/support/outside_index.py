"""An outside index that tests script: slow, failing, or in a file of its own that survives a killed process."""

from __future__ import annotations

import sqlite3
import threading
import time

__all__ = ["FileIndex", "ScriptedIndex"]


class ScriptedIndex:
    """An index in memory that counts its calls, and raises or waits as told."""

    def __init__(self):
        self.entries = {}
        self.calls = []
        self.error = None
        self.begun, self.gate = threading.Event(), threading.Event()
        self.gate.set()

    def wants(self, change):
        return bool(change.text.strip())

    def apply(self, changes):
        self.begun.set()
        assert self.gate.wait(20)
        self.calls.append([change.id for change in changes])
        for change in changes:
            if self.error is not None:
                raise self.error
            if self.wants(change):
                self.entries[change.user, change.key] = (change.digest, change.text)
            else:
                self.entries.pop((change.user, change.key), None)

    def stored(self, user):
        return {key: each[0] for (name, key), each in self.entries.items() if name == user}

    def texts(self, user):
        return {key: each[1] for (name, key), each in self.entries.items() if name == user}

    def users(self):
        return {user for user, _ in self.entries}

    def clear(self):
        self.entries.clear()

    def search(self, query, *, user, limit):
        words = set(query.lower().split())
        found = [
            (key, digest, float(len(words & set(text.lower().split()))))
            for (name, key), (digest, text) in self.entries.items()
            if name == user
        ]
        return sorted(found, key=lambda each: -each[2])[:limit]


class FileIndex:
    """An index in an SQLite file; it takes some milliseconds for each entry, and keeps each one at once."""

    def __init__(self, path, pause=0.003):
        self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._connection.execute("PRAGMA synchronous = OFF")
        self._connection.execute(
            "CREATE TABLE IF NOT EXISTS entries (user, key, digest, PRIMARY KEY (user, key))"
        )
        self._pause = pause

    def wants(self, change):
        return bool(change.text.strip())

    def apply(self, changes):
        for change in changes:
            time.sleep(self._pause)
            if self.wants(change):
                self._connection.execute(
                    "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
                    (change.user, change.key, change.digest),
                )
            else:
                self._connection.execute(
                    "DELETE FROM entries WHERE user = ? AND key = ?", (change.user, change.key)
                )

    def stored(self, user):
        return dict(
            self._connection.execute("SELECT key, digest FROM entries WHERE user = ?", (user,))
        )

    def users(self):
        return {user for (user,) in self._connection.execute("SELECT DISTINCT user FROM entries")}

    def clear(self):
        self._connection.execute("DELETE FROM entries")

    def close(self):
        self._connection.close()
