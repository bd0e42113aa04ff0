"""Ids of rollouts in the client's calls: one that no rollout can have never names another path of the server."""

from __future__ import annotations

import pytest

from rollyard.client import AsyncClient
from rollyard.client.kubeconfig import Context
from rollyard.core.errors import BadRequest, NotFound
from rollyard.wire.attach import AttachKind, Start

pytestmark = pytest.mark.asyncio
NO_SERVER = Context("http://127.0.0.1:1", None, "token", "default", None)
LOOK = Start(kind=AttachKind.EXEC, command=["true"])


@pytest.mark.parametrize("id", ["", "a/b", "a?pool=demo", "../batches", "a#b", "a\n"])
async def test_an_id_that_is_a_path_is_refused_before_anything_is_sent(id: str) -> None:
    async with AsyncClient(NO_SERVER, retry_seconds=0) as client:
        for call in (client.rollout, client.rollout_history, client.snapshots, client.cancel):
            with pytest.raises(NotFound, match="an id has letters, digits"):
                await call(id)
        with pytest.raises(NotFound, match="an id has letters, digits"):
            async with client.attach(id, LOOK):
                pass


async def test_a_command_that_is_not_utf_8_says_so() -> None:
    start = Start(kind=AttachKind.COPY_OUT, path="/tmp/\udcff")
    async with AsyncClient(NO_SERVER, retry_seconds=0) as client:
        with pytest.raises(BadRequest, match="is not UTF-8"):
            async with client.attach("r-1", start):
                pass
