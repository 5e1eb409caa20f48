"""Views of objects in notebooks and consoles, without importing the package that draws them.

A class with a view inherits from `Viewed`. A list or dict that a method returns is a `ListView` or `DictView`. The
package that draws views is imported when the first object is shown. The returned lists and dicts compare, pickle, copy
and serialise like ordinary ones.
"""

from __future__ import annotations

from pkgutil import resolve_name
from typing import Any, Self, SupportsIndex, TypeVar, overload

T = TypeVar("T")
K = TypeVar("K")


def drawn(name: str, *args: Any, **options: Any) -> Any:
    """Call a function of the package that draws views.

    Args:
        name: `module:function` in the package.
        args: The positional arguments of the function.
        options: The keyword arguments of the function.
    """
    return resolve_name(f"tomldiary.views.{name}")(*args, **options)


class Viewed:
    """An object that is shown as a table or a card in notebooks, and as short text in consoles."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(drawn("show:as_text", self))

    def _repr_html_(self) -> str:
        return str(drawn("show:as_html", self))

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        """Return both forms for IPython, which would otherwise ask for each and so read the storage twice."""
        return dict(drawn("show:as_bundle", self))


def pretty(self: Viewed, printer: Any, cycle: bool) -> None:  # noqa: FBT001 - IPython's protocol
    """Show the view of an object in IPython; the `_repr_pretty_` of a class that has its own `__repr__`.

    The view of such an object reads its storage. A repr must not do so, because it appears in logs and tracebacks.
    """
    printer.text("…" if cycle else drawn("show:as_text", self))


class Framed(Viewed):
    """A collection that pandas can show."""

    __slots__ = ()

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row for each entry; times are timestamps in UTC.

        Raises:
            MissingExtra: pandas is not installed.
        """
        return drawn("frames:frame", self)


class ListView(Framed, list[T]):
    """A list that is shown as a table in notebooks; slices of it are also `ListView`s."""

    @overload
    def __getitem__(self, index: SupportsIndex, /) -> T: ...
    @overload
    def __getitem__(self, index: slice, /) -> Self: ...
    def __getitem__(self, index: SupportsIndex | slice, /) -> T | Self:
        if isinstance(index, slice):
            return type(self)(super().__getitem__(index))
        return super().__getitem__(index)


class DictView(Framed, dict[K, T]):
    """A dict that is shown as a table in notebooks."""


def to_second(stored: str) -> str:
    """Return a stored time for people, such as "2026-11-26 11:40:24"."""
    return stored[:19].replace("T", " ")


def counted(number: int, one: str, several: str = "") -> str:
    """Return a number with its noun, such as "1 entry" or "2 entries"."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"
