"""Pulls of images beside the rollouts' stages: a rollout enters INIT when its image is on the node.

A lease waits only briefly for a pull. Then it goes back to the server, and other rollouts take its place. The pull goes
on. The server is told its outcome, and grants the image's rollouts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field

from rollyard.core.aio import Waker, end_tasks, wait_or_timeout
from rollyard.core.errors import ImageNotFound, ImageNotReady, ImageUnavailable, RollyardError
from rollyard.images.cache_room import CacheStorage
from rollyard.images.pinned_image import PinnedImage
from rollyard.kinds.values.image_reference import ImageReference, parse_image, registry_host
from rollyard.sandbox.images import Images, is_in_place
from rollyard.wire.node import ImageChanges, ImageFault, ImageStorage

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 2.0
"""Seconds for which a lease waits for a pull. Most small images are there by then."""
PULLS_PER_HOST = 3
"""Number of images that are pulled from one registry at once. A registry that hangs does not delay pulls from others."""
TURN_SECONDS = 45.0
"""Seconds for which a pull waits for its turn. The server then grants a rollout again, which begins the pull again. So
images that no rollout needs any more are not pulled."""
PIN_SECONDS = 3.0
"""Seconds for which a pulled image stays pinned for its first rollout. Until then it counts as a pull, so that pulls do not
drive each other's images out of a small cache."""
PREFETCHED_AT_ONCE = 2
"""Number of images that are pulled, or pinned, for rollouts that are still in the queue."""
PREFETCHED_PIN_SECONDS = 120.0
"""Seconds for which such an image stays pinned for its first rollout."""
LOOK_SECONDS = 10.0
"""Interval at which the server is told which images the node has. Other node agents of the node change the cache too."""
CHECK_SECONDS = 600.0
"""Least time between two looks at all files of an image."""

DEFAULT_CAP_SECONDS = 300.0
"""Greatest interval at which a pool's default image that cannot be had is tried again, while no rollout needs it."""

DEFAULT_SAID_SECONDS = 900.0
"""Interval at which the server is told again that the default image cannot be had. It forgets what no rollout asks for."""

Send = Callable[[ImageChanges], Awaitable[object]]


@dataclass(eq=False)
class _Pull:
    image: ImageReference
    outcome: asyncio.Future[None]
    """Done when the image is on the node, or with the reason why not."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a rollout pins the image."""


