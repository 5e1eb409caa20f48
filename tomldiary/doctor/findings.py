"""What a look at a store's health comes to: one thing worth knowing, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth knowing about a store."""

    level: Literal["note", "warning", "problem"]
    """`note`: for information. `warning`: works, but is not as it should be. `problem`: does not work."""
    place: str
    message: str
    remedy: str = ""
