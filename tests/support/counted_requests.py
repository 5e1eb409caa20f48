"""Counts what is asked of a database."""

from __future__ import annotations


class Counting:
    """A database that counts its requests, and calls a function before it applies a step."""

    def __init__(self, database):
        self._database = database
        self.requests = []
        self.before = lambda: None

    def __getattr__(self, name):
        found = getattr(self._database, name)

        def counted(*arguments):
            self.requests.append(name)
            if name == "apply":
                self.before()
            return found(*arguments)

        asked = {"head", "read", "records", "apply", "touch", "holders"}
        return counted if name in asked else found

    def __str__(self):
        return str(self._database)
