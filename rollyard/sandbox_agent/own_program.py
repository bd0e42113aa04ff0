"""How to start a program that we brought along.

Inside a sandbox our programs run through the dynamic loader and the libraries that came with them, so that the image's C
library, older, newer or none at all, does not matter. Elsewhere (in tests) they start plainly.
"""

from __future__ import annotations

import os
import sys


def own_program(path: str) -> list[str]:
    """The beginning of an argv that starts `path` the way this very interpreter was started."""
    running = os.readlink("/proc/self/exe")
    if running == os.path.realpath(sys.executable):
        return [path]
    return [running, "--library-path", os.path.dirname(running), path]
