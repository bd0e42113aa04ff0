"""Starts a program from the bundle.

Inside a sandbox, bundled programs run through the bundled dynamic loader and libraries, so that the image's C library,
older, newer or absent, does not matter. Elsewhere (in tests) they start directly.
"""

from __future__ import annotations

import os
import sys


def own_program(path: str) -> list[str]:
    """Return the beginning of an argv that starts `path` in the way in which this interpreter was started."""
    running = os.readlink("/proc/self/exe")
    if running == os.path.realpath(sys.executable):
        return [path]
    return [running, "--library-path", os.path.dirname(running), path]
