"""A sandbox whose processes the guard cannot see: it is said, but not of a sandbox that is ending."""

from __future__ import annotations

import subprocess

import pytest

from rollyard.sandbox.memory_guard.client import MemoryGuard
from tests.support.until import until


async def test_only_a_sandbox_that_goes_on_is_said_to_be_without_a_limit(capfd: pytest.CaptureFixture[str]) -> None:
    guard, said = MemoryGuard(), ""
    with subprocess.Popen(["sleep", "1000"]) as goes_on, subprocess.Popen(["cat"], stdin=subprocess.PIPE) as ends:
        try:
            for name, launcher in (("ends", ends), ("forgotten", goes_on), ("goes-on", goes_on)):
                guard.watch(name, launcher.pid, 1 << 30)
            guard.forget("forgotten")
            ends.communicate()

            def told() -> bool:
                nonlocal said
                said += capfd.readouterr().err
                return "goes-on" in said

            await until(told)
        finally:
            guard.close()
            goes_on.kill()
    assert said == "the memory of sandbox goes-on is not limited: its processes are not seen\n"
