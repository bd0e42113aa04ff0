"""Agents that flood the gateway of their own sandbox: their neighbours on the same node agent get their usual rewards."""

from __future__ import annotations

import pytest

from rollyard.kinds.rollout import Status
from tests.e2e.test_hostile_agents import attacker, neighbours, python, rewards
from tests.support.yard import Yard

pytestmark = [pytest.mark.slow(120), pytest.mark.long]

HEAD = """
import json, os, select, socket, time
place = os.environ["OPENAI_BASE_URL"].split("//")[1].split("/")[0].split(":")
def ask(body, *headers, path="/v1/chat/completions"):
    words = "\\r\\n".join([f"POST {path} HTTP/1.1", "Host: x", *headers])
    return words.encode() + b"\\r\\n" + (b"" if body is None else b"\\r\\n" + body)
def opened(count):
    return [socket.create_connection((place[0], int(place[1])), 5) for n in range(count)]
def keep(first):
    socks = opened(120)
    for sock, data in zip(socks, first * 120): sock.sendall(data)
    time.sleep(SECONDS)
call = {"model": "any", "max_tokens": 4096, "stream": True, "messages": [{"role": "user", "content": "x"}]}
"""
FLOODS = {
    "many-requests": """
socks, data, ends = opened(120), b"GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n" * 500, time.time() + SECONDS
for sock in socks: sock.setblocking(False)
while time.time() < ends:
    for sock in select.select([], socks, [], 1)[1]:
        try: sock.send(data)
        except OSError: pass
    for sock in select.select(socks, [], [], 0)[0]:
        try: sock.recv(1 << 20)
        except OSError: pass
""",
    "half-requests": """
keep([ask(None, "X-A: " + "a" * 1000), ask(b"[" * 1000, "Content-Length: 8000000"),
      ask(b"x" * 1000, "Content-Length: 8000000", "Content-Encoding: gzip")])
""",
    "streams-nobody-reads": """
body = json.dumps(call).encode()
keep([ask(body, f"Content-Length: {len(body)}")])
""",
    "large-bodies": """
ends = time.time() + SECONDS
while time.time() < ends:
    for body in (b"[" * 8000000, b'{"messages": [' + b"1," * 3000000 + b"1]}"):
        (sock,) = opened(1)
        sock.settimeout(5)
        try:
            sock.sendall(ask(body, f"Content-Length: {len(body)}"))
            sock.recv(100)
        except OSError: pass
""",
}


async def test_neighbours_of_agents_that_flood_their_gateway_get_their_usual_rewards(yard: Yard) -> None:
    async with yard.client() as client:
        await yard.apply(client, demo={"sandbox": {"memory": "512M", "disk": "256M"}, "replicas": 1})
        await yard.ready(client)
        usual = rewards(await yard.gather(client, await client.submit(neighbours("usual", 10))))
        agents = yard.processes("node-agent")
        for name, code in FLOODS.items():
            command = python(HEAD.replace("SECONDS", "8") + code.replace("SECONDS", "8"))
            hostile = await client.submit([attacker(f"{name}-{number}", command, 40) for number in range(3)])
            assert rewards(await yard.gather(client, await client.submit(neighbours(f"beside-{name}", 10)))) == usual
            assert Status.INFRA_FAILED not in {one.status for one in await yard.gather(client, hostile)}
        assert yard.processes("node-agent") == agents
