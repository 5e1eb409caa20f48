"""The digest that identifies a version of a document, in history and in names of staged files."""

from __future__ import annotations

from hashlib import sha256

__all__ = ["digest", "fingerprint"]

_DIGITS = 32


def fingerprint(data: bytes) -> str:
    """Return the first 128 bits of the SHA-256 digest of `data`, in hexadecimal digits."""
    return sha256(data).hexdigest()[:_DIGITS]


def digest(text: str) -> str:
    """Return the fingerprint of a text in UTF-8."""
    return fingerprint(text.encode())
