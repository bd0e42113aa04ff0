"""Uploads results to the server. A result is sent again until the server acknowledges or refuses it, also after a
restart of the server."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import aiohttp
import zstandard
from pydantic_core import from_json

from rollyard.client.server_link import ServerLink, error_from_status, raise_for_status
from rollyard.core.backoff import Backoff, until_done
from rollyard.core.byte_budget import ByteBudget
from rollyard.core.errors import ApiError, Fenced, Invalid, TooLarge, Unavailable, connection_failure_text
from rollyard.kinds.failure_table import RESULT_REFUSED
from rollyard.kinds.rollout import MAX_ARTIFACT_BYTES, ForkPoint, Stage
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.node.rollout_profile import profile_of
from rollyard.node.upload_queue import UploadQueue
from rollyard.sandbox.snapshot import SandboxSnapshot
from rollyard.trajectory import Artifact, Outcome, RunResult, sampled_tokens
from rollyard.trajectory.artifact import artifact_size, pack, unpack
from rollyard.trajectory.columns import CONTENT_TYPE, Columns, columns_of, decode
from rollyard.trajectory.frames import framed, sealed, unframed, unsealed
from rollyard.wire.node import (
    MAX_RESULTS,
    MAX_SNAPSHOT_BYTES,
    RESULT_CONTENT_TYPE,
    LeaseRef,
    ResultHeader,
    SnapshotHeader,
    StoredTurns,
    TurnsHeader,
)

log = logging.getLogger(__name__)

REQUEST_SECONDS = 120.0
SHORT_TURNS, SHORT_TOKENS = 8, 1024
"""Greatest numbers of turns and tokens of an outcome that is encoded on the event loop."""
MAX_ARCHIVE_BYTES = 2 * MAX_SNAPSHOT_BYTES
SNAPSHOT = "/v1/node/snapshot"
RUN, RUNS, RESULTS, TURNS = "/v1/node/run", "/v1/node/runs", "/v1/node/results", "/v1/node/turns"
SMALL_BYTES = 64 << 10
"""Greatest size of an upload that shares a request with others. A larger upload gets a request of its own at once, even
while another request is under way."""
COMPRESSION_LEVEL = 1
"""Higher levels do not make columns smaller, because the numbers are hardly compressible."""


class ResultUploads:
    def __init__(self, link: ServerLink, http: aiohttp.ClientSession) -> None:
        self._link = link
        self._http = http
        self.archives = ByteBudget(MAX_ARCHIVE_BYTES)
        """Limit on the snapshots in this process's memory, whatever the number of rollouts."""
        self._queues = {path: UploadQueue(partial(self._send, path)) for path in (RUNS, RESULTS, TURNS)}
        self._compressor = zstandard.ZstdCompressor(COMPRESSION_LEVEL)
        """Compressor of the event loop's thread. The compressor is kept, because making one takes ten times as long as
        compressing a short result."""
        self._encoding = ThreadPoolExecutor(1, "encode-results")
        """One thread. Several threads would compete with each other and with the event loop for the interpreter, and
        fewer results would be uploaded per second."""

    async def run(self, ref: LeaseRef, result: RunResult) -> None:
        """Upload RUN's result. Raises Fenced if the lease is void, Invalid if the artifact is too large, and Invalid or
        TooLarge if the server refuses the result."""
        if artifact_size(result.artifact) > MAX_ARTIFACT_BYTES:
            raise Invalid(f"the artifact has more than {MAX_ARTIFACT_BYTES} bytes")
        await self._put(RUNS, ref, result.outcome, result.artifact)

    async def result(self, ref: LeaseRef, outcome: Outcome) -> None:
        """Upload the end of the rollout, at EVAL without its tokens, which the server has, unless EVAL has role calls. If the
        server refuses it, a failure is uploaded instead, so that the rollout ends."""
        try:
            await self._put(RESULTS, ref, outcome)
        except (Invalid, TooLarge) as error:
            log.error("the result of %s was refused: %s", ref.id, error)
            refusal = RESULT_REFUSED.error(ref.stage, str(error))
            await self._put(RESULTS, ref, Outcome(status=RESULT_REFUSED.status, node=outcome.node, error=refusal))

    async def snapshot(self, header: SnapshotHeader, archive: bytes) -> None:
        """Upload the archive of a snapshot. Raises Fenced if the lease is void, and Invalid or TooLarge if the server refuses
        the snapshot."""
        await self._put_data(SNAPSHOT, header.lease, sealed(header.model_dump_json().encode()) + b"\n" + archive)

    async def sandbox_snapshot(self, header: SnapshotHeader, snapshot: SandboxSnapshot | None) -> None:
        """Upload a snapshot of a sandbox, once there is room for it in memory; None: the header says why there is none. Raises
        as `snapshot`."""
        async with self.archives.reserve(snapshot.size if snapshot is not None else 0):
            await self.snapshot(header, snapshot.read() if snapshot is not None else b"")

    async def turns(self, header: TurnsHeader, bodies: Sequence[bytes]) -> None:
        """Upload saved turns. Raises as `snapshot`."""
        data = header.model_dump_json(exclude_defaults=True).encode() + b"\n" + b"".join(map(framed, bodies))
        await self._put_data(TURNS, header.lease, sealed(data))

    async def stored_turns(self, ref: LeaseRef) -> tuple[StoredTurns, list[bytes]]:
        """Fetch the turns that were saved under earlier leases. Raises as `stored_run`, and ValueError if they were damaged on
        their way."""
        about, *bodies = unframed(unsealed(await self._fetch(TURNS, ref)))
        return StoredTurns.model_validate_json(about, extra="ignore"), bodies

    async def turns_snapshot(self, ref: LeaseRef) -> tuple[RolloutSnapshot, bytes]:
        """Fetch the newest snapshot that was saved with the turns. Raises as `stored_run`; Invalid if it was damaged on its
        way."""
        return await asyncio.to_thread(_read_snapshot, await self._fetch(f"{TURNS}/snapshot", ref))

    async def ancestors(self, ref: LeaseRef) -> list[tuple[ForkPoint, Outcome]]:
        """Fetch the rollouts from which a rollout goes on, each with its last turn, the first one first. Raises as
        `stored_run`."""
        frames = await self._fetch("/v1/node/fork", ref)
        return await asyncio.to_thread(_read_ancestors, unframed(frames))

    async def fork_snapshot(self, ref: LeaseRef) -> tuple[RolloutSnapshot, bytes]:
        """Fetch the snapshot from which a rollout goes on. Raises as `turns_snapshot`."""
        return await asyncio.to_thread(_read_snapshot, await self._fetch("/v1/node/fork/snapshot", ref))

    async def run_snapshot(self, ref: LeaseRef) -> tuple[RolloutSnapshot, bytes]:
        """Fetch the last snapshot of RUN that was uploaded under an earlier lease. Raises as `turns_snapshot`."""
        return await asyncio.to_thread(_read_snapshot, await self._fetch("/v1/node/run/snapshot", ref))

    async def stored_run(self, ref: LeaseRef) -> RunResult:
        """Fetch the result of RUN that was uploaded under an earlier lease; retry until the server can be reached.
        Raises Fenced, and any other ApiError except Unavailable."""
        return await asyncio.to_thread(_read_run, unframed(await self._fetch(RUN, ref)))

    async def _fetch(self, path: str, ref: LeaseRef) -> bytes:
        """Get data that belongs to a lease; retry until the server can be reached."""
        query = {"namespace": ref.namespace, "id": ref.id, "fence": str(ref.fence)}

        async def get() -> bytes:
            url = await self._link.url() + path
            async with self._http.get(url, params=query, headers={"Accept": CONTENT_TYPE}) as answer:
                await raise_for_status(answer)
                return await answer.read()

        errors = (aiohttp.ClientError, TimeoutError, OSError, Unavailable)
        return await until_done(get, f"fetching {path} of {ref.id}", after=errors)

    async def _put(self, path: str, ref: LeaseRef, outcome: Outcome, artifact: Artifact | None = None) -> None:
        if path == RESULTS and ref.stage is Stage.EVAL and all(c.stage is not Stage.EVAL for c in outcome.role_calls):
            data = _header(ref, outcome)
        elif artifact is None and _is_short(outcome):
            data = _upload(ref, outcome, artifact, self._compressor)
        else:
            compressor = zstandard.ZstdCompressor(COMPRESSION_LEVEL)
            loop = asyncio.get_running_loop()
            data = await loop.run_in_executor(self._encoding, _upload, ref, outcome, artifact, compressor)
        await self._put_data(path, ref, data)

    async def _put_data(self, path: str, ref: LeaseRef, data: bytes) -> None:
        backoff, together = Backoff(), len(data) <= SMALL_BYTES and path in self._queues
        while True:
            try:
                if together:
                    await self._queues[path].put(data, MAX_RESULTS)
                elif path == SNAPSHOT:
                    await self._request(path, data)
                elif (error := (await self._send(path, [data]))[0]) is not None:
                    raise error
                return
            except (Fenced, Invalid, TooLarge):
                raise
            except ApiError as error:
                log.warning("%s of %s is not acknowledged yet: %s", path, ref.id, error)
            together = False  # so that a result which the server cannot store does not hold up others
            await backoff.wait()

    async def _send(self, path: str, uploads: Sequence[bytes]) -> list[ApiError | None]:
        """Send several uploads in one request; return an error or None for each upload."""
        try:
            answer = from_json(await self._request(path, b"".join(map(framed, uploads))))
            errors = [
                None if found is None else error_from_status(int(found["code"]), found) for found in answer["results"]
            ]
            if len(errors) != len(uploads):
                raise ValueError(f"{len(errors)} results for {len(uploads)} uploads")
            return errors
        except (Invalid, TooLarge) as refusal:  # the whole request was refused; `_put` then sends each result alone
            if len(uploads) == 1:
                raise
            raise Unavailable(f"the server refused {len(uploads)} results in one request: {refusal}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"the server's answer to {path} cannot be read: {error}") from None

    async def _request(self, path: str, data: bytes) -> bytes:
        timeout, headers = aiohttp.ClientTimeout(total=REQUEST_SECONDS), {"Content-Type": RESULT_CONTENT_TYPE}
        url = await self._link.url() + path
        try:
            async with self._http.put(url, data=data, headers=headers, timeout=timeout) as answer:
                await raise_for_status(answer)
                return await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(connection_failure_text(error)) from None


_STAGES = tuple(stage.lower() for stage in Stage)


def _is_short(outcome: Outcome) -> bool:
    """Whether the outcome is so short that encoding takes less time than a hop to a thread and back, about 0.2 ms."""
    return len(outcome.turns) <= SHORT_TURNS and sum(len(s.token_ids) for s in outcome.segments) <= SHORT_TOKENS


def _upload(ref: LeaseRef, outcome: Outcome, artifact: Artifact | None, compressor: zstandard.ZstdCompressor) -> bytes:
    """Return the body of an upload: the header line, then the tokens and the artifact, each as a compressed frame."""
    columns = columns_of([outcome])
    body = _header(ref, outcome, columns) + framed(compressor.compress(columns.to_bytes()))
    return body if artifact is None else body + framed(compressor.compress(pack(artifact)))


def _read_ancestors(frames: Sequence[bytes]) -> list[tuple[ForkPoint, Outcome]]:
    points = [ForkPoint.model_validate_json(point, extra="ignore") for point in frames[::2]]
    return list(zip(points, map(_read_outcome, frames[1::2]), strict=True))


def _read_snapshot(frames: bytes) -> tuple[RolloutSnapshot, bytes]:
    try:
        head, archive = unframed(frames)
        about = RolloutSnapshot.model_validate_json(head, extra="ignore")
    except ValueError as error:
        raise Invalid(f"the snapshot was damaged on its way: {error}") from None
    if hashlib.sha256(archive).hexdigest() != about.sha256:
        raise Invalid("the snapshot was damaged on its way: its digest does not match")
    return about, archive


def _read_outcome(frame: bytes) -> Outcome:
    (outcome,) = decode(zstandard.decompress(frame)).read(Outcome, extra="ignore")
    return outcome


def _read_run(frames: Sequence[bytes]) -> RunResult:
    outcome, artifact = frames
    return RunResult(outcome=_read_outcome(outcome), artifact=unpack(zstandard.decompress(artifact)))


def _header(ref: LeaseRef, outcome: Outcome, columns: Columns | None = None) -> bytes:
    """Return the header line. `columns`: the outcome's tokens, if they are uploaded with it."""
    timings = {stage: t for stage in _STAGES if (t := getattr(outcome.timings, stage)) is not None}
    header = ResultHeader(
        lease=ref,
        status=outcome.status.value,
        reward=outcome.reward,
        error=outcome.error,
        parts=outcome.parts,
        metrics=outcome.metrics,
        notes=outcome.notes,
        endpoint=outcome.endpoint,
        turns=len(outcome.turns),
        tokens=sum(t.response_length for t in outcome.turns),
        prompt_tokens=sum(t.prompt_length for t in outcome.turns),
        sampled=int(columns.loss_mask.sum()) if columns is not None else sampled_tokens(outcome.segments),
        tool_calls=sum(len(t.tool_calls) for t in outcome.turns),
        timings=timings,
        profile=profile_of(outcome.turns),
        weights_versions=list(columns.versions) if columns is not None else [],
    )
    return header.model_dump_json().encode() + b"\n"
