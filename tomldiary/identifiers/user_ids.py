"""Maps user ids to names of folders and back.

Any string is a legal user id. A folder name is the id percent-encoded (RFC 3986, lower-case hex) outside a small
ASCII alphabet without capitals. So two ids never share a folder, not even on a file system that ignores case or
Unicode form, and no folder is outside the root.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import unquote_to_bytes

from tomldiary.errors import IdentifierError

MAX_FOLDER = 180
"""The longest folder name; a longer id gets a folder named by its hash, with a file that holds the id."""

_UNSAFE = re.compile(rb"[^a-z0-9\-_.@+=,]")
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)|lost\+found$")
"""Names of devices in Windows, and the folder of file system checks."""
_CANONICAL = re.compile(r"(?:[a-z0-9\-_.@+=,]|%[0-9a-f]{2})+")
_HASHED = re.compile(r"~[0-9a-f]{64}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def checked_user(user_id: object) -> str:
    """Return a user id as a plain `str`, because subclasses such as enums may print as another text.

    Raises:
        IdentifierError: The id is empty or not a string.
    """
    if not isinstance(user_id, str):
        raise IdentifierError(
            f"a user id must be a string, found {type(user_id).__name__}. Pass the id as text."
        )
    if not user_id:
        raise IdentifierError("the user id is empty. Pass the id of the user.")
    return str.__str__(user_id)


def encode_folder(user_id: str) -> str:
    """Return the folder name of a user id; different ids have different names.

    Raises:
        IdentifierError: The id is empty or not a string.
    """
    user_id = checked_user(user_id)
    data = user_id.encode("utf-8", "surrogatepass")
    name = _UNSAFE.sub(lambda found: b"%%%02x" % ord(found.group()), data).decode()
    if name[0] == ".":
        name = f"%2e{name[1:]}"
    if name[-1] == ".":
        name = f"{name[:-1]}%2e"
    if _RESERVED.match(name):
        name = f"%{ord(name[0]):02x}{name[1:]}"
    if len(name) > MAX_FOLDER:
        digest = hashlib.sha256(data).hexdigest()
        return f"~{digest}"
    return name


def decode_folder(name: str) -> str | None:
    """Return the user id of a folder name; None for a hash, whose folder has a file with the id."""
    if is_hashed(name):
        return None
    if not is_canonical(name):
        return name  # a folder of TOMLDiary 0.9, named by the plain id
    return unquote_to_bytes(name).decode("utf-8", "surrogatepass")


def is_hashed(name: str) -> bool:
    """Return whether a folder name is the hash of a long id."""
    return _HASHED.fullmatch(name) is not None


def is_canonical(name: str) -> bool:
    """Return whether `encode_folder` returns `name` for some id."""
    if not _CANONICAL.fullmatch(name):
        return False
    try:
        return encode_folder(unquote_to_bytes(name).decode("utf-8", "surrogatepass")) == name
    except UnicodeDecodeError:
        return False


def validate_identifier(value: str, name: str = "identifier") -> str:
    """Return `value` if it is a valid file name by the rules of TOMLDiary 0.9.

    The backends of this package accept any user id; this function is for custom storage.

    Raises:
        IdentifierError: The value is blank, starts with a dot, or contains "..", a slash, a backslash or a control
            character.
    """
    if not isinstance(value, str) or not value.strip():  # pyright: ignore[reportUnnecessaryIsInstance] - callers may be untyped
        raise IdentifierError(f"{name} must be a non-blank string.")
    if value.startswith(".") or ".." in value:
        raise IdentifierError(f"{name} must not start with a dot or contain '..': {value!r}.")
    if "/" in value or "\\" in value or _CONTROL.search(value):
        raise IdentifierError(
            f"{name} must not contain a slash, a backslash or a control character: {value!r}."
        )
    return value
