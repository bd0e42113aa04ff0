"""A handler that blocks, in a process of its own: what ends it is no code of Python's."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = """
import asyncio
from rollyard.node.main import end_when_stuck

async def main():
    watched = asyncio.create_task(end_when_stuck(1.0))
    await asyncio.sleep(1.5)
    print("alive", flush=True)
    def prompt():
        while True:
            pass
    prompt()

asyncio.run(main())
"""


def test_a_handler_that_blocks_for_ever_ends_the_node_agent_and_the_log_says_where() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKED], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (1, "alive\n"), "only once it is stuck"
    assert "Timeout" in done.stderr
    assert "in prompt" in done.stderr
