"""Results over the real API: however a node agent uploads one and however a client reads it, it is the same."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from rollyard.api import trajectories
from rollyard.client.async_client import AsyncClient
from rollyard.client.kubeconfig import Context
from rollyard.client.server_link import ServerLink
from rollyard.core.errors import Fenced
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import Stage, Status
from rollyard.node.result_uploads import ResultUploads
from rollyard.trajectory import RunResult, Trajectory
from rollyard.trajectory.columns import CONTENT_TYPE, decode, join
from rollyard.trajectory.frames import framed
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.files import AllocationFile
from rollyard.wire.node import MAX_RESULTS, LeaseRef
from tests.support.make import rollout
from tests.support.outside_api import Api, Serve
from tests.wire.samples import OUTCOME

RUN = RunResult(outcome=evolve(OUTCOME, error=None), artifact={"answer": "2", "image": b"\x89PNG\xff", "empty": b""})
TRAJECTORIES = "/v1/rollouts/stream?trajectories=1"


@asynccontextmanager
async def node_agent(api: Api, folder: Path) -> AsyncIterator[ResultUploads]:
    """The uploads of the allocation `u`."""
    endpoint = folder / "endpoint.json"
    endpoint.write_text(json.dumps({"url": api.url, "epoch": 1}))
    allocation = AllocationFile(
        allocation="a", namespace="default", uid="u", pool="swe", endpoint_file=str(endpoint),
        ca_file="", scratch="",
    )  # fmt: skip
    token = api.parts.signer.issue(Role.NODE, "u")
    link = ServerLink(allocation, folder, token, ssl.create_default_context())
    async with link.session() as http:
        uploads = ResultUploads(link, http)
        yield uploads


async def leased(api: Api, id: str, holder: str = "u/i") -> LeaseRef:
    request = '{"pool":"swe","task":{"kind":"math"}}'
    running = rollout(
        id,
        request=request,
        pool="swe",
        status=Status.RUNNING,
        stage=Stage.INIT,
        holder=holder,
        fence=1,
        group="g",
        queued_seconds=0.5,
    )
    await api.store.rollouts.transact(lambda tx: tx.put(running))
    return LeaseRef(namespace="default", id=id, fence=1)


def a_client(api: Api) -> AsyncClient:
    return AsyncClient(Context(api.url, None, api.admin, "default", None))


async def read(api: Api, path: str, accept: str | None = None) -> tuple[str, bytes]:
    async with api.http.get(api.url + path, headers={"Accept": accept} if accept else {}) as answer:
        assert answer.status == 200, await answer.text()
        return answer.content_type, await answer.read()


async def test_a_result_is_the_same_however_it_is_read(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        await uploads.run(ref, RUN)
        assert await uploads.stored_run(ref) == RUN
        await uploads.result(ref, RUN.outcome)
        kind, data = await read(api, "/v1/rollouts/r")
        told = json.loads(data)["trajectory"]
        assert kind == "application/json"
        assert told == {
            **json.loads(RUN.outcome.model_dump_json()),
            **{"id": "r", "namespace": "default", "group": "g", "sample_index": 0, "attempt": 1, "mode": "train"},
            "forked_from": None,
            "regrade_of": None,
            "task": {"kind": "math"},
            "timings": {"queued": 0.5, "init": 1.0, "run": 2.0, "eval": 0.25},
        }
        expected = Trajectory.model_validate(told)
        assert (await client.rollout("r"))[1] == expected
        view, columns = await client.rollout_columns("r")
        assert columns is not None
        assert (view.status, columns.trajectories()) == (Status.COMPLETED, [expected])
        async for cursor, found in client.stream():
            assert (cursor, found) == (1, expected)
            break


async def test_a_rollout_under_way_has_no_sample(serving: Serve) -> None:
    async with serving() as api, a_client(api) as client:
        await leased(api, "r")
        _, data = await read(api, "/v1/rollouts/r", CONTENT_TYPE)
        assert (len(decode(data)), decode(data).about["rollout"]["status"]) == (0, "Running")
        assert (await client.rollout("r"))[1] is None


async def test_a_rollout_without_a_result_is_a_sample_without_tokens(serving: Serve) -> None:
    async with serving() as api, a_client(api) as client:
        await leased(api, "r")
        await client.cancel("r")
        view, columns = await client.rollout_columns("r")
        assert (view.status, columns is not None and len(columns.token_ids)) == (Status.CANCELLED, 0)
        assert (await client.wait("r")).error is not None


@pytest.mark.parametrize(("portion_bytes", "files"), [(trajectories.PORTION_BYTES, [[2, 3, 4]]), (1, [[2], [3], [4]])])
async def test_a_stream_has_each_end_once_with_its_cursor(
    portion_bytes: int, files: list[list[int]], serving: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts that have ended already come together, up to a size."""
    monkeypatch.setattr(trajectories, "PORTION_BYTES", portion_bytes)
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        for id in ("a", "b", "c", "d"):
            await uploads.result(await leased(api, id), evolve(RUN.outcome, reward=0.5))
        found = [pair async for pair in client.stream_columns(group="g", after=1, upto=4)]
        assert [columns.about["cursors"] for _, columns in found] == files
        assert [cursor for cursor, _ in found] == [cursors[-1] for cursors in files]
        assert [sample["id"] for sample in join([columns for _, columns in found]).samples] == ["b", "c", "d"]
        cursors = []
        async for cursor, _ in client.stream(group="g", after=2):
            cursors.append(cursor)
            if len(cursors) == 2:
                break
        assert cursors == [3, 4]
        async with api.http.get(api.url + TRAJECTORIES) as answer:
            assert answer.content_type == "text/event-stream"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "application/json"),
        ("*/*", "application/json"),
        ("application/json", "application/json"),
        (f"text/html, {CONTENT_TYPE.upper()};q=0.9", CONTENT_TYPE),
    ],
)
async def test_json_is_the_default(serving: Serve, accept: str | None, kind: str) -> None:
    async with serving() as api:
        await leased(api, "r")
        assert (await read(api, "/v1/rollouts/r", accept))[0] == kind


