"""Pulls beside the stages, from a real registry: what a lease waits for, and what the server is told."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.core.aio import running
from rollyard.core.errors import ImageNotFound, ImageNotReady, ImageUnavailable
from rollyard.images import registry_client
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from rollyard.node import image_pulls
from rollyard.node.image_pulls import ImagePulls, image_fault
from rollyard.sandbox.images import Images
from rollyard.wire.node import ImageChanges
from tests.support.image_registry import BASE, Front, Pusher, gz, tar
from tests.support.until import until


@dataclass
class Site:
    """A node's pulls, and what they told the server."""

    pulls: ImagePulls
    images: Images
    told: list[ImageChanges] = field(default_factory=list)

    def ready(self) -> list[str]:
        return [image for message in self.told for image in message.ready]

    def failed(self) -> list[str]:
        return [fault.message for message in self.told for fault in message.failed]


@pytest_asyncio.fixture
async def site(open_folder: Path) -> AsyncIterator[Site]:
    images = Images(open_folder, CacheSettings())
    told: list[ImageChanges] = []

    async def send(message: ImageChanges) -> None:
        told.append(message)

    made = Site(ImagePulls(images, send), images, told)
    yield made
    await made.pulls.close()
    await images.cache.close()


async def use(site: Site, image: str | None) -> None:
    async with site.pulls.pinned(None if image is None else parse_image(image)):
        pass


async def test_a_lease_gets_its_image_and_the_server_learns_that_it_is_there(site: Site, front: Front) -> None:
    push(front, "pulls/one")
    name = f"docker://{front.host}/pulls/one:v1"
    async with site.pulls.pinned(parse_image(name)):
        (entry,) = site.images.cache.entries()
        assert entry.pinned
    assert site.ready() == [name]
    await until(lambda: not site.images.cache.entries()[0].pinned)
    asked = front.requests.total()
    await use(site, name)
    await use(site, None)
    assert front.requests.total() == asked, "what is on the node, and what is not an image of a registry, needs no pull"


async def test_what_the_images_of_the_node_take_is_known(site: Site, registry: Pusher) -> None:
    for name in ("one", "two"):
        registry.image("pulls/stored", name, [BASE, gz(tar((name, bytes(9000))))])
        await use(site, f"docker://{registry.host}/pulls/stored:{name}")
    async with running(site.pulls.run()):
        await until(lambda: site.pulls.storage().images)
    stored = site.pulls.storage()
    assert (stored.images, stored.layers, stored.evicted_layers) == (2, 3, 0)
    assert stored.bytes == site.images.cache.room.image_bytes() < stored.unshared_bytes


async def test_a_lease_does_not_wait_for_a_pull_that_hangs_and_others_pass_it(
    site: Site, front: Front, registry: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "PATIENCE_SECONDS", 0.1)
    names = [f"docker://{front.host}/pulls/hangs:v{n}" for n in range(4)]
    front.faults.append(("hangs", "hang", 99))
    for name in names:
        with pytest.raises(ImageNotReady, match=f"{name} cannot be used now: a node still pulls it"):
            await use(site, name)
    assert front.count("hangs") == image_pulls.PULLS_PER_HOST
    monkeypatch.setattr(image_pulls, "PATIENCE_SECONDS", 60.0)
    registry.image("pulls/elsewhere", "v1")
    await use(site, f"docker://{registry.host}/pulls/elsewhere:v1")


async def test_many_leases_of_a_missing_image_ask_the_registry_once(site: Site, front: Front, registry: Pusher) -> None:
    name = f"docker://{front.host}/pulls/late:v1"
    found = await asyncio.gather(*(use(site, name) for _ in range(8)), return_exceptions=True)
    assert all(isinstance(error, ImageUnavailable) and error.permanent for error in found), found
    assert "has no pulls/late:v1: check the name, or push the image" in str(found[0])
    assert front.count("late") == 1
    assert site.failed() == [str(found[0])]
    registry.image("pulls/late", "v1")
    await use(site, name)
    assert site.ready() == [name]


async def test_a_broken_image_that_is_pushed_again_under_its_tag_is_used(
    site: Site, front: Front, registry: Pusher
) -> None:
    registry.image("pulls/broken", "v1", [b"no archive"])
    name = f"docker://{front.host}/pulls/broken:v1"
    with pytest.raises(ImageUnavailable, match="cannot be unpacked") as caught:
        await use(site, name)
    assert caught.value.permanent
    registry.image("pulls/broken", "v1")
    await use(site, name)


