"""`Client`: the API for programs without an event loop. A thread runs the async client on an event loop."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from rollyard.client.async_batch import AsyncBatch
from rollyard.client.async_client import AsyncClient
from rollyard.client.step_log import StepLog
from rollyard.client.weights_push import WeightsPush
from rollyard.client.weights_receiver import WeightsReceiver
from rollyard.core.aio import end_tasks
from rollyard.kinds.batch import BatchRequest, BatchView
from rollyard.kinds.weights import Mode, WeightsStatus, WeightsUpdate

if TYPE_CHECKING:
    from rollyard.trajectory.group import Group

A = TypeVar("A")
Original = TypeVar("Original", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Blocking(Generic[Original]):
    """An object of the async client, for programs without an event loop: its calls run on the loop of a `Client`."""

    def __init__(self, original: Original, loop: asyncio.AbstractEventLoop) -> None:
        self._original, self._loop = original, loop

    def _run(self, work: Awaitable[T]) -> T:
        return _run(work, self._loop)


def _run(work: Awaitable[T], loop: asyncio.AbstractEventLoop) -> T:
    async def awaited() -> T:
        return await work

    return asyncio.run_coroutine_threadsafe(awaited(), loop).result()


def blocking(method: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return the method of `Blocking` that waits for this method, with the same parameters and docstring."""

    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._original, *args, **kwargs))

    return call


def each(method: Callable[Concatenate[A, P], AsyncGenerator[T]]) -> Callable[Concatenate[Blocking[A], P], Iterator[T]]:
    """Do the same as `blocking` for a method that yields."""

    @functools.wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found = method(self._original, *args, **kwargs)
        try:
            while (one := self._run(anext(found, None))) is not None:
                yield one
        finally:
            self._run(found.aclose())

    return call


class BlockingWeightsReceiver(Blocking[WeightsReceiver]):
    """A `WeightsReceiver` for programs without an event loop. Several threads may call it at the same time."""

    call = blocking(WeightsReceiver.call)

    @property
    def id(self) -> str:
        return self._original.id


class BlockingBatch(Blocking[AsyncBatch]):
    """An `AsyncBatch` for programs without an event loop. `Client.batch` makes it."""

    acknowledge = blocking(AsyncBatch.acknowledge)
    cancel = blocking(AsyncBatch.cancel)

    @property
    def id(self) -> str:
        return self._original.id

    @property
    def after(self) -> int:
        """Delivery number of the last group that the iterator returned."""
        return self._original.after

    @property
    def view(self) -> BatchView | None:
        """State of the batch in the server's last answer."""
        return self._original.view

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Group:
        group = self._run(anext(self._original, None))
        if group is None:
            raise StopIteration
        return group


class BlockingWeightsPush(Blocking[WeightsPush]):
    """A `WeightsPush` for programs without an event loop."""

    push = blocking(WeightsPush.push)
    __exit__ = blocking(WeightsPush.__aexit__)

    def __enter__(self) -> Self:
        self._run(self._original.__aenter__())
        return self

    @property
    def step(self) -> int:
        return self._original.step

    @property
    def version(self) -> str | None:
        return self._original.version


