"""`Client`: the API for programs without an event loop. A thread runs the async client on an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from rollyard.client.async_batch import AsyncBatch
from rollyard.client.async_client import AsyncClient
from rollyard.client.weights_push import Weights, WeightsPush
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.kinds.batch import BatchRequest, BatchView, DatasetView, Group, GroupPage
from rollyard.kinds.rollout import RolloutRequest, RolloutView, Task, Trajectory
from rollyard.kinds.rollout_history import RolloutHistory
from rollyard.kinds.rollout_snapshot import RolloutSnapshot
from rollyard.kinds.session import SessionOpened, SessionRecord, SessionRequest
from rollyard.kinds.weights import Mode, WeightsStatus, WeightsUpdate

if TYPE_CHECKING:
    from rollyard.wire.columns import Columns

T = TypeVar("T")


@dataclass(frozen=True)
class BlockingWeightsReceiver:
    """A `WeightsReceiver` for programs without an event loop. Several threads may call it at the same time."""

    receiver: WeightsReceiver
    loop: asyncio.AbstractEventLoop

    @property
    def id(self) -> str:
        return self.receiver.id

    def call(self, route: str, body: Mapping[str, Any] | bytes | None = None) -> Any:
        return asyncio.run_coroutine_threadsafe(self.receiver.call(route, body), self.loop).result()


class BlockingBatch:
    """An `AsyncBatch` for programs without an event loop. `Client.batch` makes it."""

    def __init__(self, batch: AsyncBatch, loop: asyncio.AbstractEventLoop) -> None:
        self._batch = batch
        self._loop = loop

    @property
    def id(self) -> str:
        return self._batch.id

    @property
    def after(self) -> int:
        """Delivery number of the last group that the iterator returned."""
        return self._batch.after

    @property
    def view(self) -> BatchView | None:
        """State of the batch in the server's last answer."""
        return self._batch.view

    def __iter__(self) -> BlockingBatch:
        return self

    def __next__(self) -> Group:
        group = self._run(anext(self._batch, None))
        if group is None:
            raise StopIteration
        return group

    def acknowledge(self, upto: int | None = None) -> BatchView:
        return self._run(self._batch.acknowledge(upto))

    def cancel(self, rollouts: Literal["keep", "cancel"] = "keep") -> BatchView:
        return self._run(self._batch.cancel(rollouts))

    def _run(self, work: Awaitable[T]) -> T:
        async def awaited() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result()


