"""Limits of the node agent's own process."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import resource
from rollyard.node.own_limits import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))
raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))"""


def test_the_limit_of_open_files_is_raised_as_far_as_it_may() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "(1000, 1000)\n"
