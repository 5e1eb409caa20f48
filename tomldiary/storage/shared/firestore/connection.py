"""A connection to Firestore, the names of its documents, and the conversion of its errors."""

from __future__ import annotations

import os
import re
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from tomldiary.errors import BackendError, IdentifierError
from tomldiary.runtime.installation import optional
from tomldiary.storage.shared.database import DatabaseAway, DatabaseLost, address, check_options
from tomldiary.toml.values import checked_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

R = TypeVar("R")
HEAD = "_tomldiary"
"""The name of a user's state document, and of the collection with the marks of all users."""
SUFFIX = ".toml"
_QUOTED = ".%"
"""The prefix of the path segment of a user whose id Firestore does not accept."""
HISTORY = "history-"
PARTS = "parts"
# The message for a missing document names the database too, in its path.
_NO_DATABASE = re.compile(r"database \S+ does not exist")
# gRPC's message for a request on a channel that has no connection.
_NOT_SENT = re.compile("failed to connect to all addresses|DNS resolution failed")

_MEANINGS = {
    "DeadlineExceeded": "perhaps a slow connection that needs a larger timeout",
    "ResourceExhausted": "a quota of the project",
}
"""What some types of errors may mean."""


class Refused(Exception):
    """A document has another version than a conditional write expects; nothing was written."""


class Connection:
    """The documents below one path of a Firestore database, for `FirestoreDatabase`.

    Args:
        project_id: The Google Cloud project.
        base_path: A path with an even number of segments.
        credentials_path: A service account file.
        credentials_dict: The content of such a file.
        database: The name of the Firestore database.
        timeout: The time limit for one request, in seconds.

    Raises:
        ValueError: Both credentials are given, or the path has an odd number of segments.
    """

    def __init__(
        self,
        project_id: str,
        base_path: str = "tomldiary/users",
        credentials_path: str | None = None,
        credentials_dict: Mapping[str, Any] | None = None,
        database: str = "(default)",
        *,
        timeout: float = 10.0,
    ) -> None:
        check_options(timeout, base_path=base_path, database=database)
        if credentials_path and credentials_dict:
            raise ValueError(
                "Cannot specify both credentials_path and credentials_dict. Please provide only one credential method."
            )
        self._path, self._database = base_path.strip("/"), database
        segments = [segment for segment in self._path.split("/") if segment]
        self._segments = segments
        if len(segments) % 2 or not segments:
            raise ValueError(
                f"Invalid base_path '{base_path}': Firestore requires an EVEN number of path segments.\n"
                f"Current path has {len(segments)} segments: {segments}\n"
                "Firestore paths must alternate: collection/document/collection/document/...\n"
                "Please add one more segment to your base_path to make it even.\n"
                f"Example: '{base_path}/memory' (if your current path is just one segment)"
            )
        firestore = optional("google.cloud.firestore", "a Firestore backend", "firestore")
        retry = optional("google.api_core.retry", "a Firestore backend", "firestore")
        self._project = project_id
        # No retries of the client, which take a minute: `answer` and `outcome` repeat requests until their own limit.
        # A query that breaks between two documents needs this object; with None the client raises `AttributeError`.
        never = retry.Retry(predicate=retry.if_exception_type())
        self.once: dict[str, Any] = {"retry": never, "timeout": timeout}
        credentials = _credentials(credentials_path, credentials_dict)
        self._new_client = partial(
            firestore.Client, project=project_id, database=database, credentials=credentials
        )
        self.client  # noqa: B018 - missing credentials are an error of the constructor

    @cached_property
    def client(self) -> Any:
        """Google's client."""
        return self.run(self._new_client)

    @cached_property
    def base(self) -> Any:
        """The reference to the parent of all users."""
        return self.client.document("/".join(self._segments))

    def close(self) -> None:
        """Drop the client, which closes its connection; its own `close` does not. A later call makes a new one."""
        for name in ("base", "client"):
            vars(self).pop(name, None)

    def __str__(self) -> str:
        place = f"firestore://{self._project}/{self._path}"
        return address(place, "database", self._database, "(default)")

    def run(self, work: Callable[[], R], *, is_conditional: bool = False) -> R:
        """Return the result of a request.

        Raises:
            Refused: The request is conditional, and a document has another version than expected.
            DatabaseLost: The request may be repeated.
            BackendError: A repetition would fail again.
        """
        from google.api_core import exceptions  # noqa: PLC0415 - an optional dependency
        from google.auth import exceptions as auth  # noqa: PLC0415 - see above

        try:
            return work()
        except (exceptions.PermissionDenied, exceptions.Unauthenticated) as error:
            raise BackendError(
                f"{self}: permission is denied. Check the role of the account."
            ) from error
        except auth.GoogleAuthError as error:
            raise BackendError(
                f"{self}: there are no credentials. Give credentials_path, run `gcloud auth application-default"
                " login`, or set FIRESTORE_EMULATOR_HOST."
            ) from error
        except (
            exceptions.ServiceUnavailable,
            exceptions.DeadlineExceeded,
            exceptions.RetryError,
            exceptions.InternalServerError,
            exceptions.ResourceExhausted,
        ) as error:
            lost = DatabaseAway if _NOT_SENT.match(f"{error.message}") else DatabaseLost
            raise lost(_reason(error)) from error
        except exceptions.GoogleAPICallError as error:
            if isinstance(error, exceptions.NotFound) and _NO_DATABASE.search(f"{error}"):
                raise BackendError(
                    f"{self}: the project has no such Firestore database. Create it, or name another one with"
                    " ?database=."
                ) from error
            # A broken connection may end a request with these codes, also an applied commit.
            if isinstance(error, exceptions.Aborted | exceptions.Unknown | exceptions.Cancelled):
                raise DatabaseLost(_reason(error)) from error
            refusals = exceptions.FailedPrecondition, exceptions.NotFound, exceptions.Conflict
            if is_conditional and isinstance(error, refusals):
                raise Refused from error
            reason = f"{error.message}".rstrip(".") or type(error).__name__
            raise BackendError(
                f"{self}: Firestore refused ({reason}). Check the project and the path of the address."
            ) from error

    def call(self, function: Callable[..., R], *args: Any, is_conditional: bool = False) -> R:
        """Call a function of the client once, with the time limit; see `run`."""
        return self.run(partial(function, *args, **self.once), is_conditional=is_conditional)

    def listed(self, function: Callable[..., Iterable[Any]], *args: Any) -> list[Any]:
        """Return all results of a function of the client that reads them one by one; see `run`."""
        return self.run(lambda: list(function(*args, **self.once)))

    def user(self, user: str) -> Any:
        """Return the collection of a user's documents."""
        return self.base.collection(_segment_of_user(user))

    def document(self, user: str, kind: str) -> Any:
        """Return the reference to a document of the memory."""
        return self.user(user).document(_segment(kind) + SUFFIX)

    def head(self, user: str) -> Any:
        """Return the reference to a user's state document."""
        return self.user(user).document(HEAD)

    def history(self, user: str, generation: int) -> Any:
        """Return the collection of a user's history records."""
        return self.head(user).collection(f"{HISTORY}{generation}")

    def mark(self, user: str) -> Any:
        """Return the reference to the document that marks a user with hidden documents."""
        return self.base.collection(HEAD).document(_segment_of_user(user))


