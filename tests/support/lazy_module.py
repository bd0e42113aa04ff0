"""Modules that take long to import. Each worker imports all test modules, but runs few of them."""

from __future__ import annotations

import importlib
from types import ModuleType


class LazyModule:
    """Placeholder of a module among a test module's names. `tests/conftest.py` replaces it with the module itself before
    the first test of the test module. So no import stops the event loop of a test."""

    def __init__(self, name: str) -> None:
        self.name = name


def import_lazy_modules(module: ModuleType) -> None:
    """Replace the placeholders among a module's names."""
    for name, value in list(vars(module).items()):
        if isinstance(value, LazyModule):
            setattr(module, name, importlib.import_module(value.name))
