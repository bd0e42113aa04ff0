"""Saved turns and snapshots of which one bit is flipped between node agent and server: they are refused, with the reason."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import zstandard

from rollyard.core.errors import Invalid
from rollyard.wire.node import TurnsHeader
from tests.api.test_columns import leased, node_agent
from tests.api.test_snapshots import header
from tests.support.flipping_proxy import FlippingProxy
from tests.support.outside_api import Serve

DAMAGED = "damaged on its way: its digest does not match"
ARCHIVE = b"an archive with a mark"
DIGEST = hashlib.sha256(ARCHIVE).hexdigest()
TURN = zstandard.compress(b'{"a": "mark"}')


async def test_what_was_changed_on_its_way_is_neither_stored_nor_used(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, FlippingProxy(int(api.url.rpartition(":")[2])).serving() as proxy:
        api.url = f"http://127.0.0.1:{proxy.port}"
        async with node_agent(api, tmp_path) as uploads:
            ref = await leased(api, "r")
            turns = TurnsHeader(lease=ref, kept=0, stopped="mark")
            snapshot = header(ref, 1, resume=True, image="mark", sha256=DIGEST)
            for mark in (b"mark", b'"kept":0', TURN[-8:]):  # in the header, as a number of it, in a turn
                proxy.mark = mark
                with pytest.raises(Invalid, match=DAMAGED):
                    await uploads.turns(turns, [TURN])
            assert (await api.parts.rollouts.get("default", "r")).saved_turns == 0
            proxy.mark = b""
            await uploads.turns(turns, [TURN])
            for mark in (b'"turn":1', ARCHIVE):
                proxy.mark = mark
                with pytest.raises(Invalid, match=DAMAGED):
                    await uploads.snapshot(snapshot, ARCHIVE)
            proxy.mark = b""
            await uploads.snapshot(snapshot, ARCHIVE)

            assert (await uploads.stored_turns(ref))[1] == [TURN]
            assert (await uploads.turns_snapshot(ref))[1] == ARCHIVE
            for mark in (TURN[-8:], b'"turn":1'):
                proxy.mark = mark
                with pytest.raises(ValueError, match=DAMAGED):
                    await uploads.stored_turns(ref)
            for mark in (ARCHIVE, DIGEST.encode()):
                proxy.mark = mark
                with pytest.raises(Invalid, match=DAMAGED):
                    await uploads.turns_snapshot(ref)
