"""Limits of the node agent's own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rollyard.node.own_limits import SPARED

CODE = """
import resource
from rollyard.node.own_limits import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 1000))
raise_open_files()
print(resource.getrlimit(resource.RLIMIT_NOFILE))"""


def test_the_limit_of_open_files_is_raised_as_far_as_it_may() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout == "(1000, 1000)\n"


def test_a_node_agent_that_may_is_ended_late() -> None:
    code = "from rollyard.node.own_limits import end_late; end_late(); print(open('/proc/self/oom_score_adj').read())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before = int(Path("/proc/self/oom_score_adj").read_text())
    capabilities = next(
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff")
    )
    may = int(capabilities.split()[1], 16) >> 24 & 1  # CAP_SYS_RESOURCE
    assert int(done.stdout) == (SPARED if may else before)
