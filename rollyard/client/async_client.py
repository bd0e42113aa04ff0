"""`AsyncClient`: objects and rollouts, as trainers and the CLI use them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import aiohttp

from rollyard.client.kubeconfig import Context, load_context
from rollyard.client.server_connection import RETRY_SECONDS, ServerConnection
from rollyard.client.server_link import Backoff
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.core.errors import ApiError, Expired, NotFound, Unavailable, connection_failure_text
from rollyard.kinds.allocation import LOG_OFFSET
from rollyard.kinds.base import API_VERSION, KindObject, ObjectKey
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import KINDS, Pool, parse_object
from rollyard.kinds.rollout import RolloutRequest, RolloutView, Trajectory
from rollyard.kinds.session import SessionOpened, SessionRecord, SessionRequest
from rollyard.kinds.top import TopView
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate

log = logging.getLogger(__name__)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
MERGE_PATCH = "application/merge-patch+json"
WAIT_SECONDS = 30
WEIGHTS_POLL_SECONDS = 0.5
RECEIVERS_POLL_SECONDS = 0.1
"""Requests are held up meanwhile."""
SILENCE_SECONDS = 30.0
"""Of a stream of rollouts, in which the server says something every 10 s."""
Change = Literal["created", "configured", "unchanged"]


class AsyncClient:
    """Everything the API offers to people and trainers. Use as an async context manager."""

    def __init__(
        self,
        context: Context | None = None,
        *,
        kubeconfig: Path | str | None = None,
        warn: Callable[[str], None] = log.warning,
        patience: float = RETRY_SECONDS,
    ) -> None:
        """Raises BadRequest where no server is known.

        `warn`: told what the server says beside its answers, such as that a pool could not be checked, and that a call
        waits for it. `patience`: seconds for which a call waits for a server that is away.
        """
        self.context = context or load_context(kubeconfig)
        self._http = ServerConnection(self.context, warn=warn, patience=patience)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def server_version(self) -> str:
        """The server's version. Raises Unavailable where none answers."""
        return str((await self._http.json("GET", "/version"))["gitVersion"])

    # objects

    async def get(self, key: ObjectKey) -> KindObject:
        """Raises NotFound."""
        return parse_object(await self._http.json("GET", _path(key.kind, key.namespace, key.name)))

    async def list_objects(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[KindObject], str]:
        """All of a kind, in one namespace or in all, and the resourceVersion to watch from."""
        query = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
        body = await self._http.json("GET", _path(kind, namespace), query=query)
        return [parse_object(item) for item in body["items"]], body["metadata"]["resourceVersion"]

    async def apply(self, obj: KindObject, *, dry_run: bool = False) -> tuple[Change, KindObject]:
        """Create it, or bring what is there in line with it; what an earlier apply set and this one leaves out goes.

        The earlier one is remembered in kubectl's own annotation, so both tools can be used on one object.
        """
        config = manifest_of(obj)
        text = json.dumps(config, separators=(",", ":"), sort_keys=True)
        config["metadata"].setdefault("annotations", {})[LAST_APPLIED] = text
        query = {"dryRun": "All"} if dry_run else {}
        try:
            there = await self.get(obj.key)
        except NotFound:
            path = _path(obj.key.kind, obj.key.namespace)
            made = await self._http.json("POST", path, query=query, body=config, repeat=False)
            return "created", parse_object(made)
        before = json.loads(there.metadata.annotations.get(LAST_APPLIED) or "{}")
        patch = _patch(before, config)
        path = _path(obj.key.kind, obj.key.namespace, obj.key.name)
        after = parse_object(await self._http.json("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH))
        same = after.metadata.resource_version == there.metadata.resource_version and not dry_run
        return ("unchanged" if same or after == there else "configured"), after

    async def patch(self, key: ObjectKey, patch: dict[str, Any]) -> KindObject:
        """RFC 7396 merge patch."""
        path = _path(key.kind, key.namespace, key.name)
        return parse_object(await self._http.json("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def scale(self, key: ObjectKey, replicas: int) -> None:
        path = _path(key.kind, key.namespace, key.name) + "/scale"
        await self._http.json("PATCH", path, body={"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    async def endpoints(self, pool: ObjectKey) -> list[EndpointStatus]:
        """The model servers of an InferencePool. Raises NotFound."""
        body = await self._http.json("GET", _path(pool.kind, pool.namespace, pool.name) + "/endpoints")
        return [EndpointStatus.model_validate(item) for item in body["items"]]

    async def add_endpoint(self, pool: ObjectKey, endpoint: ExternalEndpoint) -> None:
        """One more that others run, or the same with another capacity or token. Raises NotFound, Invalid."""
        path = _path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("POST", path, body=endpoint.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def remove_endpoint(self, pool: ObjectKey, url: str) -> None:
        """It drains: what is on it goes on elsewhere. Raises NotFound."""
        path = _path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("DELETE", path, query={"url": url})

    async def delete(self, key: ObjectKey) -> None:
        """Begin the deletion; a pool drains first. Raises NotFound."""
        await self._http.json("DELETE", _path(key.kind, key.namespace, key.name))

    async def watch(
        self, kind: str, namespace: str | None = None, *, since: str = "0", fields: str = ""
    ) -> AsyncIterator[tuple[str, KindObject]]:
        """(ADDED | MODIFIED | DELETED, object), for ever: it resumes by itself where it broke off."""
        backoff = Backoff()
        while True:
            query = {"watch": "true", "resourceVersion": since}
            if fields:
                query["fieldSelector"] = fields
            try:
                async with self._http.stream(_path(kind, namespace), query) as answer:
                    async for line in _lines(answer):
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
        """What would be submitted for a pool as it is here, or for one as it is stored. Raises Invalid, NotFound."""
        key = pool if isinstance(pool, ObjectKey) else pool.key
        path = _path(key.kind, key.namespace, key.name) + "/script"
        if isinstance(pool, ObjectKey):
            return Submission.model_validate(await self._http.json("GET", path))
        return Submission.model_validate(await self._http.json("POST", path, body=pool.dump()))

    async def weights(self, namespace: str, pool: str) -> WeightsStatus:
        """Which weights an InferencePool serves, has served, and how far the last update is. Raises NotFound."""
        return WeightsStatus.model_validate(await self._http.json("GET", _weights_path(namespace, pool)))

    async def update_weights(self, namespace: str, pool: str, update: WeightsUpdate) -> WeightsStatus:
        """Begin an update, or attach to the same one; answered once it is on disk.

        Raises Conflict for a version that means other weights, Invalid where the engines cannot be told, NotFound.
        """
        body = update.model_dump(mode="json", by_alias=True, exclude_unset=True)
        return WeightsStatus.model_validate(await self._http.json("POST", _weights_path(namespace, pool), body=body))

    async def wait_weights(self, namespace: str, pool: str, version: str) -> WeightsStatus:
        """Until the update to this version has ended: done, failed, or superseded by another. No limit of its own."""
        backoff = Backoff()
        while True:
            try:
                found = await self.weights(namespace, pool)
            except Unavailable as error:
                log.warning("still waiting for weights %s: %s", version, error)
                await backoff.wait(error.retry_after or 0)
                continue
            backoff.reset()
            if found.operation is None or found.operation.target.version != version or not found.operation.is_running:
                return found
            await asyncio.sleep(WEIGHTS_POLL_SECONDS)

    async def transfer_weights(
        self,
        namespace: str,
        pool: str,
        update: WeightsUpdate,
        send: Callable[[Sequence[WeightsReceiver]], Awaitable[None]],
    ) -> WeightsStatus:
        """Begin an update with `transfer` and move the weights into every engine that waits for them, until it has ended.

        `send` is called with the engines that wait together: all of a pool in modes Pause and Abort, a quarter in Drain.
        What it raises of ApiError is logged: an engine that still waits comes again, and in the end reads the folder.
        Raises what `update_weights` does.
        """
        found, sent, backoff = await self.update_weights(namespace, pool, update), set[str](), Backoff()
        while (last := found.operation) is not None and last.target.version == update.version and last.is_running:
            waiting = set(last.receivers)
            sent &= waiting  # who comes once more was started again meanwhile
            try:
                if new := sorted(waiting - sent):
                    await send([WeightsReceiver(self._http, _weights_path(namespace, pool), id) for id in new])
                    sent |= waiting
                    backoff.reset()
            except ApiError as error:
                log.warning("weights %s did not reach %s: %s", update.version, ", ".join(new), error)
                await backoff.wait()
            await asyncio.sleep(RECEIVERS_POLL_SECONDS)
            with contextlib.suppress(Unavailable):  # a server that stays away for longer finds its engines at it
                found = await self.weights(namespace, pool)
        return found

    async def top(self, namespace: str | None = None) -> TopView:
        """What goes on in the pools right now, in one namespace or in all."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return TopView.model_validate(await self._http.json("GET", f"/apis/{API_VERSION}{where}/top"))

    async def log(
        self, namespace: str, allocation: str, *, follow: bool = False, tail: int | None = None
    ) -> AsyncIterator[bytes]:
        """An allocation's output; with `follow` as it comes, from its start to its end, whatever connections break meanwhile.

        Raises NotFound where there is none; Unavailable when the connection breaks and nobody follows.
        """
        path, backoff = _path("Allocation", namespace, allocation) + "/log", Backoff()
        query = {"follow": "1"} if follow else {}
        position: int | None = None
        while True:
            start = {"tail": str(tail)} if tail is not None else {}
            start = {"offset": str(position)} if position is not None else start
            try:
                async with self._http.stream(path, query | start) as answer:
                    position = int(answer.headers[LOG_OFFSET])
                    async for chunk in answer.content.iter_any():
                        backoff.reset()
                        position += len(chunk)
                        yield chunk
                    return
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable) as error:
                if not follow:
                    raise Unavailable(f"the connection broke ({connection_failure_text(error)})") from None
            except NotFound:
                if position is None:
                    raise
                return  # it ended, and was tidied up, while the server could not be reached
            await backoff.wait()

    # rollouts

    async def submit(self, requests: Sequence[RolloutRequest], namespace: str | None = None) -> list[str]:
        """Ids of the accepted rollouts, in order. Requests without an id get one here, so that a lost answer does no harm."""
        named = [r if r.id else r.model_copy(update={"id": f"r-{secrets.token_hex(8)}"}) for r in requests]
        body = {"rollouts": [r.model_dump(mode="json", exclude_unset=True) | {"id": r.id} for r in named]}
        answer = await self._http.json("POST", "/v1/rollouts", query=self._query(namespace), body=body)
        return [row["id"] for row in answer["rollouts"]]

    async def rollout(
        self, id: str, namespace: str | None = None, *, wait: float = 0
    ) -> tuple[RolloutView, Trajectory | None]:
        """The rollout, and its trajectory once it has ended. Raises NotFound."""
        query = {**self._query(namespace), "wait": str(wait)}
        body = await self._http.json("GET", f"/v1/rollouts/{id}", query=query)
        trajectory = body["trajectory"]
        return (
            RolloutView.model_validate(body["rollout"]),
            Trajectory.model_validate(trajectory) if trajectory is not None else None,
        )

    async def wait(self, id: str, namespace: str | None = None) -> Trajectory:
        """Until it has ended, however long that takes and however long the server is away meanwhile. Raises NotFound.

        Who does not want to wait that long sets a limit around it, such as `asyncio.timeout`.
        """
        backoff, said = Backoff(), ""
        while True:
            try:
                _, trajectory = await self.rollout(id, namespace, wait=WAIT_SECONDS)
            except Unavailable as error:
                if str(error) != said:  # an hour without a server is a line, not a thousand
                    said = str(error)
                    log.warning("still waiting for rollout %s: %s", id, error)
                await backoff.wait(error.retry_after or 0)
                continue
            if trajectory is not None:
                return trajectory
            backoff.reset()

    async def rollouts(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
    ) -> AsyncIterator[RolloutView]:
        """All that match, in order of arrival."""
        after: int | None = 0
        while after is not None:
            query = self._query(namespace, pool=pool, group=group, status=",".join(status), after=str(after))
            body = await self._http.json("GET", "/v1/rollouts", query=query)
            for row in body["rollouts"]:
                yield RolloutView.model_validate(row)
            after = body["next"]

    async def counts(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None
    ) -> dict[str, Any]:
        """`queued`, a number for each stage and terminal status, and `reward_mean`."""
        query = self._query(namespace, pool=pool, group=group)
        counts: dict[str, Any] = await self._http.json("GET", "/v1/rollouts/counts", query=query)
        return counts

    async def cancel(self, id: str, namespace: str | None = None) -> RolloutView:
        """Terminal at once; what had ended stays as it was. Raises NotFound."""
        return RolloutView.model_validate(
            await self._http.json("DELETE", f"/v1/rollouts/{id}", query=self._query(namespace))
        )

    async def stream(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None, after: int = 0
    ) -> AsyncIterator[tuple[int, Trajectory]]:
        """(cursor, trajectory) of each rollout as it ends, for ever; resumes by itself after a broken connection."""
        backoff = Backoff()
        while True:
            query = self._query(namespace, pool=pool, group=group, after=str(after)) | {"trajectories": "1"}
            try:
                async with self._http.stream("/v1/rollouts/stream", query, silence=SILENCE_SECONDS) as answer:
                    cursor = after
                    async for line in _lines(answer):
                        backoff.reset()
                        if line.startswith(b"id: "):
                            cursor = int(line[4:])
                        elif line.startswith(b"data: "):
                            yield cursor, Trajectory.model_validate_json(line[6:])
                            after = cursor
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable):
                pass
            await backoff.wait()

    # sessions of agents outside of sandboxes

    async def open_session(
        self, request: SessionRequest, namespace: str | None = None, *, wait: float = 0.0
    ) -> SessionOpened:
        """Where an agent's model calls go, and its key. A request without an id gets one here.

        `wait`: seconds in which an endpoint may come, minutes where a pool has none; it counts as demand meanwhile.
        Raises Invalid, Conflict for an id that means another session, TooManyRequests, Unavailable without an endpoint.
        """
        body = request.model_dump(mode="json", exclude_unset=True) | {"id": request.id or f"s-{secrets.token_hex(8)}"}
        backoff, loop = Backoff(), asyncio.get_running_loop()
        deadline = loop.time() + wait
        while True:
            try:
                opened = await self._http.json("POST", "/v1/sessions", query=self._query(namespace), body=body)
                return SessionOpened.model_validate(opened)
            except Unavailable as error:
                if loop.time() >= deadline:
                    raise
                log.warning("still waiting for a session: %s", error)
                await backoff.wait(error.retry_after or 0)

    async def session(self, id: str) -> SessionRecord:
        """How it stands, with the trajectory so far. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("GET", f"/v1/sessions/{id}"))

    async def close_session(self, id: str) -> SessionRecord:
        """Its trajectory; no further calls. Raises NotFound, Expired."""
        return SessionRecord.model_validate(await self._http.json("POST", f"/v1/sessions/{id}/close"))

    def _query(self, namespace: str | None, **more: str | None) -> dict[str, str]:
        given = {"namespace": namespace or self.context.namespace, **more}
        return {k: v for k, v in given.items() if v}


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines of any length: aiohttp's own reader has a limit that a trajectory exceeds."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


def _weights_path(namespace: str, pool: str) -> str:
    return _path("InferencePool", namespace, pool) + "/weights"


def _path(kind: str, namespace: str | None, name: str | None = None) -> str:
    plural = KINDS[kind].PLURAL
    base = f"/apis/{API_VERSION}"
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{where}/{plural}" + (f"/{name}" if name else "")


def manifest_of(obj: KindObject) -> dict[str, Any]:
    """What the user wrote, and nothing that has a default."""
    data = obj.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    return {"apiVersion": API_VERSION, "kind": obj.key.kind, **data}


def _patch(before: Any, wanted: Any) -> Any:
    """A merge patch to `wanted`: fields of `before` that it leaves out are removed."""
    if not isinstance(before, dict) or not isinstance(wanted, dict):
        return wanted
    removed: dict[str, Any] = {k: None for k in before if k not in wanted}
    return removed | {k: _patch(before.get(k), v) for k, v in wanted.items()}
