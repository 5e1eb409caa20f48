"""The command line: `tomldiary`, or `python -m tomldiary`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["main"]

_NEEDED = {"click", "rich", "shellingham", "typer"}
_EXIT_UNUSABLE = 2
_EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command in `sys.argv` and exit: 0 success, 1 partial success or findings, 2 failure, 130 Ctrl+C."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        # The caller may have closed the stream. Open another file, so that no file of a memory gets its descriptor.
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - open until the end
            setattr(sys, name, stream)
    try:
        from tomldiary.cli.app import run  # noqa: PLC0415 - needs an optional dependency

        run()
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _NEEDED:
            raise
        sys.stderr.write(
            f"The command line needs {error.name}, which is not installed: run"
            ' python -m pip install "tomldiary-kit[cli]".\n'
        )
        sys.exit(_EXIT_UNUSABLE)
    except KeyboardInterrupt:  # the imports and the parser take most of the time of a short command
        sys.exit(_EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()
