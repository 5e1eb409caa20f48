"""Public names of a package that are loaded on first use, so that importing the package is fast.

The package imports them for type checkers, too, each under the same name: `from … import Diary as Diary`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def lazy_names(package: str, modules: Mapping[str, str]) -> None:
    """Set `__getattr__`, `__dir__` and `__all__` of a package.

    The package itself defines no `__getattr__`: with one, type checkers accept any name.

    Args:
        package: The package's `__name__`.
        modules: The modules below `tomldiary`, each with the names that it defines, separated by spaces.
    """
    homes = {name: module for module, names in modules.items() for name in names.split()}
    loaded = sys.modules[package].__dict__
    loaded["__all__"] = sorted({*homes, "__version__"} if "__version__" in loaded else homes)

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = f"tomldiary.{homes[name]}"
        try:
            module = import_module(home)
        except AttributeError as error:
            # `from tomldiary import …` would replace an AttributeError by "cannot import name".
            raise ImportError(
                f"{home} cannot be loaded: {error}. Please report this with your platform."
            ) from error
        found = loaded[name] = getattr(module, name)
        return found

    loaded["__getattr__"] = load
    loaded["__dir__"] = lambda: loaded["__all__"]