class Client(Blocking[AsyncClient]):
    """The API of trainers as blocking calls. Use a `Client` as a context manager."""

    submit = blocking(AsyncClient.submit)
    rollout = blocking(AsyncClient.rollout)
    rollout_columns = blocking(AsyncClient.rollout_columns)
    rollout_history = blocking(AsyncClient.rollout_history)
    token_texts = blocking(AsyncClient.token_texts)
    artifact = blocking(AsyncClient.artifact)
    images_needed = blocking(AsyncClient.images_needed)
    missing_images = blocking(AsyncClient.missing_images)
    nodes = blocking(AsyncClient.nodes)
    snapshots = blocking(AsyncClient.snapshots)
    snapshot = blocking(AsyncClient.snapshot)
    wait = blocking(AsyncClient.wait)
    wait_many = blocking(AsyncClient.wait_many)
    as_completed = each(AsyncClient.as_completed)
    rollouts = each(AsyncClient.rollouts)
    counts = blocking(AsyncClient.counts)
    summarize = blocking(AsyncClient.summarize)
    losses = blocking(AsyncClient.losses)
    profile = blocking(AsyncClient.profile)
    count_rollouts = blocking(AsyncClient.count_rollouts)
    cancel = blocking(AsyncClient.cancel)
    cancel_rollouts = blocking(AsyncClient.cancel_rollouts)
    put_dataset = blocking(AsyncClient.put_dataset)
    datasets = blocking(AsyncClient.datasets)
    dataset = blocking(AsyncClient.dataset)
    dataset_tasks = blocking(AsyncClient.dataset_tasks)
    delete_dataset = blocking(AsyncClient.delete_dataset)
    create_evaluation = blocking(AsyncClient.create_evaluation)
    evaluate = blocking(AsyncClient.evaluate)
    evaluations = blocking(AsyncClient.evaluations)
    evaluation = blocking(AsyncClient.evaluation)
    evaluated_tasks = blocking(AsyncClient.evaluated_tasks)
    compare_evaluations = blocking(AsyncClient.compare_evaluations)
    delete_evaluation = blocking(AsyncClient.delete_evaluation)
    create_batch = blocking(AsyncClient.create_batch)
    get_batch = blocking(AsyncClient.get_batch)
    batches = blocking(AsyncClient.batches)
    batch_history = blocking(AsyncClient.batch_history)
    groups = blocking(AsyncClient.groups)
    groups_columns = blocking(AsyncClient.groups_columns)
    acknowledge = blocking(AsyncClient.acknowledge)
    cancel_batch = blocking(AsyncClient.cancel_batch)
    open_session = blocking(AsyncClient.open_session)
    session = blocking(AsyncClient.session)
    close_session = blocking(AsyncClient.close_session)
    weights_status = blocking(AsyncClient.weights_status)
    usage = blocking(AsyncClient.usage)
    slurm_usage = blocking(AsyncClient.slurm_usage)
    ended_allocations = blocking(AsyncClient.ended_allocations)
    planned_successors = blocking(AsyncClient.planned_successors)

    def __init__(self, *, kubeconfig: Path | str | None = None) -> None:
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=loop.run_forever, name="rollyard-client", daemon=True)
        self._thread.start()
        super().__init__(_run(_open(kubeconfig), loop), loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._cancel_calls())
        self._run(self._original.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_calls(self) -> None:
        """Cancel all calls that still run. An exception such as KeyboardInterrupt has ended only the caller's wait."""
        await end_tasks(*(call for call in asyncio.all_tasks() if call is not asyncio.current_task()))
        await self._loop.shutdown_asyncgens()

    def batch(
        self,
        request: BatchRequest | str,
        namespace: str | None = None,
        *,
        after: int = 0,
        progress: bool = False,
        log: StepLog | None = None,
    ) -> BlockingBatch:
        """Iterate over the groups of a batch: `for group in client.batch(request)`."""
        batch = self._original.batch(request, namespace, after=after, progress=progress, log=log)
        return BlockingBatch(batch, self._loop)

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
        pusher = self._original.weights(pool, folder=folder, namespace=namespace, mode=mode, keep=keep)
        return BlockingWeightsPush(pusher, self._loop)

    def update_weights(self, namespace: str, pool: str, update: WeightsUpdate, *, wait: bool = False) -> WeightsStatus:
        """Begin an update. With `wait`, return when the update has ended, even if it has failed."""
        begun = self._run(self._original.update_weights(namespace, pool, update))
        return self._run(self._original.wait_weights(namespace, pool, update.version)) if wait else begun

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

        return self._run(self._original.transfer_weights(namespace, pool, update, sent))


async def _open(kubeconfig: Path | str | None) -> AsyncClient:
    return AsyncClient(kubeconfig=kubeconfig)
