"""Limits of the node agent's own process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.node.own_limits import SPARED

CODE = """
import resource, sys
from rollyard.node.own_limits import raise_soft_limits
kind = getattr(resource, sys.argv[1])
resource.setrlimit(kind, (900, 1000))
raise_soft_limits()
print(resource.getrlimit(kind))"""


@pytest.mark.parametrize("kind", ["RLIMIT_NOFILE", "RLIMIT_NPROC"])
def test_the_limits_of_open_files_and_of_processes_are_raised_as_far_as_they_may(kind: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, kind], capture_output=True, text=True, check=True)
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