class BlockingWeightsPush:
    """A `WeightsPush` for programs without an event loop."""

    def __init__(self, pusher: WeightsPush, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        self._pusher, self._run = pusher, run

    def __enter__(self) -> Self:
        self._run(self._pusher.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._pusher.__aexit__(kind, error, trace))

    @property
    def step(self) -> int:
        return self._pusher.step

    @property
    def version(self) -> str | None:
        return self._pusher.version

    def push(self, weights: Weights, version: str | None = None) -> str:
        """Do the same as `WeightsPush.push`."""
        return str(self._run(self._pusher.push(weights, version)))


class Client:
    """The API of trainers as blocking calls. Use a `Client` as a context manager."""

    def __init__(self, *, kubeconfig: Path | str | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="rollyard-client", daemon=True)
        self._thread.start()
        self._client = self._run(self._open(kubeconfig))

    async def _open(self, kubeconfig: Path | str | None) -> AsyncClient:
        return AsyncClient(kubeconfig=kubeconfig)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._cancel_calls())
        self._run(self._client.__aexit__(kind, error, trace))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_calls(self) -> None:
        """Cancel all calls that still run. An exception such as KeyboardInterrupt has ended only the caller's wait."""
        calls = asyncio.all_tasks() - {asyncio.current_task()}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self._loop.shutdown_asyncgens()

    def submit(self, requests: Sequence[RolloutRequest], namespace: str | None = None) -> list[str]:
        return self._run(self._client.submit(requests, namespace))

    def rollout(
        self, id: str, namespace: str | None = None, *, wait: float = 0
    ) -> tuple[RolloutView, Trajectory | None]:
        return self._run(self._client.rollout(id, namespace, wait=wait))

    def rollout_columns(
        self, id: str, namespace: str | None = None, *, wait: float = 0
    ) -> tuple[RolloutView, Columns | None]:
        """Do the same as `rollout`, with the trajectory as arrays."""
        return self._run(self._client.rollout_columns(id, namespace, wait=wait))

    def rollout_history(self, id: str, namespace: str | None = None) -> RolloutHistory:
        """Return the changes of a rollout so far, oldest first. Raises NotFound."""
        return self._run(self._client.rollout_history(id, namespace))

    def images_needed(self) -> set[str]:
        """Return the sandbox images that unfinished rollouts name, and the default images of pools, in all namespaces."""
        return self._run(self._client.images_needed())

    def snapshots(self, id: str, namespace: str | None = None) -> list[RolloutSnapshot]:
        """Return the snapshots of a rollout's sandbox, in the order of the turns. Raises NotFound."""
        return self._run(self._client.snapshots(id, namespace))

    def snapshot(self, id: str, turn: int, namespace: str | None = None) -> bytes:
        """Return the snapshot after a turn, a tar archive in zstd. Raises NotFound."""
        return self._run(self._client.snapshot(id, turn, namespace))

    def wait(self, id: str, namespace: str | None = None) -> Trajectory:
        return self._run(self._client.wait(id, namespace))

    def as_completed(self, ids: Iterable[str], namespace: str | None = None) -> Iterator[Trajectory]:
        """Yield the trajectories of rollouts in the order in which the rollouts end. Raises NotFound."""
        found = self._client.as_completed(ids, namespace)
        try:
            while (trajectory := self._run(anext(found, None))) is not None:
                yield trajectory
        finally:
            self._run(found.aclose())

    def wait_many(self, ids: Sequence[str], namespace: str | None = None) -> list[Trajectory]:
        """Wait until all these rollouts have ended. Return their trajectories in the order of `ids`. Raises NotFound."""
        return self._run(self._client.wait_many(ids, namespace))

    def counts(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None
    ) -> dict[str, Any]:
        return self._run(self._client.counts(namespace, pool=pool, group=group))

    def cancel_rollouts(
        self, namespace: str | None = None, *, pool: str | None = None, group: str | None = None
    ) -> int:
        """Cancel all unfinished rollouts of a group or a pool, and return their number."""
        return self._run(self._client.cancel_rollouts(namespace, pool=pool, group=group))

    def cancel(self, id: str, namespace: str | None = None) -> RolloutView:
        return self._run(self._client.cancel(id, namespace))

    def put_dataset(
        self, name: str, tasks: Iterable[Task | Mapping[str, Any]] | Path, namespace: str | None = None
    ) -> DatasetView:
        return self._run(self._client.put_dataset(name, tasks, namespace))

    def datasets(self, namespace: str | None = None) -> list[DatasetView]:
        return self._run(self._client.datasets(namespace))

    def dataset(self, name: str, namespace: str | None = None) -> DatasetView:
        return self._run(self._client.dataset(name, namespace))

    def delete_dataset(self, name: str, namespace: str | None = None) -> None:
        self._run(self._client.delete_dataset(name, namespace))

    def create_batch(self, request: BatchRequest, namespace: str | None = None) -> BatchView:
        return self._run(self._client.create_batch(request, namespace))

    def get_batch(self, id: str, namespace: str | None = None) -> BatchView:
        return self._run(self._client.get_batch(id, namespace))

    def batches(self, namespace: str | None = None) -> list[BatchView]:
        return self._run(self._client.batches(namespace))

    def groups(
        self, id: str, namespace: str | None = None, *, after: int = 0, wait: float = 0.0, limit: int = 64
    ) -> GroupPage:
        return self._run(self._client.groups(id, namespace, after=after, wait=wait, limit=limit))

    def groups_columns(
        self, id: str, namespace: str | None = None, *, after: int = 0, wait: float = 0.0, limit: int = 64
    ) -> Columns:
        """Do the same as `groups`, with the trajectories as arrays."""
        return self._run(self._client.groups_columns(id, namespace, after=after, wait=wait, limit=limit))

    def acknowledge(self, id: str, upto: int, namespace: str | None = None) -> BatchView:
        return self._run(self._client.acknowledge(id, upto, namespace))

    def cancel_batch(
        self, id: str, namespace: str | None = None, *, rollouts: Literal["keep", "cancel"] = "keep"
    ) -> BatchView:
        return self._run(self._client.cancel_batch(id, namespace, rollouts=rollouts))

    def batch(
        self, request: BatchRequest | str, namespace: str | None = None, *, after: int = 0, progress: bool = False
    ) -> BlockingBatch:
        """Iterate over the groups of a batch: `for group in client.batch(request)`."""
        batch = self._client.batch(request, namespace, after=after, progress=progress)
        return BlockingBatch(batch, self._loop)

    def open_session(
        self, request: SessionRequest, namespace: str | None = None, *, wait: float = 0.0
    ) -> SessionOpened:
        return self._run(self._client.open_session(request, namespace, wait=wait))

    def session(self, id: str) -> SessionRecord:
        return self._run(self._client.session(id))

    def close_session(self, id: str) -> SessionRecord:
        return self._run(self._client.close_session(id))

    def weights_status(self, namespace: str, pool: str) -> WeightsStatus:
        return self._run(self._client.weights_status(namespace, pool))

    def weights(
        self,
        pool: str,
        *,
        folder: Path | str | None = None,
        namespace: str | None = None,
        mode: Mode = "Pause",
        keep: int = 2,
    ) -> BlockingWeightsPush:
        """Push a trainer's weights: `with client.weights("policy") as w: w.push(model)`."""
        pusher = self._client.weights(pool, folder=folder, namespace=namespace, mode=mode, keep=keep)
        return BlockingWeightsPush(pusher, self._run)

    def update_weights(self, namespace: str, pool: str, update: WeightsUpdate, *, wait: bool = False) -> WeightsStatus:
        """Begin an update. With `wait`, return when the update has ended, even if it has failed."""
        begun = self._run(self._client.update_weights(namespace, pool, update))
        return self._run(self._client.wait_weights(namespace, pool, update.version)) if wait else begun

    def transfer_weights(
        self,
        namespace: str,
        pool: str,
        update: WeightsUpdate,
        send: Callable[[Sequence[BlockingWeightsReceiver]], None],
    ) -> WeightsStatus:
        """Do the same as `AsyncClient.transfer_weights`; `send` runs in a thread, one call at a time."""

        async def sent(receivers: Sequence[WeightsReceiver]) -> None:
            await asyncio.to_thread(send, [BlockingWeightsReceiver(receiver, self._loop) for receiver in receivers])

        return self._run(self._client.transfer_weights(namespace, pool, update, sent))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()
