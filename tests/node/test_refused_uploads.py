"""Results that the server, or the node agent itself, refuses."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from aiohttp import web

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout import MAX_ARTIFACT_BYTES, Stage, Status
from rollyard.node.result_uploads import ResultUploads
from rollyard.server.rollouts.results import split_upload
from rollyard.trajectory import Artifact, Outcome, RunResult
from rollyard.trajectory.frames import unframed
from rollyard.wire.node import LeaseRef
from simulation.serving import serve_app
from tests.support import make


async def test_results_that_are_refused_together_go_alone_and_stay_as_they_are(tmp_path: Path) -> None:
    stored: dict[str, Status] = {}
    refused = 0

    async def results(request: web.Request) -> web.Response:
        nonlocal refused
        first, *others = unframed(await request.read())
        if others:
            refused += 1
            return web.json_response(
                {"code": 413, "reason": "RequestEntityTooLarge", "message": "too many"}, status=413
            )
        header = split_upload(first).header
        stored[header.lease.id] = Status(header.status)
        return web.json_response({"results": [None]})

    app = web.Application()
    app.add_routes([web.put("/v1/node/results", results)])
    async with serve_app(app) as url:
        endpoint = tmp_path / "endpoint.json"
        endpoint.write_text(json.dumps({"url": url, "epoch": 1}))
        link = make.server_link(endpoint)
        async with link.session() as http:
            uploads = ResultUploads(link, http)
            leases = [LeaseRef(namespace="default", id=f"r{i}", fence=1, stage=Stage.EVAL) for i in range(3)]
            outcome = Outcome(status=Status.COMPLETED, reward=1.0)
            await asyncio.gather(*(uploads.result(lease, outcome) for lease in leases))
    assert refused
    assert stored == {f"r{i}": Status.COMPLETED for i in range(3)}


async def test_the_size_of_an_artifact_is_counted_in_bytes(tmp_path: Path) -> None:
    lease = LeaseRef(namespace="default", id="r", fence=1, stage=Stage.RUN)
    link = make.server_link(tmp_path / "endpoint.json")
    half = MAX_ARTIFACT_BYTES // 2
    artifacts: list[Artifact] = [{"text": "ä" * (half + 1)}, {"text": "x" * half, "raw": b"\xff" * (half + 1)}]
    async with asyncio.timeout(60), link.session() as http:
        for artifact in artifacts:
            run = RunResult(outcome=Outcome(status=Status.COMPLETED), artifact=artifact)
            with pytest.raises(Invalid, match=f"more than {MAX_ARTIFACT_BYTES} bytes"):
                await ResultUploads(link, http).run(lease, run)
