"""What is installed: optional dependencies, and a second distribution that owns the package `tomldiary`."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

OTHER_OWNER_REMEDY = (
    "Keep only one of them: run python -m pip uninstall tomldiary, and then reinstall tomldiary-kit with"
    " --force-reinstall, because the two share files."
)


def other_owner() -> str | None:
    """Return another installed distribution with the package `tomldiary`, such as "tomldiary 0.9.0", or None.

    The function lists the folder that contains the package, which is much faster than `importlib.metadata`.
    """
    try:
        names = os.listdir(__file__.rsplit(os.sep, 3)[0])  # noqa: PTH208 - at each import
    except OSError:  # the package is in a zip file, for instance
        return None
    for name in names:
        # The folder of tomldiary-kit is "tomldiary_kit-….dist-info".
        if name.startswith("tomldiary-") and name.endswith((".dist-info", ".egg-info")):
            return name.rpartition(".")[0].replace("-", " ", 1)
    return None


def optional(module: str, what: str, extra: str) -> Any:
    """Return an optional dependency, imported; `what` needs it, and `extra` installs it.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        from tomldiary.errors import MissingExtra  # noqa: PLC0415 - this module is imported with the package

        raise MissingExtra(what, extra) from error
