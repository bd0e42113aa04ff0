"""Many images and a registry that is slow, then down, then answers with broken layers: rollouts of good images end
Completed, rollouts of broken ones say why, and the cache of the node keeps its bound."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from examples.tiny_policy.families import sample_math
from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.host.node_cache import node_cache
from rollyard.images.tree_size import bytes_on_disk
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.kinds.task import Task
from rollyard.sandbox.bundled_python import own_python
from rollyard.trajectory import Trajectory
from tests.support.image_registry import BASE, Front, Pusher, gz, running_registry, tar
from tests.support.yard import Yard, end

pytestmark = pytest.mark.slow(55)


@dataclass(frozen=True)
class Size:
    images: int
    broken: int
    per_image: int
    bound: int
    """Number of images that fit into the cache."""
    phase_seconds: float
    """Seconds of each fault of the registry."""
    replicas: int
    give_up_seconds: int
    """Much longer than the registry fails. So only the rollouts of broken images wait for this long."""
    image_bytes: int


SMALL = Size(
    images=12, broken=3, per_image=1, bound=3, phase_seconds=2.0, replicas=1, give_up_seconds=20, image_bytes=4 << 20
)
LARGE = Size(
    images=200,
    broken=12,
    per_image=2,
    bound=20,
    phase_seconds=15.0,
    replicas=2,
    give_up_seconds=240,
    image_bytes=1 << 20,
)
REASONS = ("check the name, or push the image", "cannot be unpacked", "it is built for linux/mips")


@dataclass
class Watch:
    """Looks at the cache of the node all the time."""

    cache: Path
    most: int = 0
    samples: int = 0
    pulled: Counter[str] = field(default_factory=Counter)

    async def run(self) -> None:
        seen: set[str] = set()
        while True:
            entries = await asyncio.to_thread(self._look)
            for name in entries - seen:
                self.pulled[name] += 1
            seen = entries
            await asyncio.sleep(0.1)

    def _look(self) -> set[str]:
        """Images that are being downloaded or unpacked do not count."""
        entries, size, folder = set(), 0, self.cache / "entries"
        for path in folder.iterdir() if folder.is_dir() else ():
            size += bytes_on_disk(path)
            entries.add(path.name)
        self.most, self.samples = max(self.most, size), self.samples + 1
        return entries


@pytest.fixture
async def yard(
    tmp_path_factory: pytest.TempPathFactory, open_folder: Path, monkeypatch: pytest.MonkeyPatch, long_leases: None
) -> AsyncIterator[Yard]:
    """A yard whose node has a cache of its own, which others do not use."""
    own = own_python(node_cache())
    (open_folder / own.name).symlink_to(own)  # made once for all tests
    monkeypatch.setenv("ROLLYARD_CACHE", str(open_folder))
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.start()
    yield made
    await end(made)


async def test_a_dozen_images(yard: Yard, open_folder: Path, tmp_path: Path) -> None:
    await scenario(yard, open_folder, tmp_path, SMALL)


@pytest.mark.long
async def test_two_hundred_images(yard: Yard, open_folder: Path, tmp_path: Path) -> None:
    await scenario(yard, open_folder, tmp_path, LARGE)


async def scenario(yard: Yard, cache: Path, folder: Path, size: Size) -> None:
    began = time.monotonic()
    with running_registry(folder) as host:
        async with Front(host) as front, yard.client() as client:
            good, broken = await asyncio.to_thread(push_images, Pusher(host), front.host, size)
            limit = size.bound * (size.image_bytes + (64 << 10))
            await yard.apply(
                client,
                policy={"replicas": 1},
                demo={
                    "replicas": size.replicas,
                    "sandbox": {"images": {"cacheSize": str(limit), "giveUpAfterSeconds": size.give_up_seconds}},
                },
            )
            await yard.ready(client)
            started = time.monotonic()
            watch = Watch(cache / "image-cache")
            async with running(watch.run()), running(fail(front, size.phase_seconds)):
                ids = await client.submit(requests([*broken, *good], size.per_image))
                sentence = await waiting_sentence(yard, client, ids[0])
                ended = await yard.gather(client, ids, 1500)
            statuses = dict(Counter(t.status.value for t in ended))
            good_seconds = max(t.timings.queued or 0.0 for t in ended if t.status.scored)
            print(
                f"\n{size.images} images, {len(ids)} rollouts in {time.monotonic() - started:.1f} s "
                f"(with set-up {time.monotonic() - began:.1f} s): {statuses}; longest wait of a good image "
                f"{good_seconds:.1f} s; cache at most {watch.most / limit:.2f} of its bound ({watch.samples} looks); "
                f"{sum(watch.pulled.values())} fills of {len(watch.pulled)} images; {front.requests.total()} requests; "
                f"load {os.getloadavg()[0]:.1f}"
            )
            check(ended, good, broken)
            assert broken[0] in sentence
            assert watch.most <= limit


def push_images(pusher: Pusher, host: str, size: Size) -> tuple[list[str], list[str]]:
    """Push images with different content. Return the names of good and of broken ones."""
    good, broken = [], []
    for number in range(size.images - size.broken):
        data = gz(tar(("data", None), ("data/random", random.Random(number).randbytes(size.image_bytes))))
        pusher.image(f"good/i{number}", "v1", [BASE, data])
        good.append(f"docker://{host}/good/i{number}:v1")
    for number in range(size.broken):
        name = f"broken/i{number}"
        match number % 3:
            case 1:
                pusher.image(name, "v1", [gz(b"no archive" * 200)])
            case 2:
                pusher.index(name, "v1", {"mips": pusher.image(name, "only")})
        broken.append(f"docker://{host}/{name}:v1")
    return good, broken


def requests(images: list[str], each: int) -> list[RolloutRequest]:
    rng = random.Random(7)
    return [
        RolloutRequest.model_validate(
            {
                "id": f"{image.rpartition('/')[2].replace(':', '-')}-{image.split('/')[-2]}-{n}",
                "pool": "demo",
                "task": Task.model_validate({**sample_math(rng, True), "image": image}),
            }
        )
        for image in images
        for n in range(each)
    ]


async def fail(front: Front, seconds: float) -> None:
    """Be slow, then down, then send broken layers, then be well."""
    for path, fault in (("", "slow 0.3"), ("", "down"), ("good/.*/blobs", "wrong")):
        front.faults[:] = [(path, fault, 1_000_000)]
        await asyncio.sleep(seconds)
    front.faults.clear()
    await asyncio.Event().wait()


async def waiting_sentence(yard: Yard, client: AsyncClient, id: str) -> str:
    async def look() -> str | None:
        waiting = (await client.rollout(id))[0].waiting
        return str(waiting) if waiting is not None and waiting.word == "ImageUnavailable" else None

    found = await yard.until(look)

    async def shown() -> bool:
        described, _ = await yard.rollyard("describe", "rp/demo")
        table = described.partition("Images missing on this pool's nodes:")[2]
        return "ImagesReady" in described and "cannot be used now" in described and "NEXT TRY" in table

    await yard.until(shown)
    assert isinstance(found, str)
    assert "; it is tried again at " in found or "tries it again now" in found
    return found


def check(ended: list[Trajectory], good: list[str], broken: list[str]) -> None:
    for trajectory in ended:
        image = trajectory.task.fields["image"]
        if image in good:
            assert trajectory.status in (Status.COMPLETED, Status.TRUNCATED), (image, trajectory.error)
            assert trajectory.attempt == 1, "waiting for an image costs no attempt"
        else:
            why = REASONS[broken.index(image) % 3]
            assert trajectory.error is not None
            assert (trajectory.status, trajectory.error.reason) == (Status.INFRA_FAILED, "ImageUnavailable")
            assert f"the image {image} cannot be used now" in trajectory.error.message
            assert why in trajectory.error.message
