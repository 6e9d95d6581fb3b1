"""Names of a package that are imported when they are first asked for (PEP 562).

A deployment script that imports this package for one call should not pay for asyncio, the
machine and a hundred classes before it makes that call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def exports(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """A module's ``__getattr__`` that finds each name in the module that it lives in.

    Args:
        package: The package's ``__name__``.
        homes: Each name with its module, relative to the package; "" for a module itself.
    """

    def get(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = homes[name]
        value: object = import_module(f"{package}.{home or name}")
        if home:
            value = getattr(value, name)
        setattr(sys.modules[package], name, value)
        return value

    return get
