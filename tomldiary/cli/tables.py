"""Loads a preference table from a Python file, which is run."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tomldiary.entries.schema import categories
from tomldiary.errors import InvalidValue, SchemaError
from tomldiary.storage.shared.database import without_secrets

if TYPE_CHECKING:
    from pydantic import BaseModel

_MODULE = "_tomldiary_table"


def load_table(place: str) -> type[BaseModel]:
    """Run `FILE.py` of `FILE.py:Class` and return the class.

    Raises:
        InvalidValue: The file or the class does not exist, or running the file fails.
        SchemaError: The class is not a preference table.
    """
    file, _, name = place.rpartition(":")
    if not file or not name.isidentifier():
        raise InvalidValue(
            "expected FILE.py:Class, such as prefs.py:MyTable", where=without_secrets(place)
        )
    path = Path(file)
    if not path.is_file():
        raise InvalidValue("there is no such file; check the path", where=file)
    module = ModuleType(_MODULE)
    module.__file__ = str(path)
    # Annotations are resolved in the module of this name. The file may import modules from its folder.
    sys.modules[_MODULE] = module
    sys.path.insert(0, str(path.resolve().parent))
    try:
        _run(path, module)
        table: Any = getattr(module, name, None)
        if table is None:
            classes = (each for each in vars(module).values() if isinstance(each, type))
            named = [each.__name__ for each in classes if each.__module__ == _MODULE]
            raise InvalidValue(
                f"the file has no class {name}; it has {', '.join(named) or 'none'}", where=file
            )
        categories(table)
    except SchemaError as error:
        raise SchemaError(f"{file}: {error}") from error
    finally:
        sys.path.pop(0)
        del sys.modules[_MODULE]
    return table


def _run(path: Path, module: ModuleType) -> None:
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), vars(module))  # noqa: S102 - the user asked for it
    except SyntaxError as error:
        raise InvalidValue(
            f"the file is not valid Python ({error.msg})", where=f"{path}:{error.lineno or 1}"
        ) from error
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == str(path)]
        where = f"{path}:{lines[-1]}" if lines else str(path)
        raise InvalidValue(
            f"running the file failed ({type(error).__name__}: {error})", where=where
        ) from error
