"""Command lines of programs from the bundle: Python, bash and their libraries in a folder that the node agent mounts
into each sandbox.

Inside a sandbox these programs run with the bundle's own dynamic loader and libraries, so that the image's C library may
be older, newer or absent. Outside of a sandbox (in tests) they start directly.
"""

from __future__ import annotations

import os
import sys

_OWN_BASH = "/opt/rollyard/bin/bash"


def own_program(path: str) -> list[str]:
    """Return the first words of a command line that starts `path` in the same way as this interpreter was started."""
    running = os.readlink("/proc/self/exe")
    if running == os.path.realpath(sys.executable):
        return [path]
    return [running, "--library-path", os.path.dirname(running), path]


def find_program(name: str, path: str) -> list[str] | None:
    """Return the first words of a command line that starts the program `name`; None if it is on no folder of `path`.
    An image without bash gets the bundle's."""
    if "/" in name:
        return [name]
    places = (f"{folder}/{name}" for folder in path.split(":"))
    found = next((place for place in places if os.access(place, os.X_OK) and not os.path.isdir(place)), None)
    if found is None and name == "bash":
        return own_bash()
    return [found] if found is not None else None


def own_bash() -> list[str] | None:
    """Return the first words of a command line that starts the bundle's bash; None outside of a sandbox."""
    return own_program(_OWN_BASH) if os.path.exists(_OWN_BASH) else None
