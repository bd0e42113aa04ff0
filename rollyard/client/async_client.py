"""`AsyncClient`: the server's API for trainers and for the command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

import aiohttp

from rollyard.client.attachment import Attachment, attach
from rollyard.client.batch_client import BatchClient
from rollyard.client.kubeconfig import Context, load_context
from rollyard.client.rollout_path import rollout_path
from rollyard.client.server_connection import RETRY_SECONDS, ServerConnection, lines
from rollyard.client.weights_push import WeightsPush
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.core.backoff import Backoff
from rollyard.core.errors import (
    ApiError,
    Conflict,
    Expired,
    NotFound,
    TooManyRequests,
    Unavailable,
    connection_failure_text,
)
from rollyard.kinds.allocation import LOG_OFFSET
from rollyard.kinds.base import API_VERSION, KindObject, ObjectKey, evolve
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import KINDS, Pool, parse_object
from rollyard.kinds.rollout import IN_QUEUE, RolloutRequest, RolloutView, Trajectory
from rollyard.kinds.rollout_history import RolloutHistory
from rollyard.kinds.rollout_snapshot import RolloutSnapshot, RolloutSnapshots
from rollyard.kinds.session import SessionOpened, SessionRecord, SessionRequest
from rollyard.kinds.token import RotationResult
from rollyard.kinds.top import TopView
from rollyard.kinds.weights import Mode, WeightsStatus, WeightsUpdate
from rollyard.wire.attach import Start

if TYPE_CHECKING:
    from rollyard.wire.columns import Columns

log = logging.getLogger(__name__)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SERVER_METADATA = frozenset({"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"})
"""Metadata that only the server writes. A manifest from `get -o yaml` has it."""
MERGE_PATCH = "application/merge-patch+json"
WAIT_SECONDS = 30
WEIGHTS_POLL_SECONDS = 0.5
RECEIVERS_POLL_SECONDS = 0.1
"""Seconds between two looks for engines that wait for weights. Agents' requests wait meanwhile, so the time is short."""
SILENCE_SECONDS = 30.0
"""Seconds without data after which a stream of rollouts counts as broken; the server sends something every 10 s."""
Change = Literal["created", "configured", "unchanged"]


