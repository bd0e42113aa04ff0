"""Uploads results to the server. A result is sent again until the server acknowledges it, also after a restart of the
server.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor

import aiohttp
import zstandard

from rollyard.client.server_link import ServerLink, raise_for_status
from rollyard.core.backoff import Backoff
from rollyard.core.errors import ApiError, Fenced, Invalid, TooLarge, Unavailable, connection_failure_text
from rollyard.kinds.rollout import Outcome, RolloutError, RunResult, Stage, Status
from rollyard.wire.columns import CONTENT_TYPE, Columns, columns_of, decode, is_columns
from rollyard.wire.node import MAX_ARTIFACT_BYTES, RESULT_CONTENT_TYPE, LeaseRef, ResultHeader

log = logging.getLogger(__name__)

REQUEST_SECONDS = 120.0
COMPRESSION_LEVEL = 1
"""Higher levels do not make columns smaller, because the numbers are hardly compressible."""


class ResultUploads:
    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http
        self.as_columns = False
        """Whether the server can read results as columns. The server's `Welcome` sets this."""
        self._encoding = ThreadPoolExecutor(1, "encode-results")
        """One thread. Several threads compete with each other and with the event loop for the interpreter, so that fewer
        results are uploaded per second."""

    async def run(self, ref: LeaseRef, result: RunResult) -> None:
        """Upload RUN's result. Raises Fenced when the lease is void, Invalid or TooLarge when the server refuses the
        result."""
        if sum(map(len, result.artifact.values())) > MAX_ARTIFACT_BYTES:
            raise Invalid(f"the artifact has more than {MAX_ARTIFACT_BYTES} bytes")
        await self._put("/v1/node/run", ref, result)

    async def result(self, ref: LeaseRef, outcome: Outcome) -> None:
        """Upload the outcome. If the server refuses the outcome, a failure is uploaded instead, so that the rollout
        ends."""
        try:
            await self._put("/v1/node/result", ref, outcome)
        except (Invalid, TooLarge) as error:
            log.error("the result of %s was refused: %s", ref.id, error)
            refusal = RolloutError(stage=ref.stage, reason="ResultRefused", message=str(error))
            await self._put("/v1/node/result", ref, Outcome(status=Status.FAILED, node=outcome.node, error=refusal))

    async def stored_run(self, ref: LeaseRef) -> RunResult:
        """Fetch the RUN result that another node agent uploaded; retry until the server can be reached. Raises Fenced."""
        query = {"namespace": ref.namespace, "id": ref.id, "fence": str(ref.fence)}
        backoff = Backoff()
        while True:
            try:
                url = await self._link.url() + "/v1/node/run"
                headers = {"Accept": f"{CONTENT_TYPE}, application/zstd"}
                async with self._http.get(url, params=query, headers=headers) as answer:
                    await raise_for_status(answer)
                    frame = await answer.read()
                return await asyncio.to_thread(_read_run, frame)
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable) as error:
                log.warning("the stored run of %s could not be fetched yet: %s", ref.id, error)
            await backoff.wait()

    async def _put(self, path: str, ref: LeaseRef, result: RunResult | Outcome) -> None:
        loop = asyncio.get_running_loop()
        data = await loop.run_in_executor(self._encoding, _upload, ref, result, self.as_columns)
        backoff = Backoff()
        while True:
            try:
                await self._put_once(path, data)
                return
            except (Fenced, Invalid, TooLarge):
                raise
            except ApiError as error:
                log.warning("%s of %s is not acknowledged yet: %s", path, ref.id, error)
            await backoff.wait()

    async def _put_once(self, path: str, data: bytes) -> None:
        timeout, headers = aiohttp.ClientTimeout(total=REQUEST_SECONDS), {"Content-Type": RESULT_CONTENT_TYPE}
        url = await self._link.url() + path
        try:
            async with self._http.put(url, data=data, headers=headers, timeout=timeout) as answer:
                await raise_for_status(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(connection_failure_text(error)) from None


def _upload(ref: LeaseRef, result: RunResult | Outcome, as_columns: bool) -> bytes:
    """Return the body of an upload: a header line, then the compressed result."""
    outcome = result.outcome if isinstance(result, RunResult) else result
    columns = columns_of([outcome], {"artifact": result.artifact} if isinstance(result, RunResult) else None)
    body = columns.to_bytes() if as_columns else result.model_dump_json().encode()
    frame = zstandard.compress(body, COMPRESSION_LEVEL)
    return _header(ref, outcome, columns).model_dump_json().encode() + b"\n" + frame


def _read_run(frame: bytes) -> RunResult:
    """Read a RUN result. Another release of the node agent may have written it."""
    data = zstandard.decompress(frame)
    if not is_columns(data):
        return RunResult.model_validate_json(data, extra="ignore")
    found = decode(data)
    (outcome,) = found.read(Outcome, extra="ignore")
    return RunResult(outcome=outcome, artifact=found.about["artifact"])


def _header(ref: LeaseRef, outcome: Outcome, columns: Columns) -> ResultHeader:
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
        sampled=int(columns.loss_mask.sum()),
        tool_calls=sum(len(t.tool_calls) for t in outcome.turns),
        timings=timings,
        weights_versions=sorted(columns.versions),
    )
