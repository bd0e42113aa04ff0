"""A real server under bodies that cost much: everybody else goes on, with and without a token in the hostile hands."""

from __future__ import annotations

import asyncio
import functools
import gzip
import io
import json
import subprocess
import sys

import aiohttp
import pytest
from yarl import URL

from rollyard.client.kubeconfig import load_context
from rollyard.kinds.rollout import Status
from tests.support.yard import Yard, requests

pytestmark = pytest.mark.slow(95)

POOLS = "/apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools"
MOST_CPU_SECONDS = 1.0
"""CPU time that the thread of the server's event loop may use until /healthz is answered, whatever else keeps the machine
busy. It uses 0.1 s."""
GZIP = {"Content-Encoding": "gzip"}
PATCH = {"Content-Type": "application/merge-patch+json"}
"""One of each kind: what is large, what is deep, what unpacks, and what is many small things."""


@functools.cache
def bodies() -> dict[str, tuple[str, str, bytes, dict[str, str]]]:
    spaces, lists = gzip.compress(b" " * (200 << 20), 1), b"[" + b"[]," * (4 << 20) + b"[]]"
    big = json.dumps({"metadata": {"name": "p", "annotations": {"a": "x" * (70 << 20)}}}).encode()
    return {
        "bomb-rollouts": ("POST", "/v1/rollouts", spaces, GZIP),
        "bomb-of-lists": ("POST", "/v1/rollouts", gzip.compress(lists, 1), GZIP),
        "bomb-gateway": ("POST", "/gateway/v1/chat/completions", spaces, GZIP),
        "bomb-healthz": ("GET", "/healthz", spaces, GZIP),
        "large-object": ("POST", POOLS, big, {}),
        "many-lists": ("POST", POOLS, b"[" + b"[]," * 1_000_000 + b"[]]", {}),
        "many-numbers": ("POST", POOLS, b'{"spec": [' + b"0," * 1_400_000 + b"0]}", {}),
        "many-fields": ("POST", POOLS, json.dumps({f"k{i}": i for i in range(180_000)}).encode(), {}),
        "many-labels": ("POST", POOLS, _labelled(100_000), {}),
        # just within the limit of values
        "fewer-lists": ("POST", POOLS, b'{"spec": [' + b"[]," * 9_000 + b"[]]}", {}),
        "fewer-fields": ("POST", POOLS, json.dumps({f"k{i}": i for i in range(19_000)}).encode(), {}),
        "fewer-labels": ("POST", POOLS, _labelled(19_000), {}),
        "fewer-mistakes": ("POST", "/v1/rollouts", json.dumps({f"k{i}": i for i in range(19_000)}).encode(), {}),
        "many-tasks": ("POST", "/v1/rollouts", json.dumps([{"tsk": i} for i in range(40_000)]).encode(), {}),
        "many-mistakes": ("POST", "/v1/rollouts", json.dumps({f"k{i}": i for i in range(90_000)}).encode(), {}),
        "deep": ("POST", "/v1/rollouts", b"[" * 200_000, {}),
        "deep-patch": ("PATCH", f"{POOLS}/demo", b'{"a":' * 200_000, PATCH),
        "deep-weights": ("POST", POOLS.replace("rollout", "inference") + "/policy/weights", b"[" * 200_000, {}),
        "no-gzip": ("POST", "/v1/rollouts", b"x" * 100_000, GZIP),
    }


def _labelled(count: int) -> bytes:
    return json.dumps({"metadata": {"name": "p", "labels": {f"k{i} ": "?" for i in range(count)}}}).encode()


PROBE = """
import http.client, json, os, select, ssl, sys
host, token, ca, loop = sys.argv[1:]
caller = http.client.HTTPSConnection(host, context=ssl.create_default_context(cafile=ca), timeout=600)

def used():
    with open(f"/proc/{loop}/task/{loop}/stat") as file:
        user, system = file.read().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")

print("ready", flush=True)
taken = []
while not select.select([sys.stdin], [], [], 0.02)[0]:
    began = used()
    caller.request("GET", "/healthz", headers={"Authorization": "Bearer " + token})
    assert caller.getresponse().read() == b"ok"
    taken.append(used() - began)
print(json.dumps(sorted(taken)))
"""
"""Beside the hostile callers, in a process of its own, as they keep theirs busy."""


class Probe:
    """Asks /healthz all the time; CPU seconds of the event loop until each answer, fewest first."""

    def __init__(self, yard: Yard, url: str, token: str) -> None:
        assert yard.server is not None
        command = [sys.executable, "-c", PROBE, url.removeprefix("https://"), token, str(yard.data / "ca.pem")]
        command.append(str(yard.server.pid))
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def taken(self) -> list[float]:
        out, _ = self._process.communicate("stop\n", timeout=600)
        return [float(seconds) for seconds in json.loads(out)]


@pytest.mark.long  # tests/api/test_hostile_bodies.py has each body
@pytest.mark.parametrize("rounds", [1, 20])
async def test_hostile_bodies_again_and_again_keep_nobody_waiting(yard: Yard, rounds: int) -> None:
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1})
        await yard.ready(client)
        context = load_context(yard.data / "admin.kubeconfig")
        known = {"Authorization": f"Bearer {context.token}"}
        probe = Probe(yard, context.url, context.token)
        running = asyncio.create_task(yard.gather(client, await client.submit(requests(2, 1, n=2)), 600))
        answers: dict[str, set[int]] = {}

        async def send(http: aiohttp.ClientSession, name: str, headers: dict[str, str]) -> None:
            method, path, body, more = bodies()[name]
            try:
                async with http.request(
                    method, context.url + path, data=io.BytesIO(body), headers=more | headers
                ) as found:
                    answers.setdefault(name, set()).add(found.status)
            except aiohttp.ClientError:
                pass  # cut off in the middle of what nobody wanted

        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context.tls(), limit=0)) as http:
            for name in [*bodies()] * rounds:
                async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
                    for headers in (known, {}, {}):
                        tasks.create_task(send(http, name, headers))
        ended = await running
        taken = await asyncio.to_thread(probe.taken)
        print(f"{len(taken)} answers of /healthz: half within {taken[len(taken) // 2]:.2f} CPU seconds of the event loop, "
              f"99 of 100 within {taken[len(taken) * 99 // 100]:.2f}, all within {taken[-1]:.2f}")  # fmt: skip
        assert all(status < 500 for found in answers.values() for status in found), answers
        assert {t.attempt for t in ended} == {1}  # no lease was lost
        assert {t.status for t in ended} <= {Status.COMPLETED, Status.TRUNCATED}
        assert taken[-1] < MOST_CPU_SECONDS


async def test_a_path_of_names_leads_nowhere_else(yard: Yard) -> None:
    evil = yard.folder / "evil"
    evil.mkdir()
    (evil / "job.log").write_text("secret")
    context = load_context(yard.data / "admin.kubeconfig")
    connector = aiohttp.TCPConnector(ssl=context.tls())
    headers = {"Authorization": f"Bearer {context.token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as http:
        for name in (f"demo-0%2f{'..%2f' * 4}evil", "..%2f..%2f..%2fevil", "x" * 260, "%2e%2e", "a%00b"):
            path = f"/apis/rollyard.dev/v1alpha1/namespaces/default/allocations/{name}/log"
            async with http.get(URL(context.url + path, encoded=True)) as found:
                told = await found.json()
                assert (found.status, told["kind"]) == (404, "Status"), told