class ImagePulls:
    """Pulls of one node agent."""

    def __init__(self, images: Images, send: Send, default: ImageReference | None = None) -> None:
        """`send`: function that sends a message to the server. `default`: the pool's default image."""
        self._images = images
        self._cache = images.cache
        self.default = default
        self._send = send
        self._pulls: dict[ImageReference, _Pull] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._checked: dict[str, float] = {}
        """Digest -> time of the last look at all files of the image."""
        self._looking = asyncio.Lock()
        self._hosts: dict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(PULLS_PER_HOST))
        self._ready: set[str] = set()
        self._stored = CacheStorage()
        self._folders: set[str] = set()
        """Images that are folders, and that could be used when a rollout last needed them."""
        self._wanted = deque[ImageReference]()
        """Images of rollouts in the queue."""
        self._prefetched: set[_Pull] = set()
        self._prefetching = Waker()
        images.cache.room.full.connect(self._let_prefetched_go)

    @contextlib.asynccontextmanager
    async def pinned(self, image: ImageReference | None) -> AsyncIterator[PinnedImage | None]:
        """Keep an image on the node inside the block, and pull it first if it is missing. Yield it; None if it is used where
        it is.

        Raises ImageNotReady if it is still being pulled after PATIENCE_SECONDS, ImageUnavailable, and ImageNotFound.
        """
        if image is None or is_in_place(image):
            if image is not None:
                await self._look_at_folder(image)
            yield None
            return
        local = self._cache.here(image)
        if local is None:
            pull = self._pulls.get(image) or self._begin(image)
            await asyncio.wait([pull.outcome], timeout=PATIENCE_SECONDS)
            if not pull.outcome.done():
                raise ImageNotReady(image.text, "a node still pulls it")
            pull.outcome.result()
            local = await self._cache.get(image)
        if (kept := self._pulls.get(image)) is not None:
            kept.taken.set()
        with local:
            now = asyncio.get_running_loop().time()
            if now - self._checked.get(local.digest, -CHECK_SECONDS) >= CHECK_SECONDS:
                await self.check_files(local)
            yield local

    async def check_files(self, local: PinnedImage) -> None:
        """Look whether all files of an image are there: cleaners of old files delete some of those that nobody reads. One look
        at a time; who waits takes the result of a look that began meanwhile. Raises ImageUnavailable."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        async with self._looking:
            if self._checked.get(local.digest, -CHECK_SECONDS) < asked:
                self._checked[local.digest] = loop.time()
                await asyncio.to_thread(local.check_files)
        await asyncio.to_thread(local.check)

    async def _look_at_folder(self, image: ImageReference) -> None:
        """Look whether a folder is an image now, and tell the server what has changed. Raises ImageUnavailable and
        ImageNotFound."""
        name = image.text
        try:
            await asyncio.to_thread(self._images.folder_root, image)
        except ImageUnavailable:
            if name in self._folders:
                self._folders.discard(name)
                await self._send(ImageChanges(gone=[name]))
            raise
        if name not in self._folders:
            self._folders.add(name)
            await self._send(ImageChanges(ready=[name]))

    def ready(self) -> list[str]:
        """Return the images of which the server was told."""
        return sorted(self._ready | self._folders)

    def storage(self) -> ImageStorage:
        """Return what the images take, as last looked."""
        room = self._cache.room
        return ImageStorage(
            **asdict(self._stored), evicted_layers=room.evicted_layers, evicted_bytes=room.evicted_bytes
        )

    def prefetch(self, names: Sequence[str]) -> None:
        """Pull these images of registries, a few at a time. They replace those of the last call that have not begun."""
        self._wanted.clear()
        for name in names:
            with contextlib.suppress(ValueError):  # its rollouts end with the sentence
                self._wanted.append(parse_image(name))
        self._prefetching.wake()

    async def run(self) -> None:
        """Pull images ahead of their rollouts, and tell the server which images are on the node, for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tell())
            tasks.create_task(self._prefetch())
            tasks.create_task(self._look_for_default())

    async def _look_for_default(self) -> None:
        """Have the pool's default image before the first rollout needs it, and tell the server why it cannot be had."""
        loop = asyncio.get_running_loop()
        delay, said, again = LOOK_SECONDS, "", 0.0
        while self.default is not None:
            try:
                async with self.pinned(self.default):
                    return
            except ImageNotReady:
                pass  # it is being pulled
            except (ImageUnavailable, ImageNotFound) as error:
                if str(error) != said or loop.time() >= again:
                    said, again = str(error), loop.time() + DEFAULT_SAID_SECONDS
                    await self._send(ImageChanges(failed=[_default_fault(self.default, error)]))
            except RollyardError as error:
                log.warning("the pool's default image cannot be used: %s", error)
                return
            await asyncio.sleep(delay)
            if not is_in_place(self.default):  # no registry is asked often
                delay = min(2 * delay, DEFAULT_CAP_SECONDS)

    async def _prefetch(self) -> None:
        while True:
            await self._prefetching.pause(LOOK_SECONDS)
            try:
                while self._wanted and len(self._prefetched) < PREFETCHED_AT_ONCE:
                    if not await asyncio.to_thread(self._cache.room.half_is_free):
                        break
                    if self._wanted and (image := self._wanted.popleft()) not in self._pulls:
                        self._prefetched.add(self._begin(image))
            except OSError as error:
                log.warning("no images are prefetched: the cache cannot be used: %s", error)

    async def _tell(self) -> None:
        while True:
            try:
                await self._tell_changes()
            except OSError as error:
                log.warning("which images are here is not known: the cache cannot be used: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    async def _tell_changes(self) -> None:
        told = frozenset(self._ready)
        now = await asyncio.to_thread(self._cache.ready)
        self._stored = await asyncio.to_thread(self._cache.room.storage)
        # a pull that ended during the look has told the server already: it is in neither of the two
        ready, gone = now - self._ready, told - now
        self._ready |= now
        self._ready -= gone
        if ready or gone:
            await self._send(ImageChanges(ready=sorted(ready), gone=sorted(gone)))

    async def close(self) -> None:
        """End all pulls."""
        await end_tasks(*self._tasks)

    def _let_prefetched_go(self) -> None:
        """Make room in the full cache: rollouts that wait in the queue come after those that run."""
        for pull in self._prefetched:
            pull.taken.set()

    def _begin(self, image: ImageReference) -> _Pull:
        pull = self._pulls[image] = _Pull(image, asyncio.get_running_loop().create_future())
        task = asyncio.create_task(self._run(pull))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return pull

    async def _run(self, pull: _Pull) -> None:
        try:
            async with self._turn(pull.image):
                local = await self._pulled(pull.image)
                try:
                    pull.outcome.set_result(None)
                    self._ready.add(pull.image.text)
                    await self._send(ImageChanges(ready=[pull.image.text]))
                    if pull not in self._prefetched:
                        await wait_or_timeout(pull.taken, PIN_SECONDS)
                except BaseException:
                    local.release()
                    raise
            with local:
                if pull in self._prefetched:
                    await wait_or_timeout(pull.taken, PREFETCHED_PIN_SECONDS)
        except RollyardError as error:
            log.warning("%s", error)
            pull.outcome.set_exception(error)
            if isinstance(error, ImageUnavailable) and not isinstance(error, ImageNotReady):
                await self._send(ImageChanges(failed=[image_fault(error)]))
        finally:
            self._end(pull)

    def _end(self, pull: _Pull) -> None:
        del self._pulls[pull.image]
        if pull in self._prefetched:
            self._prefetched.discard(pull)
            self._prefetching.wake()
        if not pull.outcome.done():
            pull.outcome.set_exception(ImageUnavailable(pull.image.text, "its pull was stopped"))
        pull.outcome.exception()  # the leases that wait have it, if there are any

    async def _pulled(self, image: ImageReference) -> PinnedImage:
        try:
            return await self._cache.get(image)
        except ImageUnavailable as error:
            if error.image == image.text:
                raise
            # two names of one content share a fill
            down = error.registry_down and registry_host(error.image) == registry_host(image.text)
            raise ImageUnavailable(image.text, error.why, permanent=error.permanent, registry_down=down) from error

    @contextlib.asynccontextmanager
    async def _turn(self, image: ImageReference) -> AsyncIterator[None]:
        """Wait for a turn at the image's registry. An image whose last known content is on the node needs none. Raises
        ImageNotReady."""
        host = registry_host(image.text)
        if host is None or self._cache.has(image):
            yield
            return
        turns = self._hosts[host]
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await turns.acquire()
        except TimeoutError:
            raise ImageNotReady(image.text, f"a node pulls other images of {host} first") from None
        try:
            yield
        finally:
            turns.release()


def image_fault(error: ImageUnavailable, *, default: bool = False) -> ImageFault:
    """Return the message to the server. `default`: the pool's default image was meant."""
    return ImageFault(
        image=error.image,
        message=str(error),
        permanent=error.permanent,
        pulling=isinstance(error, ImageNotReady),
        default=default,
        registry_down=error.registry_down,
    )


def _default_fault(image: ImageReference, error: ImageUnavailable | ImageNotFound) -> ImageFault:
    if isinstance(error, ImageUnavailable):
        return image_fault(error, default=True)
    return ImageFault(image=image.text, message=str(error), permanent=True, default=True)
