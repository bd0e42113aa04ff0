"""Calls on rollouts."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import TYPE_CHECKING, Any

import aiohttp

from rollyard.client.api_client import ApiClient
from rollyard.client.rollout_path import rollout_path
from rollyard.core.aio import end_tasks
from rollyard.core.backoff import Backoff, until_done
from rollyard.core.errors import TooManyRequests, Unavailable
from rollyard.kinds.base import evolve
from rollyard.kinds.rollout import IN_QUEUE, RolloutRequest, RolloutSummary, RolloutSums, RolloutView
from rollyard.kinds.rollout_history import LossSummary, RolloutHistory
from rollyard.kinds.rollout_profile import ProfileView
from rollyard.kinds.rollout_snapshot import RolloutSnapshot, RolloutSnapshots
from rollyard.kinds.top import MissingImageView, NodesTop, NodeTop
from rollyard.trajectory import Artifact, Trajectory, Turn
from rollyard.trajectory.artifact import from_json

if TYPE_CHECKING:
    from rollyard.trajectory.columns import Columns

log = logging.getLogger(__name__)

WAIT_SECONDS = 30
PAGE, MAX_PAGE = 500, 5000
"""Number of rollouts in one answer: if they are not sorted, and the greatest."""
UNFINISHED, SUBMITTED_TOGETHER = 1024, 128
"""Greatest numbers of rollouts that `run_all` has on the server without an end, and that it submits in one call."""
SILENCE_SECONDS = 30.0
"""Seconds without data after which a stream of rollouts counts as broken; the server sends something every 10 s."""


class RolloutClient(ApiClient):
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
        from rollyard.trajectory.columns import CONTENT_TYPE

        query = {**self._http.query(namespace), "wait": str(wait)}
        _, data = await self._http.get_bytes(rollout_path(id), query, CONTENT_TYPE)
        return rollout_answers.read_rollout(data)

    async def rollout_history(self, id: str, namespace: str | None = None) -> RolloutHistory:
        """Return the changes of a rollout so far, oldest first. Raises NotFound."""
        body = await self._http.json("GET", rollout_path(id) + "/history", query=self._http.query(namespace))
        return RolloutHistory.model_validate(body, extra="ignore")

    async def saved_turns(self, id: str, namespace: str | None = None) -> list[Turn]:
        """Return the turns that an unfinished rollout has saved so far; after its end there are none. Raises NotFound."""
        found: list[Turn] = []
        fence = 0
        while True:
            query = self._http.query(namespace, fence=str(fence), after=str(len(found)))
            body = await self._http.json("GET", rollout_path(id) + "/turns", query=query)
            if body["fence"] != fence:
                found, fence = [], body["fence"]
            found += [Turn.model_validate(one["turn"], extra="ignore") for one in body["turns"]]
            if not body["turns"] or len(found) >= body["total"]:
                return found

    async def token_texts(self, id: str, namespace: str | None = None) -> tuple[dict[int, str], dict[int, bytes]]:
        """Return the text of each id in an ended rollout's trajectory; and the bytes of ids that are parts of characters.
        Raises NotFound, also if the pool with the tokenizer is gone."""
        found = await self._http.json("GET", rollout_path(id) + "/tokens", query=self._http.query(namespace))
        return {int(k): v for k, v in found["texts"].items()}, {
            int(k): bytes.fromhex(v) for k, v in found["bytes"].items()
        }

    async def artifact(self, id: str, namespace: str | None = None) -> Artifact:
        """Return the artifact that EVAL scores, name -> text or bytes. Raises NotFound before the end of RUN, and Expired if
        the artifact is deleted (`artifactTtlSecondsAfterFinished` of the pool)."""
        return from_json(
            await self._http.json("GET", rollout_path(id) + "/artifact", query=self._http.query(namespace))
        )

    async def images_needed(self) -> set[str]:
        """Return the sandbox images that unfinished rollouts name, and the default images of pools, in all namespaces."""
        return set((await self._http.json("GET", "/v1/images"))["needed"])

    async def missing_images(self) -> list[MissingImageView]:
        """Return the sandbox images that pools cannot have now, in all namespaces."""
        found = (await self._http.json("GET", "/v1/images"))["missing"]
        return [MissingImageView.model_validate(one, extra="ignore") for one in found]

    async def nodes(self, namespace: str | None = None, *, since: float | None = None) -> list[NodeTop]:
        """Return the nodes on which rollouts ended since a time (Unix seconds; None: an hour ago), the slowest INIT first."""
        query = self._http.query(namespace, since=None if since is None else str(since))
        return NodesTop.model_validate(await self._http.json("GET", "/v1/nodes", query=query)).nodes

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

        async def look() -> tuple[RolloutView, Trajectory | None]:
            async with self._http.waits:
                return await self.rollout(id, namespace, wait=WAIT_SECONDS)

        while True:
            view, trajectory = await until_done(look, f"waiting for rollout {id}")
            if trajectory is not None:
                return trajectory
            if view.waiting is not None and view.waiting.word not in {IN_QUEUE, *warned}:
                warned.add(view.waiting.word)
                self._warn(f"rollout {id} waits: {view.waiting}")

    async def rollouts(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        suspicious: bool = False,
        search: Mapping[str, str] | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[RolloutView]:
        """Yield the matching rollouts, in order of arrival. `metadata`: only rollouts whose tasks have these values.
        `suspicious`: only rollouts with a reward above 0 and the metric `suspicious`. `search`: further parameters of
        `GET /v1/rollouts`, such as `{"since": "1767225600", "sort": "-tokens"}`. `limit`: greatest number of rollouts; None:
        all, or the first MAX_PAGE if they are sorted."""
        after, left = 0, limit
        query = _search_query(self._http.query(namespace), pool, group, status, metadata, suspicious, search)
        while left is None or left > 0:
            size = min(left or MAX_PAGE, MAX_PAGE if "sort" in query else PAGE)
            page = {"after": str(after), "limit": str(size)}
            body = await self._http.json("GET", "/v1/rollouts", query=query | page)
            for row in body["rollouts"]:
                yield RolloutView.model_validate(row, extra="ignore")
            left = None if left is None else left - len(body["rollouts"])
            if (after := body["next"]) is None:
                return

    async def summarize(
        self,
        by: str = "reason",
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        suspicious: bool = False,
        search: Mapping[str, str] | None = None,
        limit: int = 50,
    ) -> list[RolloutSums]:
        """Return sums over the ended rollouts that match, by a field: reason, kind, pool, status, mode, group, task, or
        `metadata.NAME`. The conditions are those of `rollouts`."""
        query = _search_query(self._http.query(namespace), pool, group, status, metadata, suspicious, search)
        body = await self._http.json("GET", "/v1/rollouts/summary", query=query | {"by": by, "limit": str(limit)})
        return RolloutSummary.model_validate(body).rows

    async def losses(self, namespace: str | None = None, *, since: float | None = None) -> LossSummary:
        """Return the lost attempts and leases since a time (Unix seconds; None: an hour ago), by reason and node."""
        query = self._http.query(namespace, since=None if since is None else str(since))
        return LossSummary.model_validate(
            await self._http.json("GET", "/v1/rollouts/losses", query=query), extra="ignore"
        )

    async def profile(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        suspicious: bool = False,
        search: Mapping[str, str] | None = None,
    ) -> ProfileView:
        """Return where the time and the tokens of the ended rollouts that match went. The conditions are those of
        `rollouts`."""
        query = _search_query(self._http.query(namespace), pool, group, status, metadata, suspicious, search)
        return ProfileView.model_validate(await self._http.json("GET", "/v1/rollouts/profile", query=query))

    async def count_rollouts(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        status: Sequence[str] = (),
        metadata: Mapping[str, str] | None = None,
        suspicious: bool = False,
        search: Mapping[str, str] | None = None,
    ) -> int:
        """Return the number of rollouts that match. The conditions are those of `rollouts`."""
        query = _search_query(self._http.query(namespace), pool, group, status, metadata, suspicious, search)
        body = await self._http.json("GET", "/v1/rollouts", query=query | {"limit": "1", "total": "true"})
        return int(body["total"])

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
        body = await self._http.json("DELETE", rollout_path(id), query=self._http.query(namespace))
        return RolloutView.model_validate(body, extra="ignore")

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
            await end_tasks(*waits)

    async def run_all(
        self, requests: Iterable[RolloutRequest], namespace: str | None = None
    ) -> AsyncGenerator[Trajectory]:
        """Submit rollouts whose requests have ids, at most UNFINISHED at a time; yield their trajectories as they end.

        Wait without a time limit, even while the server is unreachable. A program that is started again after a crash, with
        the same requests, goes on: rollouts that the server has are not run again. Raises NotFound, and the errors of `submit`.
        """
        left, warned, waits = iter(requests), set[str](), set[asyncio.Task[Trajectory]]()
        try:
            while True:
                while len(waits) <= UNFINISHED - SUBMITTED_TOGETHER and (
                    some := list(islice(left, SUBMITTED_TOGETHER))
                ):
                    for id in await self._submit_in_the_end(some, namespace):
                        waits.add(asyncio.create_task(self._wait(id, namespace, warned)))
                if not waits:
                    return
                ended, waits = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                for one in ended:
                    yield one.result()
        finally:
            await end_tasks(*waits)

    async def run(self, request: RolloutRequest, namespace: str | None = None) -> Trajectory:
        """Submit a rollout that has an id, or attach to it, and wait for its end without a time limit.

        A server that cannot be reached is waited for. Raises the ApiErrors of a submit, such as Invalid.
        """
        (id,) = await self._submit_in_the_end([request], namespace)
        return await self.wait(id, namespace)

    async def _submit_in_the_end(self, requests: Sequence[RolloutRequest], namespace: str | None) -> list[str]:
        return await until_done(lambda: self.submit(requests, namespace), f"submitting {len(requests)} rollouts")

    async def wait_many(self, ids: Sequence[str], namespace: str | None = None) -> list[Trajectory]:
        """Wait until all these rollouts have ended. Return their trajectories in the order of `ids`. Raises NotFound."""
        found = {t.id: t async for t in self.as_completed(dict.fromkeys(ids), namespace)}
        return [found[id] for id in ids]

    async def newest_cursor(self) -> tuple[int, float]:
        """Return the cursor of the rollout that ended last in all namespaces, and the server's time (Unix seconds)."""
        found = await self._http.json("GET", "/v1/rollouts/cursor")
        return int(found["cursor"]), float(found["time"])

    async def stream(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None, after: int = 0
    ) -> AsyncGenerator[tuple[int, Trajectory]]:
        """Yield (cursor, trajectory) of each rollout that has ended since the cursor `after` or ends later.

        Never stop; reconnect after a broken connection.
        """
        async with aclosing(self.stream_columns(namespace, pool=pool, group=group, after=after)) as found:
            async for _, columns in found:
                # in a thread, so that the trainer's event loop is not blocked
                trajectories = await asyncio.to_thread(columns.trajectories)
                for cursor, trajectory in zip(columns.about["cursors"], trajectories, strict=True):
                    yield cursor, trajectory

    async def stream_columns(
        self,
        namespace: str | None = None,
        *,
        pool: str | None = None,
        group: str | None = None,
        after: int = 0,
        upto: int | None = None,
    ) -> AsyncGenerator[tuple[int, Columns]]:
        """Do the same as `stream`, with trajectories as arrays: one or more rollouts at a time, and the cursor of the last one.
        `columns.about["cursors"]` has the cursor of each. `upto`: stop after this cursor."""
        from rollyard.client import rollout_answers
        from rollyard.trajectory.columns import CONTENT_TYPE

        backoff = Backoff()
        while True:
            last = None if upto is None else str(upto)
            query = self._http.query(namespace, pool=pool, group=group, after=str(after), upto=last, trajectories="1")
            try:
                async with (
                    self._http.stream(
                        "/v1/rollouts/stream", query, silence=SILENCE_SECONDS, accept=CONTENT_TYPE
                    ) as answer,
                    aclosing(rollout_answers.read_stream(answer)) as found,
                ):
                    async for columns in found:
                        backoff.reset()
                        if columns is None:
                            continue
                        if not len(columns):
                            return  # the server's last file, which it sends only up to a cursor
                        after = columns.about["cursors"][-1]
                        yield after, columns
            except (aiohttp.ClientError, TimeoutError, OSError, Unavailable):
                pass
            await backoff.wait()


def _search_query(
    query: dict[str, str],
    pool: str | None,
    group: str | None,
    status: Sequence[str],
    metadata: Mapping[str, str] | None,
    suspicious: bool,
    search: Mapping[str, str] | None,
) -> dict[str, str]:
    given = {"pool": pool, "group": group, "status": ",".join(status), "suspicious": "true" if suspicious else None}
    own = json.dumps(dict(metadata)) if metadata else None
    return query | {name: v for name, v in {**given, "metadata": own, **(search or {})}.items() if v}


async def _trajectory(columns: Columns) -> Trajectory:
    """Build the trajectory in a thread, so that the trainer's event loop is not blocked."""
    (found,) = await asyncio.to_thread(columns.trajectories)
    return found
