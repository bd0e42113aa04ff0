"""Command lines of programs from the bundle: Python, bash and their libraries in a folder that the node agent mounts
into each sandbox.

Inside a sandbox these programs run with the bundle's own dynamic loader and libraries, so that the image's C library may
be older, newer or absent. Outside of a sandbox (in tests) they start directly.
"""

from __future__ import annotations

import os
import sys


def own_program(path: str) -> list[str]:
    """Return the first words of a command line that starts `path` in the same way as this interpreter was started."""
    running = os.readlink("/proc/self/exe")
    if running == os.path.realpath(sys.executable):
        return [path]
    return [running, "--library-path", os.path.dirname(running), path]
