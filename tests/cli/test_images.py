"""`rollyard images` on real caches and shared folders, filled from a real registry."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rollyard.cli.main import cli
from rollyard.kinds.sandbox_template import SandboxImages
from rollyard.node.images.cache import ImageCache
from tests.support.image_registry import BASE, Pusher, gz, tar


@pytest.fixture
def node(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a node's cache, for commands of this test."""
    folder = open_folder / "node"
    folder.mkdir(mode=0o755)
    monkeypatch.setenv("ROLLYARD_CACHE", str(folder))
    return folder


async def test_images_of_the_cache_and_of_the_shared_folder(registry: Pusher, node: Path, open_folder: Path) -> None:
    digest = registry.image("cli/list", "v1", [BASE, gz(tar(("big", bytes(3 << 20))))])
    tier = open_folder / "tier"
    cache = ImageCache(node / "image-cache", SandboxImages(shared_folder=str(tier)))
    name = f"docker://{registry.host}/cli/list:v1"
    with await cache.get(name):
        lines = CliRunner().invoke(cli, ["images", "list"]).output.splitlines()
        assert lines[0].split() == ["NAME", "DIGEST", "SIZE", "IN", "USE", "LAST", "USED"]
        assert lines[1].split()[:4] == [name, digest[:19], "4M", "yes"]
    assert "no" in CliRunner().invoke(cli, ["images", "list"]).output.splitlines()[1].split()
    shared = CliRunner().invoke(cli, ["images", "list", "--shared", str(tier)]).output.splitlines()
    assert shared[1].split()[:3] == [name, digest[:19], "1M"]


def test_a_shared_folder_that_is_missing(node: Path) -> None:
    done = CliRunner().invoke(cli, ["images", "list", "--shared", str(node / "nowhere")])
    assert (done.exit_code, "there is no folder" in done.output) == (2, True)
