"""Imports without the search for garbage. An import makes many objects and nearly no garbage, and the searches and the
look through all modules at the process's end take a fifth of the CPU time of a start.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def imports() -> Iterator[None]:
    """Suspend the search for garbage while the block imports modules. What exists afterwards is never searched."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if searching:
            gc.enable()
