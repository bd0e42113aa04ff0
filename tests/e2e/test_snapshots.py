"""Snapshots of whole rollouts: after each turn, with what its tools wrote, from real sandboxes of a node agent."""

from __future__ import annotations

import io
import tarfile

import pytest
import zstandard

from rollyard.client import AsyncClient
from rollyard.kinds.rollout import Status
from tests.support.yard import Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(30)]

COMMAND = """cat > /tmp/harness.py <<'EOF'
import json, os, urllib.request
body = json.dumps({"model": "any", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 9}).encode()
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)).read()
EOF
echo noted > notes.txt; mkfifo pipe; python3 /tmp/harness.py"""


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(zstandard.ZstdDecompressor().stream_reader(archive).read())) as found:
        return found.getnames()


async def test_every_turn_of_the_loop_has_one(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    ids = await client.submit(requests(2, 2, prefix="every", agent={"snapshots": "every"}))
    for ended in await yard.gather(client, ids):
        assert ended.status.scored, ended.error
        found = await client.snapshots(ended.id)
        assert [one.turn for one in found] == list(range(1, len(ended.turns) + 1))
        assert {one.error for one in found} == {None}
        for one in found:
            archive = await client.snapshot(ended.id, one.turn)
            assert len(archive) == one.size
            assert "workspace" in names(archive)


async def test_a_command_has_one_at_its_end(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    agent = {"type": "command", "command": COMMAND, "snapshots": "last"}
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="last", agent=agent)))
    assert ended.status in (Status.COMPLETED, Status.TRUNCATED), ended.error
    (one,) = await client.snapshots(ended.id)
    assert (one.turn, one.left_out_count) == (len(ended.turns), 0)
    assert {"workspace/notes.txt", "workspace/pipe", "tmp/harness.py"} <= set(names(await client.snapshot(ended.id, 1)))


async def test_none_without_a_request(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    (ended,) = await yard.gather(client, await client.submit(requests(1, 0, prefix="none")))
    assert await client.snapshots(ended.id) == []
