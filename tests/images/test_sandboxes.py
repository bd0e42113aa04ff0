"""Sandboxes from pulled images: their files, variables and working folder, and how long the image is held."""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.images.cache import ImageCache
from rollyard.images.resolved_tags import ResolvedTags
from rollyard.kinds.values.image_reference import parse_image
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.warm_sandboxes import WarmSandboxes
from tests.support.image_registry import BASE, Pusher, gz, hard_link, tar
from tests.support.until import until

LIMITS = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20, processes=64)


@pytest.mark.parametrize("name", ["bubblewrap", "apptainer"])
async def test_a_sandbox_pins_its_pulled_image(registry: Pusher, open_folder: Path, name: str) -> None:
    try:
        runtime = find_runtime(cast(RuntimeName, name))
    except SandboxStartFailed:
        pytest.skip(f"{name} does not start here")
    config = {"Env": ["GREETING=hello"], "WorkingDir": "/app"}
    files = tar(("app", None), ("app/file", b"shipped\n"), ("app/alias", hard_link("app/file")))
    registry.image(f"sandboxes/{name}", "v1", [BASE, gz(files)], config)
    cache, own = open_folder / "cache", own_python(node_cache())
    cache.mkdir(mode=0o755)
    (cache / own.name).symlink_to(own)  # made once for all tests
    image = f"docker://{registry.host}/sandboxes/{name}:v1"
    async with SandboxFactory(runtime, cache=cache) as sandboxes:
        other = ImageCache(cache / "image-cache")
        async with await sandboxes.start(SandboxSpec(parse_image(image), LIMITS)) as sandbox:
            done = await sandbox.bash(
                'echo "$GREETING"; pwd; echo "$(<file)"; echo changed > file; echo x > /etc/new', 20
            )
            assert done.output == "hello\n/app\nshipped\n"
            assert [entry.pinned for entry in other.entries()] == [True]
            assert await other.room.prune(time.time() + 9) > 0  # the layers
            assert len(other.entries()) == 1
        assert [entry.pinned for entry in other.entries()] == [False]
        async with await sandboxes.start(SandboxSpec(parse_image(image), LIMITS)) as fresh:
            for link in ("file", "alias"):
                assert await fresh.read_file(f"/app/{link}", 100) == b"shipped\n"
        assert await other.room.prune(time.time() + 9) > 0
        assert other.entries() == []
        assert other.ready() == set()


async def test_a_sandbox_starts_from_the_image_that_its_rollout_pins(registry: Pusher, open_folder: Path) -> None:
    """Its name is not looked up again: the tag has moved, and the node knows nothing of it."""
    registry.image("pinned", "v1", [BASE, gz(tar(("mark", b"first\n")))], {})
    cache, own = open_folder / "cache", own_python(node_cache())
    cache.mkdir(mode=0o755)
    (cache / own.name).symlink_to(own)
    image = parse_image(f"docker://{registry.host}/pinned:v1")
    async with SandboxFactory(find_runtime("bubblewrap"), cache=cache) as sandboxes:
        images = sandboxes.images.cache
        with await images.get(image) as pinned:
            for path in (cache / "image-cache/names").iterdir():
                path.unlink()
            registry.image("pinned", "v1", [BASE, gz(tar(("mark", b"second\n")))], {})
            sandbox = await sandboxes.start(SandboxSpec(image, LIMITS), pinned=pinned)
        async with sandbox:
            assert await sandbox.read_file("/mark", 100) == b"first\n"
            assert [entry.pinned for entry in images.entries()] == [True], "the sandbox outlives the rollout's pin"
        assert [entry.pinned for entry in images.entries()] == [False]


async def test_a_tag_that_moved_gives_a_new_sandbox_in_place_of_a_warm_one(registry: Pusher, open_folder: Path) -> None:
    """No registry is asked at a claim: another process of the node has looked the tag up."""
    registry.image("warm", "v1", [BASE, gz(tar(("mark", b"first\n")))], {})
    cache, own = open_folder / "cache", own_python(node_cache())
    cache.mkdir(mode=0o755)
    (cache / own.name).symlink_to(own)
    image = f"docker://{registry.host}/warm:v1"
    async with SandboxFactory(find_runtime("bubblewrap"), cache=cache) as sandboxes:
        warm, names = WarmSandboxes(sandboxes, 2, 4), ResolvedTags(cache / "image-cache" / "names")
        expected = [warm.expect(SandboxSpec(parse_image(image), LIMITS)) for _ in range(2)]
        await until(lambda: warm.counts.ready == 2)
        async with await expected[0].claim() as sandbox:
            assert await sandbox.read_file("/mark", 100) == b"first\n"
        assert warm.counts.warm == 1
        (first,) = names.all()
        names.keep(first.image, registry.image("warm", "v1", [BASE, gz(tar(("mark", b"second\n")))], {}))
        async with await expected[1].claim() as sandbox:
            assert await sandbox.read_file("/mark", 100) == b"second\n"
        await warm.close()
