"""Uploads results to the server; keeps each until it is acknowledged, across reconnects and restarts of the server."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import zstandard

from rollyard.client.server_link import ServerLink, raise_for_status
from rollyard.core.backoff import Backoff
from rollyard.core.errors import ApiError, Fenced, Invalid, TooLarge, Unavailable, connection_failure_text
from rollyard.kinds.rollout import Outcome, RolloutError, RunResult, Stage, Status, sampled_tokens
from rollyard.wire.node import MAX_ARTIFACT_BYTES, RESULT_CONTENT_TYPE, LeaseRef, ResultHeader

log = logging.getLogger(__name__)

REQUEST_SECONDS = 120.0


class ResultUploads:
    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http

    async def run(self, ref: LeaseRef, result: RunResult) -> None:
        """Upload RUN's result. Raises Fenced when the lease is void, Invalid or TooLarge when the server refuses the
        result."""
        if sum(map(len, result.artifact.values())) > MAX_ARTIFACT_BYTES:
            raise Invalid(f"the artifact has more than {MAX_ARTIFACT_BYTES} bytes")
        await self._put("/v1/node/run", _header(ref, result.outcome), result.model_dump_json())

    async def result(self, ref: LeaseRef, outcome: Outcome) -> None:
        """Upload the outcome. When the server refuses it, a failure is uploaded instead, so that the rollout does not
        wait for ever."""
        try:
            await self._put("/v1/node/result", _header(ref, outcome), outcome.model_dump_json())
        except (Invalid, TooLarge) as error:
            log.error("the result of %s was refused: %s", ref.id, error)
            refusal = RolloutError(stage=ref.stage, reason="ResultRefused", message=str(error))
            small = Outcome(status=Status.FAILED, node=outcome.node, error=refusal)
            await self._put("/v1/node/result", _header(ref, small), small.model_dump_json())

    async def stored_run(self, ref: LeaseRef) -> RunResult:
        """Fetch the RUN result of another node agent, as soon as the server can be reached. Raises Fenced."""
        query = {"namespace": ref.namespace, "id": ref.id, "fence": str(ref.fence)}
        backoff = Backoff()
        while True:
            try:
                url = await self._link.url() + "/v1/node/run"
                async with self._http.get(url, params=query) as answer:
                    await raise_for_status(answer)
                    frame = await answer.read()
                found = await asyncio.to_thread(zstandard.decompress, frame)
                return RunResult.model_validate_json(found, extra="ignore")  # written by a node agent that may be newer
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable) as error:
                log.warning("the stored run of %s could not be fetched yet: %s", ref.id, error)
            await backoff.wait()

    async def _put(self, path: str, header: ResultHeader, body: str) -> None:
        frame = await asyncio.to_thread(zstandard.compress, body.encode(), 3)
        data = header.model_dump_json().encode() + b"\n" + frame
        backoff = Backoff()
        while True:
            try:
                await self._put_once(path, data)
                return
            except (Fenced, Invalid, TooLarge):
                raise
            except ApiError as error:
                log.warning("%s of %s is not acknowledged yet: %s", path, header.lease.id, error)
            await backoff.wait()

    async def _put_once(self, path: str, data: bytes) -> None:
        timeout, headers = aiohttp.ClientTimeout(total=REQUEST_SECONDS), {"Content-Type": RESULT_CONTENT_TYPE}
        url = await self._link.url() + path
        try:
            async with self._http.put(url, data=data, headers=headers, timeout=timeout) as answer:
                await raise_for_status(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(connection_failure_text(error)) from None


def _header(ref: LeaseRef, outcome: Outcome) -> ResultHeader:
    timings = {s.lower(): t for s in Stage if (t := getattr(outcome.timings, s.lower())) is not None}
    return ResultHeader(
        lease=ref,
        status=outcome.status.value,
        reward=outcome.reward,
        error=outcome.error,
        metrics=outcome.metrics,
        endpoint=outcome.endpoint,
        turns=len(outcome.turns),
        tokens=sum(t.response_length for t in outcome.turns),
        sampled=sampled_tokens(outcome.segments),
        tool_calls=sum(len(t.tool_calls) for t in outcome.turns),
        timings=timings,
        weights_versions=sorted({v for s in outcome.segments for v in s.weights_version if v is not None}),
    )
