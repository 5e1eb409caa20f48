"""The IPython extension: `%load_ext tomldiary`, then `%diary`, `%remember` and `%recall`.

Texts are taken literally: `$name` and `{name}` in them are not replaced. Running a cell again stores nothing twice.
"""

from __future__ import annotations

import re
import shlex
import sys
from contextlib import suppress
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tomldiary.diary import Diary
from tomldiary.errors import DiaryError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tomldiary.past.queries import Changes
    from tomldiary.user.recall import Hits
    from tomldiary.user.user import UserDiary

_SESSION = "notebook"
_DIGITS = 32
_UNLIMITED = 1_000_000
_USAGE = "%diary FOLDER [USER] [--agent NAME]"
_LITERAL = re.compile(r"\s*+(?:[\w., ]++=\s*)?%(?:remember|recall)\s+\S")
"""Matches a line with a magic whose text is literal, but not IPython's help, `%recall?`."""


class DiaryMagics:
    """The magics of one notebook, with their current diary and user.

    Args:
        shell: The IPython shell.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._diary: Diary | None = None
        self._opened: tuple[str, str] | None = None
        self._user: UserDiary | None = None

    def diary(self, line: str) -> Diary | UserDiary:
        """Open a diary and show it, or one of its users: `%diary FOLDER [USER] [--agent NAME]`.

        Sets the variables `diary` and `user`. The extractor is "rules", which works offline, unless `--agent`
        names another one. Without arguments, the open diary is shown.
        """
        words = shlex.split(line)
        agent = "rules"
        if "--agent" in words:
            at = words.index("--agent")
            agent = "".join(words[at + 1 : at + 2])
            del words[at : at + 2]
        if len(words) > 2 or not agent or any(word.startswith("--") for word in words):  # noqa: PLR2004 - a folder and a user
            raise self._usage(_USAGE)
        if words:
            # A relative folder is another one after `%cd`; an address, such as "memory:", has a colon.
            place = words[0]
            if ":" not in place:
                # `Diary` says that the current folder was removed, if it needs it.
                with suppress(FileNotFoundError):
                    place = str(Path(place).absolute())
            opened = (place, agent)
            if self._opened != opened:
                # A memory does not store the limits of its program; a lower one would drop conversations.
                self._diary = Diary(
                    words[0],
                    agent=agent,
                    max_prefs_per_category=_UNLIMITED,
                    max_conversations=_UNLIMITED,
                )
                self._opened = opened
                self._shell.drop_by_id({"user": self._user})
                self._user = None
        if self._diary is None:
            raise self._usage(_USAGE)
        if len(words) > 1:
            self._user = self._diary.user(words[1])
            self._shell.push({"user": self._user})
        self._shell.push({"diary": self._diary})
        return self._user if self._user is not None else self._diary

    def remember(self, line: str, cell: str = "") -> Changes | None:
        """Store a statement of the user and show the changes: `%remember [CATEGORY:] TEXT`, or a whole cell.

        With a category, the text is stored unchanged. Without one, the diary's extractor reads it as a turn.
        """
        text = "\n".join(part for part in (line.strip(), cell.strip()) if part)
        if not text:
            raise self._usage("%remember [CATEGORY:] TEXT")
        user = self._chosen()
        before = user.last_transaction()
        hashed = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        operation = f"remember-{hashed[:_DIGITS]}"
        category, colon, rest = text.partition(":")
        if colon and category.strip() in user.diary.allowed:
            user.upsert_preference(
                category.strip(), rest.strip(), session_id=_SESSION, operation_id=operation
            )
        else:
            user.add_turn(text, "", session_id=_SESSION, operation_id=operation)
        if user.last_transaction() == before:
            self._print(
                "This text was given before; nothing was changed. If its entry was removed since, store it with"
                " user.upsert_preference(…)."
            )
            return None
        changes = user.history(since=before)
        if all(change.key == f"conversations/{_SESSION}" for change in changes):
            known = ", ".join(user.diary.allowed)
            self._print(
                "No statement was recognised; only the turn was counted. To store the text unchanged, name a category:"
                f" %remember likes: …  ({known})"
            )
        return changes

    def recall(self, line: str) -> Hits:
        """Return the entries that match a question best: `%recall QUESTION`."""
        if not line.strip():
            raise self._usage("%recall QUESTION")
        return self._chosen().recall(line)

    def _chosen(self) -> UserDiary:
        if self._user is None:
            raise self._usage(f"no user is chosen; run {_USAGE.replace('[USER]', 'USER')} first")
        return self._user

    @staticmethod
    def _print(text: str) -> None:
        sys.stdout.write(f"{text}\n")

    @staticmethod
    def _usage(text: str) -> Exception:
        """Return the error that IPython shows without a traceback."""
        error: type[Exception] = import_module("IPython.core.error").UsageError
        return error(text)

    def register(self) -> None:
        """Add the magics to the shell."""
        literal: Callable[[Any], Any] = import_module("IPython.core.magic").no_var_expand
        for name, kind, is_literal in (
            ("diary", "line", False),
            ("remember", "line_cell", True),
            ("recall", "line", True),
        ):
            magic = self._explained(getattr(self, name))
            magic = literal(magic) if is_literal else magic
            self._shell.register_magic_function(magic, kind, name)

        _keep_question_marks(self._shell)

    def _explained(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a magic whose errors are shown as one sentence."""

        def magic(line: str, cell: str | None = None) -> Any:
            try:
                return method(line) if cell is None else method(line, cell)
            except (DiaryError, ValueError) as error:
                raise self._usage(str(error)) from None

        magic.__doc__ = method.__doc__
        return magic


def _keep_question_marks(shell: Any) -> None:
    """Keep a question mark at the end of a literal text; IPython would show help on the last word instead."""
    help_end: Any = import_module("IPython.core.inputtransformer2").HelpEnd

    class Help(help_end):
        @classmethod
        def find(cls, tokens_by_line: Any) -> Any:
            lines = [line for line in tokens_by_line if line and not _LITERAL.match(line[0].line)]
            base: Any = super()
            return base.find(lines)

    manager = shell.input_transformer_manager
    manager.token_transformers = [
        Help if each is help_end else each for each in manager.token_transformers
    ]


def load_ipython_extension(shell: Any) -> None:
    """Add `%diary`, `%remember` and `%recall` to a notebook; `%load_ext tomldiary` calls it."""
    DiaryMagics(shell).register()