async def test_two_names_of_one_broken_content_fail_each_under_its_own_name(
    site: Site, front: Front, registry: Pusher
) -> None:
    front.faults.append(("pulls/(one|two)/blobs", "slow 0.5", 9))
    names = []
    for repository in ("pulls/one", "pulls/two"):
        registry.image(repository, "bad", [b"the same, and no archive"])
        names.append(f"docker://{front.host}/{repository}:bad")
    found = await asyncio.gather(*(use(site, name) for name in names), return_exceptions=True)
    assert [error.image for error in found if isinstance(error, ImageUnavailable)] == names
    assert all(name in str(error) for name, error in zip(names, found, strict=True))


async def test_an_image_whose_tag_cannot_be_looked_up_is_used_from_the_node(
    site: Site, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(front, "pulls/stale")
    name = f"docker://{front.host}/pulls/stale:v1"
    await use(site, name)
    monkeypatch.setattr("rollyard.images.resolved_tags.TAG_SECONDS", 0.0)
    monkeypatch.setattr("rollyard.images.registry_source.ASK_SECONDS", 0.2)
    front.faults.append(("stale", "hang", 99))
    async with site.pulls.pinned(parse_image(name)):
        assert site.images.cache.entries()[0].pinned


async def test_the_server_is_told_what_others_added_and_deleted(
    site: Site, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.05)
    push(front, "pulls/other")
    name = f"docker://{front.host}/pulls/other:v1"
    task = asyncio.create_task(site.pulls.run())
    await site.images.cache.prefetch(parse_image(name))
    await until(lambda: site.ready() == [name])
    await site.images.cache.room.prune(float("inf"))
    await until(lambda: [image for message in site.told for image in message.gone] == [name])
    assert site.pulls.ready() == []
    task.cancel()


async def test_a_pull_that_ends_during_a_look_at_the_cache_is_not_told_as_gone(
    site: Site, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(front, "pulls/during")
    name = f"docker://{front.host}/pulls/during:v1"
    look, looked, go_on = site.images.cache.ready, threading.Event(), threading.Event()

    def slow_look() -> set[str]:
        found = look()
        looked.set()
        assert go_on.wait(60)
        return found

    monkeypatch.setattr(site.images.cache, "ready", slow_look)
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.01)
    task = asyncio.create_task(site.pulls.run())
    await until(looked.is_set)
    await use(site, name)
    looked.clear()
    go_on.set()
    await until(looked.is_set)
    assert [message.gone for message in site.told if message.gone] == []
    assert site.pulls.ready() == [name]
    task.cancel()


async def test_images_of_waiting_rollouts_are_pulled_and_kept_a_few_at_a_time(
    site: Site, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.01)
    names = []
    for number in range(4):
        push(front, f"ahead/i{number}", [BASE, gz(tar(("number", b"%d" % number)))])
        names.append(f"docker://{front.host}/ahead/i{number}:v1")
    task = asyncio.create_task(site.pulls.run())
    site.pulls.prefetch([f"docker://{front.host}/ahead/missing:v1", *names])
    await until(lambda: len(set(site.ready())) == 2)
    await until(lambda: [entry.pinned for entry in site.images.cache.entries()] == [True, True])
    assert len(site.failed()) == front.count("missing") == 1, "a missing image is reported, and not asked for again"
    for _ in range(10):
        await asyncio.sleep(0)
    assert sorted(set(site.ready())) == names[:2]
    await use(site, names[0])
    await until(lambda: names[2] in site.ready())
    task.cancel()


async def test_a_registry_that_is_down_is_asked_by_one_probe_and_not_for_each_image(
    site: Site, front: Front, registry: Pusher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)
    push(front, "down/one")
    names = [f"docker://{front.host}/down/{name}:v1" for name in ("missing", *(f"i{n}" for n in range(20)), "one")]
    front.faults.append(("", "503", 999))
    said = f"the registry {front.host} answers 503; its images wait until it answers"
    for name in names:
        with pytest.raises(ImageUnavailable) as caught:
            await use(site, name)
        assert (caught.value.why, caught.value.permanent) == (said, False)
        assert image_fault(caught.value).registry_down
    assert dict(front.requests) == {"/v2/down/missing/manifests/v1": 1, "/v2/": 1}
    registry.image("down/elsewhere", "v1")
    await use(site, f"docker://{registry.host}/down/elsewhere:v1")
    front.faults.clear()
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: time.monotonic() + 6.0)
    await use(site, names[-1])
    assert front.requests["/v2/"] == 2


