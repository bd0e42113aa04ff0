"""mini-swe-agent as PyPI has it, unchanged, in a sandbox without a network: its rollout is one segment of exact ids."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import AgentSpec, Sampling, Status
from rollyard.kinds.values.image_reference import parse_image
from rollyard.node.harness import Harness
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_client import TokenClient
from simulation.endpoint_sampler import EndpointSampler
from simulation.upstream import LOGPROB, Upstream
from tests.support import make
from tests.support.mini_swe_agent import COMMAND, PACKAGES, image

pytestmark = pytest.mark.slow(45)


def call(command: str) -> str:
    return f'<tool_call>\n{{"name": "bash", "arguments": {{"command": "{command}"}}}}\n</tool_call>'


SAYS = [
    "First I look around.\n" + call("ls /"),
    call("echo 12 > /workspace/answer"),
    "That is it.\n" + call("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
]


@pytest.mark.heavy
async def test_mini_swe_agent_becomes_one_segment(model_dir: Path) -> None:
    try:
        root = await asyncio.to_thread(image)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip cannot get mini-swe-agent here: {error}")
    template = ChatTemplate.load(model_dir)

    def script(number: int, prompt: Sequence[int]) -> list[int]:
        return [*template.encode(SAYS[number]), template.stop_ids[0]]

    limits = Limits(cpus=2, memory_bytes=4 << 30, disk_bytes=256 << 20)
    spec = SandboxSpec(parse_image(str(root)), limits, env={"PYTHONPATH": f"/{PACKAGES}"})
    runtime = await asyncio.to_thread(find_runtime)
    agent = AgentSpec(type="command", command=COMMAND)
    prompt = [{"role": "user", "content": "Write 12 into /workspace/answer."}]
    async with (
        Upstream(script).serving() as upstream,
        aiohttp.ClientSession() as http,
        SandboxFactory(runtime) as sandboxes,
        await sandboxes.start(spec) as sandbox,
    ):
        policy = EndpointSampler(TokenClient(http), make.endpoint(url=upstream.url), template.stop_ids)
        session = GatewaySession("mini", template, policy, SessionConfig("policy", Sampling()))
        ended = await Harness(sandbox, session).run(agent, prompt)
        assert await sandbox.read_file("answer", 10) == b"12\n"
    assert ended == (Status.COMPLETED, 0)
    said = [[*template.encode(text), template.stop_ids[0]] for text in SAYS]
    (segment,) = session.segments()
    assert session.breaks() == {}
    assert segment.token_ids == [*upstream.prompts[2], *said[2]]
    assert [i for i, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m] == [
        i for ids in said for i in ids
    ]
    assert {p for p in segment.logprobs if p is not None} == {LOGPROB}
    turns = session.turns()
    assert [t.tool_calls[0]["name"] for t in turns] == ["bash"] * 3
    assert "workspace" in turns[0].tool_results[0]
