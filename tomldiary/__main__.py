"""The command line: `tomldiary`, or `python -m tomldiary`."""

from __future__ import annotations

import sys

__all__ = ["main"]

_NEEDED = {"click", "rich", "shellingham", "typer"}
_EXIT_UNUSABLE = 2


def main() -> None:
    """Run the command in `sys.argv` and exit: 0 done, 1 done in part, 2 not possible."""
    try:
        from tomldiary.cli.app import run  # noqa: PLC0415 - needs an optional dependency
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"The command line needs {error.name}, which is not installed: run"
            ' python -m pip install "tomldiary-kit[cli]".\n'
        )
        sys.exit(_EXIT_UNUSABLE)
    run()


if __name__ == "__main__":
    main()
