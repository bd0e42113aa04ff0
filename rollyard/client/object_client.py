"""Calls on objects: pools, their endpoints and allocations, and what the server knows of them now."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator
from typing import Any, Literal

import aiohttp

from rollyard.client.api_client import ApiClient
from rollyard.client.server_connection import lines
from rollyard.core.backoff import Backoff
from rollyard.core.errors import Conflict, Expired, NotFound, Unavailable, connection_failure_text
from rollyard.kinds.allocation import LOG_OFFSET
from rollyard.kinds.base import API_VERSION, KindObject, ObjectKey
from rollyard.kinds.engine_spec import ExternalEndpoint
from rollyard.kinds.inference_pool import EndpointStatus
from rollyard.kinds.preview import Submission
from rollyard.kinds.registry import KINDS, Pool, parse_object
from rollyard.kinds.top import TopView

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
SERVER_METADATA = frozenset({"uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"})
"""Metadata that only the server writes. A manifest from `get -o yaml` has it."""
MERGE_PATCH = "application/merge-patch+json"
Change = Literal["created", "configured", "unchanged"]


class ObjectClient(ApiClient):
    async def get(self, key: ObjectKey) -> KindObject:
        """Return an object. Raises NotFound."""
        return parse_object(await self._http.json("GET", object_path(key.kind, key.namespace, key.name)))

    async def list_objects(
        self, kind: str, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[KindObject], str]:
        """Return the objects of a kind that match the selectors, and the resourceVersion from which to watch.

        Without a namespace, the objects of all namespaces are returned.
        """
        query = {k: v for k, v in (("labelSelector", labels), ("fieldSelector", fields)) if v}
        body = await self._http.json("GET", object_path(kind, namespace), query=query)
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
            path = object_path(obj.key.kind, obj.key.namespace)
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
        patch = merge_patch(before, config)
        path = object_path(obj.key.kind, obj.key.namespace, obj.key.name)
        after = parse_object(await self._http.json("PATCH", path, query=query, body=patch, content_type=MERGE_PATCH))
        same = after.metadata.resource_version == there.metadata.resource_version and not dry_run
        return ("unchanged" if same or after == there else "configured"), after

    async def patch(self, key: ObjectKey, patch: dict[str, Any]) -> KindObject:
        """Apply an RFC 7396 merge patch."""
        path = object_path(key.kind, key.namespace, key.name)
        return parse_object(await self._http.json("PATCH", path, body=patch, content_type=MERGE_PATCH))

    async def scale(self, key: ObjectKey, replicas: int) -> None:
        path = object_path(key.kind, key.namespace, key.name) + "/scale"
        await self._http.json("PATCH", path, body={"spec": {"replicas": replicas}}, content_type=MERGE_PATCH)

    async def drain(self, allocation: ObjectKey, grace: float | None = None) -> None:
        """Drain an allocation. `grace`: seconds until its unfinished work moves; None: as long as its pool says. Raises
        NotFound."""
        path = object_path(allocation.kind, allocation.namespace, allocation.name) + "/drain"
        await self._http.json("POST", path, body={} if grace is None else {"graceSeconds": math.ceil(grace)})

    async def endpoints(self, pool: ObjectKey) -> list[EndpointStatus]:
        """List the model servers of an InferencePool. Raises NotFound."""
        body = await self._http.json("GET", object_path(pool.kind, pool.namespace, pool.name) + "/endpoints")
        return [EndpointStatus.model_validate(item) for item in body["items"]]

    async def add_endpoint(self, pool: ObjectKey, endpoint: ExternalEndpoint) -> None:
        """Add an external model server, or change a listed server's capacity or token. Raises NotFound, Invalid."""
        path = object_path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("POST", path, body=endpoint.model_dump(mode="json", by_alias=True, exclude_none=True))

    async def remove_endpoint(self, pool: ObjectKey, url: str) -> None:
        """Remove an external model server. Its sessions move to other model servers. Raises NotFound."""
        path = object_path(pool.kind, pool.namespace, pool.name) + "/endpoints"
        await self._http.json("DELETE", path, query={"url": url})

    async def delete(self, key: ObjectKey) -> None:
        """Begin the deletion; a pool drains first. Raises NotFound."""
        await self._http.json("DELETE", object_path(key.kind, key.namespace, key.name))

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
                async with self._http.stream(object_path(kind, namespace), query) as answer:
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
        path = object_path(key.kind, key.namespace, key.name) + "/script"
        if isinstance(pool, ObjectKey):
            return Submission.model_validate(await self._http.json("GET", path))
        return Submission.model_validate(await self._http.json("POST", path, body=pool.dump()))

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
        path, backoff = object_path("Allocation", namespace, allocation) + "/log", Backoff()
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


def object_path(kind: str, namespace: str | None, name: str | None = None) -> str:
    plural = KINDS[kind].PLURAL
    base = f"/apis/{API_VERSION}"
    where = f"/namespaces/{namespace}" if namespace else ""
    return f"{base}{where}/{plural}" + (f"/{name}" if name is not None else "")


def manifest_of(obj: KindObject) -> dict[str, Any]:
    """Return the fields that the user wrote, without defaults."""
    data = obj.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
    return {"apiVersion": API_VERSION, "kind": obj.key.kind, **data}


def merge_patch(before: Any, wanted: Any) -> Any:
    """Return a merge patch that sets the fields of `wanted`. The patch removes fields that `before` has and `wanted` omits."""
    if not isinstance(before, dict) or not isinstance(wanted, dict):
        return wanted
    removed: dict[str, Any] = {k: None for k in before if k not in wanted}
    return removed | {k: merge_patch(before.get(k), v) for k, v in wanted.items()}