async def test_an_image_that_fails_alone_stops_no_other_image_of_its_registry(
    site: Site, front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "ATTEMPTS", 1)
    push(front, "up/one")
    front.faults.append(("up/bad", "503", 99))
    with pytest.raises(ImageUnavailable, match=r"answers 503$") as caught:
        await use(site, f"docker://{front.host}/up/bad:v1")
    assert image_fault(caught.value).registry_down is False
    await use(site, f"docker://{front.host}/up/one:v1")


async def test_a_folder_that_is_missing_or_broken_waits_until_it_is_an_image(site: Site, open_folder: Path) -> None:
    folder = open_folder / "root"
    with pytest.raises(
        ImageUnavailable, match=f"the image {folder} cannot be used now: there is no such folder: make"
    ) as caught:
        await use(site, str(folder))
    assert caught.value.permanent
    folder.mkdir()
    with pytest.raises(ImageUnavailable, match="neither usr nor bin"):
        await use(site, str(folder))
    (folder / "bin").mkdir()
    assert site.told == []
    for _ in range(2):
        await use(site, str(folder))
        assert site.ready() == site.pulls.ready() == [str(folder)], "the server is told once"
    (folder / "bin").rmdir()
    for _ in range(2):
        with pytest.raises(ImageUnavailable, match="neither usr nor bin"):
            await use(site, str(folder))
        assert (site.told[1:], site.pulls.ready()) == ([ImageChanges(gone=[str(folder)])], [])


async def test_a_file_that_is_missing_waits_until_it_is_there(site: Site, open_folder: Path) -> None:
    for name in ("a.sif", "a.squashfs"):
        with pytest.raises(ImageUnavailable, match=f"there is no file .*/{name}: make it") as caught:
            await use(site, str(open_folder / name))
        assert caught.value.permanent
    for name in ("oci:/layout", "oci-archive:/a.tar", "docker-archive:/a.tar"):
        with pytest.raises(ImageUnavailable, match=f"the image {name} cannot be used now: there is no .*: make it"):
            await use(site, name)
    with pytest.raises(ImageNotFound, match="is a recipe"):
        await use(site, str(open_folder / "a.def"))
    assert len(site.failed()) == 5


async def test_the_default_image_is_looked_for_before_any_rollout_needs_it(
    site: Site, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.01)
    folder = open_folder / "root"

    async def send(message: ImageChanges) -> None:
        site.told.append(message)

    pulls = ImagePulls(site.images, send, parse_image(str(folder)))
    async with running(pulls.run()):
        await until(lambda: site.failed() != [])
        (folder / "usr").mkdir(parents=True)
        await until(lambda: site.ready() == [str(folder)])
    assert len(site.failed()) <= 2, "a sentence is said once"
    await pulls.close()


async def test_a_cache_that_cannot_be_used_ends_no_node_agent(
    site: Site, registry: Pusher, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.01)
    registry.image("pulls/cache", "v1")
    name, locks = f"docker://{registry.host}/pulls/cache:v1", open_folder / "image-cache/locks"
    locks.parent.mkdir()
    locks.touch()

    async def send(message: ImageChanges) -> None:
        site.told.append(message)

    pulls = ImagePulls(site.images, send, parse_image(name))
    async with running(pulls.run()):
        await until(lambda: site.failed() != [])
        locks.unlink()
        await until(lambda: set(site.ready()) == {name})
    assert "image-cache cannot be used: File exists" in site.failed()[0]
    await pulls.close()


async def test_a_recipe_as_default_image_is_told_to_the_server(
    site: Site, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_pulls, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(image_pulls, "DEFAULT_SAID_SECONDS", 0.05)

    async def send(message: ImageChanges) -> None:
        site.told.append(message)

    pulls = ImagePulls(site.images, send, parse_image(str(open_folder / "Dockerfile")))
    async with running(pulls.run()):
        await until(lambda: len(site.failed()) > 1)  # again and again: the server forgets it
    fault = site.told[0].failed[0]
    assert (fault.image, fault.default, fault.permanent) == (str(open_folder / "Dockerfile"), True, True)
    assert "is a recipe: build the image once with `rollyard images build`" in fault.message
    await pulls.close()


def push(front: Front, repository: str, layers: Sequence[bytes] = (BASE,)) -> None:
    Pusher(front.registry).image(repository, "v1", layers)