def _reason(error: Exception) -> str:
    """Return the reason of a failed request: the type of the error, and the emulator if one is used."""
    emulator = os.environ.get("FIRESTORE_EMULATOR_HOST")
    kind = type(error).__name__
    if kind in _MEANINGS:
        kind += f", {_MEANINGS[kind]}"
    if emulator is None:
        return kind
    address = emulator or '""'  # the client's library uses an empty address, too
    return f"{kind}, with the emulator {address} of FIRESTORE_EMULATOR_HOST"


def _segment(name: str) -> str:
    """Return the name of a document as a segment of a path."""
    if "/" in name or "%" in name:
        name = quote(name, safe=" !$&'()*+,;=:@~[]{}|^`\"<>\\#?")
    return _checked(name)


def _segment_of_user(user: str) -> str:
    """Return a user id as a segment of a path.

    An id that TOMLDiary 0.9 accepts is unchanged; it accepts no id that begins with a dot.
    """
    is_reserved = user in {".", "..", HEAD} or (user.startswith("__") and user.endswith("__"))
    if is_reserved or "/" in user or user.startswith(_QUOTED):
        user = _QUOTED + quote(user, safe="")
    return _checked(user)


def _checked(segment: str) -> str:
    if len(segment.encode()) > 1400:  # noqa: PLR2004 - Firestore allows 1,500 bytes
        raise IdentifierError(
            "a Firestore id has at most 1,400 bytes. Use a shorter user id or name of a document."
        )
    return segment


def user_of(segment: str) -> str:
    """Return the user id from a path segment."""
    return unquote(segment.removeprefix(_QUOTED)) if segment.startswith(_QUOTED) else segment


def _credentials(path: str | None, values: Mapping[str, Any] | None) -> Any:
    if not path and not values:
        return None
    from google.oauth2 import service_account  # noqa: PLC0415 - an optional dependency

    made: Any = service_account.Credentials
    try:
        if values:
            return made.from_service_account_info(checked_table(values, "credentials_dict"))
        return made.from_service_account_file(path)
    except (OSError, ValueError) as error:
        # The message may quote the file.
        reason = (
            error.strerror if isinstance(error, OSError) else "not the JSON of a service account"
        )
        raise BackendError(
            f"the credentials {path or 'of credentials_dict'} cannot be read ({reason}). Create a key of the service"
            " account, and set the path of its file."
        ) from None