async def test_a_refused_upload_becomes_a_failure(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads, a_client(api) as client:
        ref = await leased(api, "r")
        await uploads.result(ref, evolve(RUN.outcome, metrics={f"metric {i}": 1.0 for i in range(10_000)}))
        view, trajectory = await client.rollout("r")
        assert trajectory is not None
        assert trajectory.error is not None
        assert (view.status, trajectory.error.reason, trajectory.segments) == (Status.FAILED, "ResultRefused", [])


async def test_results_of_one_request_succeed_and_fail_on_their_own(serving: Serve, tmp_path: Path) -> None:
    async with serving() as api, node_agent(api, tmp_path) as uploads:
        refs = [await leased(api, id) for id in ("a", "b", "c")]
        refs[1] = evolve(refs[1], fence=7)
        await asyncio.gather(*(uploads.run(ref, RUN) for ref in (refs[0], refs[2])))
        ended = await asyncio.gather(*(uploads.result(ref, RUN.outcome) for ref in refs), return_exceptions=True)
        assert [type(end) for end in ended] == [type(None), Fenced, type(None)]
        found = [await api.store.rollouts.get("default", id) for id in ("a", "b", "c")]
        assert [r and (r.status, r.result is not None) for r in found] == [
            (Status.COMPLETED, True),
            (Status.RUNNING, False),
            (Status.COMPLETED, True),
        ]


async def test_a_body_of_several_results_is_checked(serving: Serve) -> None:
    async with serving() as api:
        headers = {"Authorization": "Bearer " + api.parts.signer.issue(Role.NODE, "u")}

        async def put(body: bytes) -> tuple[int, Any]:
            async with api.http.put(api.url + "/v1/node/results", data=body, headers=headers) as answer:
                return answer.status, await answer.json()

        assert (await put(b"\x01"))[0] == 400
        assert (await put(framed(b"") * (MAX_RESULTS + 1)))[0] == 413
        status, answer = await put(framed(b"no result"))
        assert (status, answer["results"][0]["reason"]) == (200, "Invalid")
        assert await put(b"") == (200, {"results": []})


async def test_an_error_is_json_for_everybody(serving: Serve) -> None:
    async with serving() as api:
        headers = {"Accept": CONTENT_TYPE}
        async with api.http.get(api.url + "/v1/rollouts/none", headers=headers) as answer:
            assert (answer.status, (await answer.json())["reason"]) == (404, "NotFound")
