"""kubectl itself, where it is installed, on pools of no allocations."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.yard import Yard

POOL = """
apiVersion: rollyard.dev/v1alpha1
kind: RolloutPool
metadata: {name: empty}
spec: {replicas: 0, inference: {policy: others}}
---
apiVersion: rollyard.dev/v1alpha1
kind: InferencePool
metadata: {name: others}
spec: {model: {path: /models/tiny}, engine: {external: {}}}
"""


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
async def test_kubectl_applies_gets_watches_describes_and_deletes(yard: Yard, tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)

    async def kubectl(*words: str, code: int = 0) -> str:
        command = ["kubectl", "--kubeconfig", str(yard.data / "admin.kubeconfig"), *words]
        env = {**os.environ, "HOME": str(tmp_path)}
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, env=env, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr
        return str(done.stdout + done.stderr)

    file = str(tmp_path / "pool.yaml")
    assert "created" in await kubectl("apply", "--validate=false", "-f", file)
    assert "unchanged" in await kubectl("apply", "--validate=false", "-f", file)
    assert "condition met" in await kubectl("wait", "rp/empty", "--for=condition=Ready", "--timeout=30s")
    assert (await kubectl("get", "rolloutpools")).split()[0] == "NAME"

    async def told() -> bool:
        """The event is written after the condition."""
        return "AllReady" in (await kubectl("describe", "rp", "empty")).rpartition("Events:")[2]

    await yard.until(told)
    assert "scaled" in await kubectl("scale", "rp", "empty", "--replicas=0")
    assert "deleted" in await kubectl("delete", "rp", "empty", "--timeout=30s")
    assert "not found" in await kubectl("get", "rp", "empty", code=1)
