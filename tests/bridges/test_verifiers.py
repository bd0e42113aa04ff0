"""The code of docs/verifiers.md, with the released library: its harness calls the model through our sessions."""

from __future__ import annotations

import asyncio
import os
import subprocess

import pytest

from rollyard.client import AsyncClient
from tests.docs.blocks import blocks
from tests.support.compatibility import Compatibility, installed
from tests.support.released import CACHE, environment
from tests.support.yard import ROOT, Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]


async def test_a_task_of_verifiers_leaves_the_tokens_of_its_model_calls_in_a_session(
    served: tuple[Yard, AsyncClient], compatibility: Compatibility
) -> None:
    yard, client = served
    (code,) = (block.text for block in blocks(ROOT / "docs" / "verifiers.md") if block.language == "python")
    python = await asyncio.to_thread(environment, "verifiers", "0.4.0", "python3.12")
    env = {**os.environ, "HOME": str(yard.folder), "PYTHONPATH": str(ROOT), "UV_CACHE_DIR": str(CACHE / "uv")}
    env |= {"ROLLYARD_KUBECONFIG": str(yard.data / "admin.kubeconfig"), "SSL_CERT_FILE": str(yard.data / "ca.pem")}
    env["PATH"] = f"{python / 'bin'}:{os.environ['PATH']}"
    done = await asyncio.to_thread(
        subprocess.run,
        [python / "bin" / "python", "-c", code],
        env=env, cwd=yard.folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    rows = done.stdout.splitlines()
    assert len(rows) == 4
    for row in rows:
        id, reward, counts = row.split(maxsplit=2)
        assert reward in ("0.0", "1.0")
        trajectory = (await client.session(id)).trajectory
        assert counts == str([sum(segment.loss_mask) for segment in trajectory.segments])
        assert [len(trajectory.turns), len(trajectory.segments)] == [1, 1]
    compatibility.row(
        "verifiers", installed("verifiers", python), start="`POST /v1/sessions`", page="verifiers.md",
        ran="a task of its own with the harness `null`: four rollouts, each with a session as its endpoint",
        missing={
            **dict.fromkeys(("tokens", "mask", "logprobs", "versions"), "in the session's trajectory, not in its trace"),
            "rewards": "its own reward stays in its trace",
            "groups": "it counts the repeats of a task itself",
        },
    )  # fmt: skip
