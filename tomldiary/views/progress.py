"""Progress bars of long operations, drawn by tqdm if it is installed.

A bar appears after a second, on a terminal or in a notebook, and is removed when the operation ends.
"""

from __future__ import annotations

import sys
import warnings
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_DELAY = 1.0  # seconds until a bar appears


def _is_interactive() -> bool:
    """Return whether the code runs in IPython or a notebook."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and ipython.get_ipython() is not None


@contextmanager
def reporting(
    progress: Callable[[int, int], object] | bool | None,  # noqa: FBT001 - see below
    what: str,
) -> Generator[Callable[[int, int], object] | None]:
    """Yield a function that accepts the numbers of finished and of all steps, or None to report nothing.

    Args:
        progress: A function to call; True shows a bar, False shows none, and None shows one in IPython only.
        what: The plural noun of the steps, such as "turns".
    """
    if callable(progress):
        yield progress
        return
    if progress is False or (progress is None and not _is_interactive()):
        yield None
        return
    try:
        with warnings.catch_warnings():
            # Without ipywidgets, tqdm warns and draws a text bar.
            warnings.simplefilter("ignore")
            tqdm: Any = import_module("tqdm.auto").tqdm
    except ImportError:
        yield None
        return
    # `disable=None` makes tqdm silent if stderr is not a terminal.
    with tqdm(
        desc=what, delay=_DELAY, leave=False, disable=None if not _is_interactive() else False
    ) as bar:

        def report(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield report