class AsyncClient(BatchClient):
    """The whole API for people and trainers. Use an `AsyncClient` as an async context manager."""

    def __init__(
        self,
        context: Context | None = None,
        *,
        kubeconfig: Path | str | None = None,
        warn: Callable[[str], None] = log.warning,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Raises BadRequest if the kubeconfig is missing or invalid.

        `warn`: function that gets the server's warnings (for example that a pool could not be checked), and a text when
        a call waits for the server. `retry_seconds`: time for which a call waits for an unreachable server.
        """
        self.context = context or load_context(kubeconfig)
        self._warn = warn
        self._http = ServerConnection(self.context, warn=warn, retry_seconds=retry_seconds)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def server_version(self) -> str:
        """Return the server's version. Raises Unavailable when no server answers."""
        return str((await self._http.json("GET", "/version"))["gitVersion"])

    async def rotate_tokens(self, overlap_seconds: float) -> RotationResult:
        """Make new tokens for all jobs and for this server's administrator. Earlier ones stay valid for the overlap."""
        body = {"overlap_seconds": overlap_seconds}
        answer = await self._http.json("POST", "/v1/tokens/rotation", body=body, repeat=False)
        return RotationResult.model_validate(answer)

    # objects

    async def get(self, key: ObjectKey) -> KindObject:
        """Return an object. Raises NotFound."""
        return parse_object(await self._http.json("GET", _path(key.kind, key.namespace, key.name)))

    async def list_objects(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[KindObject], str]:
        """Return the objects of a kind that match the selectors, and the resourceVersion from which to watch.

        Without a namespace, the objects of all namespaces are returned.
        """
        query = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
        body = await self._http.json("GET", _path(kind, namespace), query=query)
        return [parse_object(item) for item in body["items"]], body["metadata"]["resourceVersion"]

    async def apply(self, obj: KindObject, *, dry_run: bool = False) -> tuple[Change, KindObject]:
        """Create or update the object. A field is removed if an earlier apply has set it and `obj` omits it.

        Raises Conflict if `obj` has an older resourceVersion than the stored object, also in a dry run.

        kubectl's annotation stores the earlier manifest, so you can apply one object with kubectl and with this client.
        """
        config = manifest_of(obj)
        config["metadata"].get("annotations", {}).pop(LAST_APPLIED, None)  # a manifest from `get -o yaml` has it
        users = {k: v for k, v in config["metadata"].items() if k not in SERVER_METADATA}
        text = json.dumps({**config, "metadata": users}, separators=(",", ":"), sort_keys=True)
        config["metadata"].setdefault("annotations", {})[LAST_APPLIED] = text
        query = {"dryRun": "All"} if dry_run else {}
        try:
            there = await self.get(obj.key)
        except NotFound:
            path = _path(obj.key.kind, obj.key.namespace)
            made = await self._http.json("POST", path, query=query, body=config, repeat=False)
            return "created", parse_object(made)
        given = obj.metadata.resource_version
        if given and given != there.metadata.resource_version:
            raise Conflict(
                f"{obj.SINGULAR}/{obj.metadata.name} has changed since this manifest was read: its resourceVersion is "
                f"{there.metadata.resource_version}, not {given}. Remove metadata.resourceVersion from the manifest to "
                "apply it anyway"
            )
        before = json.loads(there.metadata.annotations.get(LAST_APPLIED) or "{}")
        patch = _patch(before, config)
        path = _path(obj.key.kind, obj.key.namespace, obj.key.name)
        after = parse_object(await self._http.json("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH))
        same = after.metadata.resource_version == there.metadata.resource_version and not dry_run
        return ("unchanged" if same or after == there else "configured"), after

    async def patch(self, key: ObjectKey, patch: dict[str, Any]) -> KindObject:
        """Apply an RFC 7396 merge patch."""
        path = _path(key.kind, key.namespace, key.name)
        return parse_object(await self._http.json("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def scale(self, key: ObjectKey, replicas: int) -> None:
        path = _path(key.kind, key.namespace, key.name) + "/scale"
        await self._http.json("PATCH", path, body={"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    async def endpoints(self, pool: ObjectKey) -> list[EndpointStatus]:
        """List the model servers of an InferencePool. Raises NotFound."""
        body = await self._http.json("GET", _path(pool.kind, pool.namespace, pool.name) + "/endpoints")
        return [EndpointStatus.model_validate(item) for item in body["items"]]

    async def add_endpoint(self, pool: ObjectKey, endpoint: ExternalEndpoint) -> None:
        """Add an external model server, or change a listed server's capacity or token. Raises NotFound, Invalid."""
        path = _path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("POST", path, body=endpoint.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def remove_endpoint(self, pool: ObjectKey, url: str) -> None:
        """Remove an external model server. Its sessions move to other model servers. Raises NotFound."""
        path = _path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("DELETE", path, query={"url": url})

    async def delete(self, key: ObjectKey) -> None:
        """Begin the deletion; a pool drains first. Raises NotFound."""
        await self._http.json("DELETE", _path(key.kind, key.namespace, key.name))

    async def watch(
        self, kind: str, namespace: str | None = None, *, since: str = "0", fields: str = ""
    ) -> AsyncIterator[tuple[str, KindObject]]:
        """Yield (ADDED | MODIFIED | DELETED, object) for each change. Never stop; reconnect after a broken connection.

        With `since` "0" all present objects come first, as ADDED. After a broken connection the watch continues. If the
        server no longer has the missed changes, all present objects come again, as ADDED.
        """
        backoff = Backoff()
        while True:
            query = {"watch": "true", "resourceVersion": since}
            if fields:
                query["fieldSelector"] = fields
            try:
                async with self._http.stream(_path(kind, namespace), query) as answer:
                    async for line in lines(answer):
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            raise Expired(event["object"]["message"])
                        backoff.reset()
                        obj = parse_object(event["object"])
                        since = obj.metadata.resource_version
                        yield event["type"], obj
            except Expired:
                since = "0"
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable):
                pass
            await backoff.wait()

    async def submission(self, pool: Pool | ObjectKey) -> Submission:
        """Return the batch script of the pool's next allocation, and the number of jobs that the pool would submit now.

        `pool`: a pool, which need not be stored, or the key of a stored pool.

        Raises Invalid, NotFound.
        """
        key = pool if isinstance(pool, ObjectKey) else pool.key
        path = _path(key.kind, key.namespace, key.name) + "/script"
        if isinstance(pool, ObjectKey):
            return Submission.model_validate(await self._http.json("GET", path))
        return Submission.model_validate(await self._http.json("POST", path, body=pool.dump()))

    async def weights_status(self, namespace: str, pool: str) -> WeightsStatus:
        """Return the present and earlier weights of a pool, and the progress of the last update. Raises NotFound."""
        return WeightsStatus.model_validate(await self._http.json("GET", _weights_path(namespace, pool)))

    async def update_weights(self, namespace: str, pool: str, update: WeightsUpdate) -> WeightsStatus:
        """Begin an update, and return when the server has stored it. If the same update is running, return its state.

        If the version is current and no update is running, only failed endpoints load the version again.

        Raises NotFound. Raises Invalid if the engines cannot be updated. Raises Conflict if the version already names
        other weights, if an update to this version is running with another mode, transfer or time limit, or if the
        pool is being deleted.
        """
        body = update.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return WeightsStatus.model_validate(await self._http.json("POST", _weights_path(namespace, pool), body=body))

    async def wait_weights(self, namespace: str, pool: str, version: str) -> WeightsStatus:
        """Wait without a time limit until the update to this version is done, failed, or superseded by another update. Log
        what the update itself waits for."""
        backoff, said = Backoff(), ""
        while True:
            try:
                found = await self.weights_status(namespace, pool)
            except Unavailable as error:
                log.warning("still waiting for weights %s: %s", version, error)
                await backoff.wait(error.retry_after or 0)
                continue
            backoff.reset()
            if found.operation is None or found.operation.target.version != version or not found.operation.is_running:
                return found
            if found.operation.message not in ("", said):
                said = found.operation.message
                log.warning("still waiting for weights %s: it %s", version, said)
            await asyncio.sleep(WEIGHTS_POLL_SECONDS)

    async def transfer_weights(
        self,
        namespace: str,
        pool: str,
        update: WeightsUpdate,
        send: Callable[[Sequence[WeightsReceiver]], Awaitable[None]],
    ) -> WeightsStatus:
        """Begin an update with `transfer`, and move the weights into every waiting engine until the update has ended.

        `send` gets the engines that wait at the same time: in modes Pause and Abort all engines of the pool, in Drain at
        most a quarter of them, but at least one. If `send` raises an ApiError, the error is logged and `send` is called
        again. An engine that gets no weights from `send` loads the folder `update.path`. Raises the errors of
        `update_weights`.
        """
        found, sent, backoff = await self.update_weights(namespace, pool, update), set[str](), Backoff()
        while (last := found.operation) is not None and last.target.version == update.version and last.is_running:
            waiting = set(last.receivers)
            sent &= waiting  # an engine that leaves the list and comes back needs the weights again
            try:
                if new := sorted(waiting - sent):
                    await send([WeightsReceiver(self._http, _weights_path(namespace, pool), id) for id in new])
                    sent |= waiting
                    backoff.reset()
            except ApiError as error:
                log.warning("weights %s did not reach %s: %s", update.version, ", ".join(new), error)
                await backoff.wait()
            await asyncio.sleep(RECEIVERS_POLL_SECONDS)
            # the engines continue the update even while the server is unreachable
            with contextlib.suppress(Unavailable):
                found = await self.weights_status(namespace, pool)
        return found

    def weights(
        self,
        pool: str,
        *,
        folder: Path | str | None = None,
        namespace: str | None = None,
        mode: Mode = "Pause",
        keep: int = 2,
    ) -> WeightsPush:
        """Push a trainer's weights: `async with client.weights("policy") as w: await w.push(model)`."""
        return WeightsPush(self, pool, folder=folder, namespace=namespace, mode=mode, keep=keep)

    async def top(self, namespace: str | None = None) -> TopView:
        """Return the current activity of the pools, in one namespace or in all."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return TopView.model_validate(await self._http.json("GET", f"/apis/{API_VERSION}{where}/top"))

    async def log(
        self, namespace: str, allocation: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[bytes]:
        """Yield an allocation's output. With `follow`, continue until the job's end, and reconnect when necessary.

        Raises NotFound if there is no output. Without `follow`, raises Unavailable if the connection breaks before anything
        has come over it.
        """
        path, backoff = _path("Allocation", namespace, allocation) + "/log", Backoff()
        query = {"follow": "1"} if follow else {}
        position: int | None = None
        while True:
            start = {"tail": str(tail)} if tail is not None else {}
            start = {"offset": str(position)} if position is not None else start
            begun = False
            try:
                async with self._http.stream(path, query | start) as answer:
                    position = int(answer.headers[LOG_OFFSET])
                    async for chunk in answer.content.iter_any():
                        backoff.reset()
                        position, begun = position + len(chunk), True
                        yield chunk
                    return
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable) as error:
                if not follow and not begun:
                    raise Unavailable(f"the connection broke ({connection_failure_text(error)})") from None
            except NotFound:
                if position is None:
                    raise
                return  # the allocation ended and was removed while the server could not be reached
            await backoff.wait()

    # rollouts

    async def submit(self, requests: Sequence[RolloutRequest], namespace: str | None = None) -> list[str]:
        """Submit rollouts; return their ids in order. A request without an id gets an id here, so retries are safe.

        While the pool's queue is full (`maxQueuedRollouts`), wait without a time limit. For a limit, use `asyncio.timeout`.
        """
        named = [r if r.id else evolve(r, id=f"r-{secrets.token_hex(8)}") for r in requests]
        body = {"rollouts": [r.model_dump(mode="json", exclude_unset=True) | {"id": r.id} for r in named]}
        warned = False
        while True:
            try:
                answer = await self._http.json("POST", "/v1/rollouts", query=self._http.query(namespace), body=body)
                return [row["id"] for row in answer["rollouts"]]
            except TooManyRequests as error:
                if not warned:
                    self._warn(f"the submit waits: {error}")
                    warned = True
                await asyncio.sleep(error.retry_after or WAIT_SECONDS)

    async def rollout(
        self, id: str, namespace: str | None = None, *, wait: float = 0
    ) -> tuple[RolloutView, Trajectory | None]:
        """Return the rollout, and its trajectory if the rollout has ended. Raises NotFound."""
        view, columns = await self.rollout_columns(id, namespace, wait=wait)
        return view, await _trajectory(columns) if columns is not None else None

    async def rollout_columns(
        self, id: str, namespace: str | None = None, *, wait: float = 0
    ) -> tuple[RolloutView, Columns | None]:
        """Do the same as `rollout`, with the trajectory as arrays. Raises NotFound."""
        from rollyard.client import rollout_answers  # not at the top: most commands need no numpy
        from rollyard.wire.columns import CONTENT_TYPE

        query = {**self._http.query(namespace), "wait": str(wait)}
        _, data = await self._http.get_bytes(rollout_path(id), query, CONTENT_TYPE)
        return rollout_answers.read_rollout(data)

    def attach(
        self, id: str, start: Start, namespace: str | None = None
    ) -> contextlib.AbstractAsyncContextManager[Attachment]:
        """Attach to the sandbox of a running rollout: run a program in it, or copy files. Leaving the block ends the
        program. Raises ApiError."""
        return attach(self._http, id, namespace, start)

    async def rollout_history(self, id: str, namespace: str | None = None) -> RolloutHistory:
        """Return the changes of a rollout so far, oldest first. Raises NotFound."""
        body = await self._http.json("GET", rollout_path(id) + "/history", query=self._http.query(namespace))
        return RolloutHistory.model_validate(body, extra="ignore")

    async def images_needed(self) -> set[str]:
        """Return the sandbox images that unfinished rollouts name, and the default images of pools, in all namespaces."""
        return set((await self._http.json("GET", "/v1/images"))["needed"])

    async def snapshots(self, id: str, namespace: str | None = None) -> list[RolloutSnapshot]:
        """Return the snapshots of a rollout's sandbox, in the order of the turns. Raises NotFound."""
        body = await self._http.json("GET", rollout_path(id) + "/snapshots", query=self._http.query(namespace))
        return RolloutSnapshots.model_validate(body, extra="ignore").snapshots

    async def snapshot(self, id: str, turn: int, namespace: str | None = None) -> bytes:
        """Return the snapshot after a turn, a tar archive in zstd. Raises NotFound."""
        path = f"{rollout_path(id)}/snapshots/{turn}"
        _, data = await self._http.get_bytes(path, self._http.query(namespace), "application/zstd")
        return data

    async def wait(self, id: str, namespace: str | None = None) -> Trajectory:
        """Wait for the rollout's end without a time limit, even while the server is unreachable. Raises NotFound.

        For a limit, use `asyncio.timeout`. `warn` gets the reason if the rollout waits for something other than its
        turn in the queue, for example for weights that no model server has.
        """
        return await self._wait(id, namespace, set())

    async def _wait(self, id: str, namespace: str | None, warned: set[str]) -> Trajectory:
        """Do the same as `wait`. `warned`: words of reasons for waiting. A reason in this set is
        not passed to `warn`. A new reason is passed to `warn` and added to the set."""
        backoff, logged = Backoff(), ""
        while True:
            try:
                async with self._http.waits:
                    view, trajectory = await self.rollout(id, namespace, wait=WAIT_SECONDS)
            except Unavailable as error:
                if str(error) != logged:  # an error that lasts is logged once
                    logged = str(error)
                    log.warning("still waiting for rollout %s: %s", id, error)
                await backoff.wait(error.retry_after or 0)
                continue
            if trajectory is not None:
                return trajectory
            if view.waiting is not None and view.waiting.word not in {IN_QUEUE, *warned}:
                warned.add(view.waiting.word)
                self._warn(f"rollout {id} waits: {view.waiting}")
            backoff.reset()

    async def rollouts(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
    ) -> AsyncIterator[RolloutView]:
        """Yield all matching rollouts, in order of arrival."""
        after: int | None = 0
        while after is not None:
            query = self._http.query(namespace, pool=pool, group=group, status=",".join(status), after=str(after))
            body = await self._http.json("GET", "/v1/rollouts", query=query)
            for row in body["rollouts"]:
                yield RolloutView.model_validate(row)
            after = body["next"]

    async def counts(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None
    ) -> dict[str, Any]:
        """Count the rollouts that are queued, in each stage, and in each terminal status. Return also the mean reward.

        The keys are `queued`, the stages, the statuses, and `reward_mean`.
        """
        query = self._http.query(namespace, pool=pool, group=group)
        counts: dict[str, Any] = await self._http.json("GET", "/v1/rollouts/counts", query=query)
        return counts

    async def cancel(self, id: str, namespace: str | None = None) -> RolloutView:
        """Cancel a rollout, which ends at once. An ended rollout does not change. Raises NotFound."""
        return RolloutView.model_validate(
            await self._http.json("DELETE", rollout_path(id), query=self._http.query(namespace))
        )

    async def cancel_rollouts(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None
    ) -> int:
        """Cancel all unfinished rollouts of a group or a pool, and return their number.

        Raises BadRequest if neither a group nor a pool is given.
        """
        query = self._http.query(namespace, pool=pool, group=group)
        return int((await self._http.json("DELETE", "/v1/rollouts", query=query))["cancelled"])

    async def as_completed(self, ids: Iterable[str], namespace: str | None = None) -> AsyncGenerator[Trajectory]:
        """Yield the trajectories of rollouts in the order in which the rollouts end. Raises NotFound."""
        warned = set[str]()
        waits = [asyncio.create_task(self._wait(id, namespace, warned)) for id in ids]
        try:
            for next_one in asyncio.as_completed(waits):
                yield await next_one
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def wait_many(self, ids: Sequence[str], namespace: str | None = None) -> list[Trajectory]:
        """Wait until all these rollouts have ended. Return their trajectories in the order of `ids`. Raises NotFound."""
        found = {t.id: t async for t in self.as_completed(dict.fromkeys(ids), namespace)}
        return [found[id] for id in ids]

    async def stream(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None, after: int = 0
    ) -> AsyncIterator[tuple[int, Trajectory]]:
        """Yield (cursor, trajectory) of each rollout that has ended since the cursor `after` or ends later.

        Never stop; reconnect after a broken connection.
        """
        async for cursor, columns in self.stream_columns(namespace, pool=pool, group=group, after=after):
            yield cursor, await _trajectory(columns)

    async def stream_columns(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None, after: int = 0
    ) -> AsyncIterator[tuple[int, Columns]]:
        """Do the same as `stream`, with each trajectory as arrays. `wire.columns.join` joins several trajectories."""
        from rollyard.client import rollout_answers
        from rollyard.wire.columns import CONTENT_TYPE

        backoff = Backoff()
        while True:
            query = self._http.query(namespace, pool=pool, group=group, after=str(after)) | {"trajectories": "1"}
            try:
                async with self._http.stream(
                    "/v1/rollouts/stream", query, silence=SILENCE_SECONDS, accept=CONTENT_TYPE
                ) as answer:
                    async for cursor, columns in rollout_answers.read_stream(answer):
                        backoff.reset()
                        if columns is not None:
                            yield cursor, columns
                            after = cursor
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable):
                pass
            await backoff.wait()

    # sessions of external agents

    async def open_session(
        self, request: SessionRequest, namespace: str | None = None, *, wait: float = 0.0
    ) -> SessionOpened:
        """Open a session; return its key and its URL for model calls. A request without an id gets an id here.

        `wait`: seconds to wait for an endpoint. A pool without an endpoint may need minutes; during this time the
        session counts as demand. Raises Invalid, TooManyRequests. Raises Conflict if the id belongs to a
        different session, and Unavailable if there is no endpoint.
        """
        body = request.model_dump(mode="json", exclude_unset=True) | {"id": request.id or f"s-{secrets.token_hex(8)}"}
        backoff, loop = Backoff(), asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            try:
                opened = await self._http.json("POST", "/v1/sessions", query=self._http.query(namespace), body=body)
                return SessionOpened.model_validate(opened)
            except Unavailable as error:
                if loop.time() >= deadline:
                    raise
                log.warning("still waiting for a session: %s", error)
                await backoff.wait(error.retry_after or 0)

    async def session(self, id: str) -> SessionRecord:
        """Return the session's state, with the trajectory so far. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("GET", f"/v1/sessions/{id}"))

    async def close_session(self, id: str) -> SessionRecord:
        """Close the session; return the trajectory. Later calls of the session are refused. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("POST", f"/v1/sessions/{id}/close"))


async def _trajectory(columns: Columns) -> Trajectory:
    """Build the trajectory in a thread, so that the trainer's event loop is not blocked."""
    (found,) = await asyncio.to_thread(columns.trajectories)
    return found


def _weights_path(namespace: str, pool: str) -> str:
    return _path("InferencePool", namespace, pool) + "/weights"


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    plural = KINDS[kind].PLURAL
    base = f"/apis/{API_VERSION}"
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{where}/{plural}" + (f"/{name}" if name is not None else "")


def manifest_of(obj: KindObject) -> dict[str, Any]:
    """Return the fields that the user wrote, without defaults."""
    data = obj.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    return {"apiVersion": API_VERSION, "kind": obj.key.kind, **data}


def _patch(before: Any, wanted: Any) -> Any:
    """Return a merge patch that sets the fields of `wanted`. The patch removes fields that `before` has and `wanted` omits."""
    if not isinstance(before, dict) or not isinstance(wanted, dict):
        return wanted
    removed: dict[str, Any] = {k: None for k in before if k not in wanted}
    return removed | {k: _patch(before.get(k), v) for k, v in wanted.items()}
