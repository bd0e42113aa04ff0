"""Warm sandboxes: started before a rollout needs them, with their tools ready.

A claim hands over one that was started before, or starts a cold one. What was handed over never comes back. A warm
sandbox that died, or whose image is no longer what its name means, is ended, and the claim takes the next one.

Warm sandboxes use places of the allocation that no rollout uses. A rollout that needs the place gets it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from rollyard.core.aio import Waker, end_tasks
from rollyard.core.errors import RollyardError, SandboxError, SandboxLost
from rollyard.images.pinned_image import PinnedImage
from rollyard.sandbox.base import SandboxSpec
from rollyard.sandbox.free_memory import free_memory
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.warm_demand import RECENT_SECONDS, Need, to_end, to_start, wanted

log = logging.getLogger(__name__)

CLAIM_SECONDS = 5.0
"""Seconds in which a warm sandbox must answer a claim."""
ROUND_SECONDS = 1.0
"""Seconds between two looks at what is needed, if nothing happens."""
FAILED_SECONDS = 60.0
"""Seconds without warm sandboxes of a shape after one could not be started."""
LEAST_FREE_BYTES = 1 << 30
"""Free memory below which no warm sandbox is kept."""
_AT_ONCE = max(1, min(8, (os.cpu_count() or 1) // 2))
_MANY_CLAIMS = 256


@dataclass(eq=False)
class _Shape:
    """The warm sandboxes of one shape."""

    spec: SandboxSpec
    tools: tuple[str, ...]
    claims: deque[float] = field(default_factory=lambda: deque(maxlen=_MANY_CLAIMS))
    claimed_at: float = 0.0
    expected: list[float] = field(default_factory=list)
    """Times at which the claims that will come were announced, in order."""
    ready: deque[Sandbox] = field(default_factory=deque)
    starting: int = 0
    waiting: deque[asyncio.Future[Sandbox | None]] = field(default_factory=deque)
    """Claims that get a sandbox that is starting."""
    failed_until: float = 0.0


@dataclass(frozen=True)
class WarmCounts:
    """Numbers of sandboxes since the start."""

    ready: int
    """Warm sandboxes that wait for a claim now."""
    warm: int
    """Claims that got a warm sandbox."""
    cold: int
    """Claims for which a sandbox was started."""
    unused: int
    """Warm sandboxes that ended without a claim."""


class ExpectedSandbox:
    """A claim that will come."""

    def __init__(
        self,
        shape: _Shape,
        claim: Callable[[_Shape, PinnedImage | None], Coroutine[Any, Any, Sandbox]],
        dropped: Callable[[], None],
    ) -> None:
        self._shape = shape
        self._claim = claim
        self._dropped = dropped
        self._at = asyncio.get_running_loop().time()
        self._is_open = True
        shape.expected.append(self._at)

    async def claim(self, pinned: PinnedImage | None = None) -> Sandbox:
        """Return a sandbox, as WarmSandboxes.claim."""
        self._close()
        return await self._claim(self._shape, pinned)

    def drop(self) -> None:
        """End the announcement without a claim. After `claim` and after another `drop` this has no effect."""
        if self._is_open:
            self._close()
            self._dropped()

    def _close(self) -> None:
        if self._is_open:
            self._shape.expected.remove(self._at)
            self._is_open = False


class WarmSandboxes:
    """The warm sandboxes of a node agent. `close` ends them; sandboxes that were claimed belong to their claimers."""

    def __init__(
        self, factory: SandboxFactory, most: int, places: int, *, free: Callable[[], int] = free_memory
    ) -> None:
        """`most`: greatest number of warm sandboxes; 0 turns them off. `places`: number of sandboxes that fit into the
        allocation, warm or not."""
        self.places = places
        self._factory = factory
        self._most = most
        self._free = free
        self._shapes: dict[Hashable, _Shape] = {}
        self._in_use: set[Sandbox] = set()
        self._cold_starts = 0
        """Number of cold starts that are under way."""
        self._claimed = self._cold = self._unused = 0
        self._drains = False
        self._short = False
        self._changed = Waker()
        self._starts: set[asyncio.Task[None]] = set()
        self._ends: set[asyncio.Task[None]] = set()
        self._keeper: asyncio.Task[None] | None = None
        factory.images.cache.room.full.connect(self._let_images_go)

    @property
    def counts(self) -> WarmCounts:
        ready = sum(len(shape.ready) for shape in self._shapes.values())
        return WarmCounts(ready, self._claimed, self._cold, self._unused)

    @property
    def preparing(self) -> str:
        """Work that is done once on this node before a sandbox can start; empty if there is none."""
        return self._factory.preparing

    async def claim(self, spec: SandboxSpec, tools: Sequence[str] = (), pinned: PinnedImage | None = None) -> Sandbox:
        """Return a sandbox in which `tools` are ready: a warm one, or a new one. The caller must close it. `pinned`: the image
        of a new one, if the caller pins it.

        Raises as SandboxFactory.start and Sandbox.prepare.
        """
        shape = self._shape(spec, tools)
        shape.claims.append(asyncio.get_running_loop().time())
        return await self._claim(shape, pinned)

    def expect(self, spec: SandboxSpec, tools: Sequence[str] = ()) -> ExpectedSandbox:
        """Announce a claim. The caller must claim or drop what this method returns."""
        shape = self._shape(spec, tools)
        self._changed.wake()
        return ExpectedSandbox(shape, self._claim, self._changed.wake)

    def drain(self) -> None:
        """Keep only warm sandboxes that rollouts in flight will claim."""
        self._drains = True
        self._changed.wake()

    async def close(self) -> None:
        """End all warm sandboxes."""
        self._most = 0
        await end_tasks(*self._starts, *([self._keeper] if self._keeper is not None else []))
        for shape in self._shapes.values():
            while shape.ready:
                self._end(shape.ready.popleft())
        await asyncio.gather(*self._ends, return_exceptions=True)
        if self._claimed or self._unused:
            log.info(
                "sandboxes: %d were warm, %d cold; %d warm ones were not used", self._claimed, self._cold, self._unused
            )

    # claims

    async def _claim(self, shape: _Shape, pinned: PinnedImage | None) -> Sandbox:
        shape.claimed_at = asyncio.get_running_loop().time()
        self._changed.wake()
        while (sandbox := await self._take(shape)) is not None:
            if await self._is_usable(shape, sandbox):
                self._claimed += 1
                self._in_use.add(sandbox)
                return sandbox
            self._end(sandbox)
        self._cold += 1
        return await self._start_cold(shape, pinned)

    async def _take(self, shape: _Shape) -> Sandbox | None:
        """Return a warm sandbox, or one that is starting now and that nobody waits for; None if there is neither."""
        if shape.ready:
            return shape.ready.popleft()
        if shape.starting <= len(shape.waiting):
            return None
        coming: asyncio.Future[Sandbox | None] = asyncio.get_running_loop().create_future()
        shape.waiting.append(coming)
        try:
            return await coming
        except asyncio.CancelledError:
            if coming.done() and not coming.cancelled() and (sandbox := coming.result()) is not None:
                shape.ready.append(sandbox)
            with contextlib.suppress(ValueError):
                shape.waiting.remove(coming)
            raise

    async def _is_usable(self, shape: _Shape, sandbox: Sandbox) -> bool:
        """Return whether the sandbox answers, lacks nothing, and has the image that a new one would have. This needs no
        network."""
        try:
            if not sandbox.alive or await sandbox.was_hurt() or not await self._factory.has_current_image(sandbox):
                return False
            async with asyncio.timeout(CLAIM_SECONDS):
                await _prepare(sandbox, shape.tools)
        except (SandboxLost, TimeoutError):
            log.warning("the warm sandbox %s does not answer; another one takes its place", sandbox.id)
            return False
        except BaseException:
            self._end(sandbox)
            raise
        return True

    async def _start_cold(self, shape: _Shape, pinned: PinnedImage | None) -> Sandbox:
        self._cold_starts += 1
        self._make_place()
        try:
            sandbox = await self._factory.start(shape.spec, pinned=pinned)
            self._in_use.add(sandbox)
        finally:
            self._cold_starts -= 1
            self._changed.wake()
        try:
            await sandbox.prepare(shape.tools)
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    # what is kept

    def _shape(self, spec: SandboxSpec, tools: Sequence[str]) -> _Shape:
        if not self._most:
            return _Shape(spec, tuple(tools))
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep())
        return self._shapes.setdefault((_frozen(spec), frozenset(tools)), _Shape(spec, tuple(tools)))

    async def _keep(self) -> None:
        while True:
            await self._changed.pause(ROUND_SECONDS)
            try:
                self._short = await asyncio.to_thread(self._free) < LEAST_FREE_BYTES
                await self._end_outdated()
                self._keep_what_is_needed()
            except Exception:
                # An error here must not end the node agent, nor the warm sandboxes for good.
                log.exception("this round of warm sandboxes failed; another one follows")
                await asyncio.sleep(ROUND_SECONDS)

    async def _end_outdated(self) -> None:
        for shape in list(self._shapes.values()):
            for sandbox in list(shape.ready):
                current = sandbox.alive and await self._factory.has_current_image(sandbox)
                if not current and sandbox in shape.ready:
                    shape.ready.remove(sandbox)
                    self._end(sandbox)

    def _keep_what_is_needed(self) -> None:
        now = asyncio.get_running_loop().time()
        needs = {shape: self._need(shape, now) for shape in self._shapes.values()}
        room = min(self._most, self._room())
        total = sum(need.have for need in needs.values())
        for shape in to_end(needs, total - room):
            if shape.ready:
                self._end(shape.ready.popleft())
        starting = sum(shape.starting for shape in needs)
        at_once = 1 if self._cold_starts else _AT_ONCE  # a rollout waits for a cold start
        for shape in to_start(needs, min(room - total, at_once - starting)):
            shape.starting += 1
            _spawn(self._warm_up(shape), self._starts)
        for key, shape in list(self._shapes.items()):
            if not (shape.expected or shape.ready or shape.starting) and now - shape.claimed_at > RECENT_SECONDS:
                del self._shapes[key]

    def _need(self, shape: _Shape, now: float) -> Need:
        count = wanted(() if self._drains else shape.claims, len(shape.expected), now)
        return Need(
            0 if self._short or now < shape.failed_until else count,
            len(shape.ready) + shape.starting - len(shape.waiting),
            shape.claimed_at,
            shape.expected[0] if shape.expected else None,
        )

    def _room(self) -> int:
        """Return the number of places that no rollout uses."""
        self._in_use = {sandbox for sandbox in self._in_use if sandbox.alive}
        return self.places - len(self._in_use) - self._cold_starts

    def _make_place(self) -> None:
        """End a warm sandbox if a rollout needs its place."""
        warm = sum(len(shape.ready) + shape.starting for shape in self._shapes.values())
        if warm > self._room():
            now = asyncio.get_running_loop().time()
            needs = {shape: self._need(shape, now) for shape in self._shapes.values() if shape.ready}
            for shape in to_end(needs, 1)[:1]:
                self._end(shape.ready.popleft())

    def _let_images_go(self) -> None:
        """End the warm sandboxes that keep an image in the full cache, unless a rollout in flight will claim them."""
        for shape in self._shapes.values():
            if shape.spec.image is not None and not shape.expected:
                shape.claims.clear()
                while shape.ready:
                    self._end(shape.ready.popleft())

    async def _warm_up(self, shape: _Shape) -> None:
        sandbox: Sandbox | None = None
        try:
            sandbox = await self._started(shape)
        except (RollyardError, OSError) as error:
            shape.failed_until = asyncio.get_running_loop().time() + FAILED_SECONDS
            image = "/usr" if shape.spec.image is None else shape.spec.image.text
            log.warning("no warm sandbox of %s for %g s: %s", image, FAILED_SECONDS, error)
        finally:
            shape.starting -= 1
            self._hand_out(shape, sandbox)
            self._changed.wake()

    async def _started(self, shape: _Shape) -> Sandbox:
        sandbox = await self._factory.start(shape.spec)
        try:
            await _prepare(sandbox, shape.tools)
            if not await self._factory.has_current_image(sandbox):
                raise SandboxError("its image has changed, or cannot be looked up")
        except BaseException:
            await sandbox.close()
            raise
        return sandbox

    def _hand_out(self, shape: _Shape, sandbox: Sandbox | None) -> None:
        """Give a new sandbox to the claim that waits for it, or keep it. None: one claim must start a cold one."""
        while shape.waiting:
            coming = shape.waiting.popleft()
            if not coming.done():
                coming.set_result(sandbox)
                return
        if sandbox is not None:
            shape.ready.append(sandbox)

    # ends

    def _end(self, sandbox: Sandbox) -> None:
        self._unused += 1
        _spawn(sandbox.close(), self._ends)


def _spawn(work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> None:
    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)


async def _prepare(sandbox: Sandbox, tools: Sequence[str]) -> None:
    """Start the tools, and bash, which a task handler may use. An image may have no bash."""
    await sandbox.prepare(tools)
    if "bash" not in tools:
        try:
            await sandbox.prepare(["bash"])
        except SandboxLost:
            if not sandbox.alive:
                raise


def _frozen(spec: SandboxSpec) -> Hashable:
    """Return everything that shapes a sandbox, as a key."""
    values = (getattr(spec, one.name) for one in fields(spec))
    return tuple(tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in values)
