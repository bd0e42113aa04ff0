"""Live metrics of a running yard's pools, for people and for Prometheus."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import termios

import aiohttp
import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.base import ObjectKey, get_condition
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.top import TopView
from rollyard.sandbox.free_memory import whole_memory
from tests.support.yard import ROOT, Yard, requests


def on_a_terminal(yard: Yard, word: bytes) -> bytes:
    """All that `top` writes to a terminal until this word stands there twice, and Ctrl-C is pressed."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, array.array("h", [24, 200, 0, 0]))
    # a test run in the background ignores Ctrl-C, and so would its children
    line = ["env", "--default-signal=INT", sys.executable, "-m", "rollyard.cli.main", "top", "-w", "0.2"]
    line += ["--kubeconfig", str(yard.data / "admin.kubeconfig")]
    env = {**os.environ, "TERM": "xterm"}
    process = subprocess.Popen(line, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=env)
    os.close(theirs)
    screen, pressed = b"", False
    with open(ours, "rb", buffering=0) as terminal, contextlib.suppress(OSError):  # EIO once the other side is closed
        while data := terminal.read(65536):
            screen += data
            if screen.count(word) > 1 and not pressed:
                process.send_signal(signal.SIGINT)
                pressed = True
    assert process.wait(120) == 0, screen[-500:]
    return screen


async def endpoint_metrics(client: AsyncClient) -> dict[str, float]:
    """Those of endpoints, by name, of the pool `policy`."""
    connector = aiohttp.TCPConnector(ssl=client.context.tls())
    headers = {"Authorization": f"Bearer {client.context.token}"}
    async with (
        aiohttp.ClientSession(connector=connector, headers=headers) as http,
        http.get(f"{client.context.current_url()}/metrics") as answer,
    ):
        text = await answer.text()
    labels = r'\{namespace="default",pool="policy",endpoint="default/policy-ip-0".*\}'
    return {name: float(value) for name, value in re.findall(rf"^rollyard_endpoint_(\w+){labels} (\S+)$", text, re.M)}


@pytest.fixture
async def served(yard: Yard) -> Yard:
    async with yard.client() as client:
        sandbox = {"memory": str(whole_memory() // 8)}  # the cores have room for 20
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1, "sandbox": sandbox})
        await yard.ready(client)
        await yard.gather(client, await client.submit(requests(6, 0)))
    return yard


async def test_what_was_just_done_is_seen_in_top_in_metrics_and_in_status_and_goes_with_the_pool(served: Yard) -> None:
    async with served.client() as client:
        more = itertools.count()

        async def busy() -> TopView | None:
            found = TopView.model_validate_json((await served.rollyard("top", "-o", "json"))[0])
            load = found.inference_pools[0].load
            ended = found.rollout_pools[0].ended_per_minute  # absent during the server's first seconds
            if ended and load.tokens_per_second and load.prefix_hit_rate and load.first_token_seconds:
                return found
            await client.submit(requests(2, 0, prefix=f"more-{next(more)}"))  # what was done may be too long ago
            return None

        (pool,), (rollouts,) = (shown := await served.until(busy)).inference_pools, shown.rollout_pools
        (endpoint,) = pool.endpoints
        assert endpoint.tokens_per_second > 0
        assert 0 < endpoint.prefix_hit_rate < 1
        assert 0 < endpoint.first_token_seconds < 30
        assert endpoint.preemptions_per_second == 0
        assert pool.load.tokens_per_second == endpoint.tokens_per_second
        assert pool.weights_versions == [endpoint.weights_version]
        assert sum(rollouts.ended_per_minute.values()) > 0

        table, _ = await served.rollyard("top")
        assert [line.split()[0] for line in table.splitlines() if line] == [
            "INFERENCE", "policy", "policy-ip-0", "ROLLOUT", "demo",
        ]  # fmt: skip
        assert "ROLLOUT" not in (await served.rollyard("top", "inference"))[0]
        assert "policy" not in (await served.rollyard("top", "demo"))[0]

        screen = await asyncio.to_thread(on_a_terminal, served, b"policy-ip-0")
        assert b"\x1b[?1049h" in screen, "it takes the whole terminal, and takes down what it put up"
        assert b"\x1b[?1049l" in screen

        measured = await endpoint_metrics(client)
        assert measured["ready"] == measured["weights_info"] == 1
        assert measured["generated_tokens_total"] > 0
        assert 0 < measured["prefix_hits_total"] < measured["prefix_queries_total"] == measured["prompt_tokens_total"]
        assert measured["first_tokens_total"] >= 6
        assert measured["first_tokens_seconds_total"] > 0

        async def written() -> bool:
            policy = await client.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
            assert isinstance(policy, InferencePool)
            return policy.status.endpoints[0].kv_usage is not None and policy.status.load.running is not None

        assert await served.until(written)

        async def short() -> str | None:
            pool = await client.get(ObjectKey(kind="RolloutPool", namespace="default", name="demo"))
            assert isinstance(pool, RolloutPool)
            found = get_condition(pool.status.conditions, "EnoughMemory")
            return f"{found.status} {found.reason}: {found.message}" if found is not None else None

        words = str(await served.until(short))
        assert re.fullmatch(
            r"False FewerSandboxes: node \S+ has memory for 7 of 20 sandboxes: it has [0-9.]+ GiB of memory, and each "
            r"sandbox may take [0-9.]+ GiB \(set more memory in `allocation`, or less in `sandbox.memory`\)",
            words,
        ), words

        await client.delete(ObjectKey(kind="InferencePool", namespace="default", name="policy"))

        async def gone() -> bool:
            return not await endpoint_metrics(client) and not (await client.top()).inference_pools

        assert await served.until(gone)

        accepted = len(await client.submit(requests(50, 0, prefix="after")))
        stages = (await client.top()).rollout_pools[0].stages.values()
        assert sum(load.queued + load.in_flight for load in stages) >= accepted, "top counts what was just accepted"
