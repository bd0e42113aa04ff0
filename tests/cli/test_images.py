"""`rollyard images` on real caches and shared folders, filled from a real registry."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rollyard.api.app import build
from rollyard.cli.main import cli
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.batch import BatchRequest
from rollyard.kinds.rollout import RolloutRequest
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.trust.admin_kubeconfig import write_kubeconfig
from rollyard.trust.bearer_tokens import Role
from simulation.serving import serve_app
from tests.server.rollouts.test_service import Yard
from tests.server.rollouts.test_service import yard as yard
from tests.support.built_images import stored
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
    cache = ImageCache(node / "image-cache", CacheSettings(shared_folder=str(tier)))
    name = f"docker://{registry.host}/cli/list:v1"
    with await cache.get(parse_image(name)):
        lines = CliRunner().invoke(cli, ["images", "list"]).output.splitlines()
        assert lines[0].split() == ["NAME", "DIGEST", "SIZE", "SHARED", "IN", "USE", "LAST", "USED"]
        assert lines[1].split()[:5] == [name, digest[:19], "4M", "0M", "yes"]
    assert "no" in CliRunner().invoke(cli, ["images", "list"]).output.splitlines()[1].split()
    shared = CliRunner().invoke(cli, ["images", "list", "--shared", str(tier)]).output.splitlines()
    assert shared[1].split()[:4] == [name, digest[:19], "1M", "0M"]


def test_a_shared_folder_that_is_missing(node: Path) -> None:
    done = CliRunner().invoke(cli, ["images", "list", "--shared", str(node / "nowhere")])
    assert (done.exit_code, "does not exist" in done.output) == (2, True)


def test_folders_that_cannot_be_used(node: Path, open_folder: Path) -> None:
    for folder in (node, open_folder):
        (folder / ("image-cache" if folder == node else "images")).write_text("no folder")
    for said, *words in (
        ("Not a directory", "list"),
        ("File exists", "pull", "docker://localhost:1/a"),
        ("File exists", "list", "--shared", str(open_folder)),
    ):
        done = _run(*words)
        assert (done.exit_code, f"cannot be used: {said}" in done.stderr) == (1, True)


def _run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["images", *words])


def test_pulls_fill_the_cache_and_say_why_one_failed(registry: Pusher, node: Path, open_folder: Path) -> None:
    registry.image("cli/pull", "v1")
    good, bad = f"docker://{registry.host}/cli/pull:v1", f"docker://{registry.host}/cli/pull:v2"
    names = open_folder / "names"
    folder = open_folder / "root"
    folder.mkdir()
    names.write_text(f"{folder}\n{folder}/nowhere\n# images\n{good}  # twice\n\n{bad}\nlibrary://x\n{good}\n")
    done = _run("pull", "--file", str(names), "--at-once", "1")
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [f"{folder} is a folder, which sandboxes use where it is", f"{good} pulled"]
    assert f"the image {folder}/nowhere cannot be used now: there is no such folder" in done.stderr
    assert "has no cli/pull:v2: check the name" in done.stderr
    assert "'library://x' has a form that is not supported" in done.stderr
    assert "error: 3 of 5 images could not be had" in done.stderr
    done = _run("pull", good)
    assert (done.exit_code, done.stdout) == (0, f"{good} is there\n")
    assert good in _run("list").output
    assert _run("pull").exit_code == 2


def test_pulls_fill_the_shared_folder_and_leave_nothing_else(registry: Pusher, node: Path, open_folder: Path) -> None:
    names = [f"docker://{registry.host}/cli/shared:v{number}" for number in range(5)]
    base = gz(tar(("big", os.urandom(8 << 20))))  # the others come to it while it is packed
    for number, name in enumerate(names):
        registry.image("cli/shared", name[-2:], [base, gz(tar(("n", str(number).encode())))])
    tier = open_folder / "tier"
    tier.mkdir()
    done = _run("pull", "--shared", str(tier), "--at-once", "5", *names)
    assert (done.exit_code, sorted(done.stdout.splitlines())) == (0, [f"{name} pulled" for name in names])
    assert [path.suffix for path in (tier / "images").iterdir()] == [".json"] * 5
    assert len(list((tier / "layers").iterdir())) == 6
    assert list((node / "image-shares/entries").iterdir()) == []
    assert _run("pull", "--shared", str(tier), names[0]).stdout == f"{names[0]} is there\n"
    done = _run("pull", "--shared", str(tier), "oci:/nowhere")
    assert (done.exit_code, "only images of registries" in done.stderr) == (1, True)


async def test_prune_spares_what_is_used(registry: Pusher, node: Path) -> None:
    cache, names = ImageCache(node / "image-cache"), []
    for number in range(3):
        registry.image("cli/prune", f"v{number}", [BASE, gz(tar(("big", os.urandom(1 << 20))))])
        names.append(f"docker://{registry.host}/cli/prune:v{number}")
        await cache.prefetch(parse_image(names[-1]))
    with await cache.get(parse_image(names[0])):
        assert (await asyncio.to_thread(_run, "prune", "--older-than", "1h")).output == "freed 0M\n"
        done = await asyncio.to_thread(_run, "prune", "--max-size", "1M")
        assert {entry.name for entry in cache.entries()} == {names[0]}
        assert (done.exit_code, "are left, which are in use" in done.stderr) == (0, True)
    await asyncio.to_thread(_run, "prune", "--older-than", "0s")
    assert cache.entries() == []


def test_prune_of_the_shared_folder(registry: Pusher, node: Path, open_folder: Path) -> None:
    tier = open_folder / "tier"
    tier.mkdir()
    for number in range(3):
        registry.image("cli/prune-shared", f"v{number}", [gz(tar(("big", os.urandom(1 << 20))))])
        assert (
            _run("pull", "--shared", str(tier), f"docker://{registry.host}/cli/prune-shared:v{number}").exit_code == 0
        )
    files = sorted((tier / "images").iterdir())
    for number, file in enumerate(files[:2]):
        os.utime(file, (time.time() - 90_000 * (2 - number),) * 2)
    for layer in (tier / "layers").iterdir():
        os.utime(layer, (1000, 1000))
    assert _run("prune", "--shared", str(tier), "--older-than", "2d").output == "freed 1M\n"
    assert sorted((tier / "images").iterdir()) == files[1:]
    assert "are left, which are in use" in _run("prune", "--shared", str(tier), "--max-size", "0").stderr
    assert sorted((tier / "images").iterdir()) == files[2:]


@pytest.mark.parametrize(
    "words", [[], ["--older-than", "soon"], ["--max-size", "big"], ["--max-size", "1G", "--shared", "/no"]]
)
def test_prune_says_what_to_write(node: Path, words: list[str]) -> None:
    assert _run("prune", *words).exit_code == 2


async def test_single_images_are_deleted_by_name_or_digest(registry: Pusher, node: Path, open_folder: Path) -> None:
    tier, names, digests = open_folder / "tier", [], []
    cache = ImageCache(node / "image-cache", CacheSettings(shared_folder=str(tier)))
    for number in range(3):
        layer = gz(tar(("big", os.urandom(1 << 20))))
        digests.append(registry.image("cli/delete", f"v{number}", [BASE, layer]))
        names.append(f"docker://{registry.host}/cli/delete:v{number}")
        await cache.prefetch(parse_image(names[-1]))
    path = stored(node / "image-cache", "numbers", "v1", 1)
    with await cache.get(parse_image(names[0])):
        done = await asyncio.to_thread(_run, "delete", *names[:2], "built:numbers:v1", "docker://x/y", digests[2][:19])
    said = [line.partition(", freed")[0] for line in done.stdout.splitlines()]
    assert said == [f"{name} deleted" for name in (names[1], "built:numbers:v1", digests[2][:19])]
    assert done.stderr.splitlines() == [
        f"error: {names[0]} stays: it is in use",
        "error: there is no docker://x/y; `rollyard images list` shows names and digests",
    ]
    assert (done.exit_code, [one.name for one in cache.entries()], path.exists()) == (1, names[:1], False)
    assert (await asyncio.to_thread(_run, "delete", names[0])).exit_code == 0
    words = ["--shared", str(tier)]
    assert _run("delete", names[0], digests[1], *words).stdout.count(" deleted, freed 1M") == 2
    assert [line.split()[0] for line in _run("list", *words).stdout.splitlines()[1:]] == names[2:]


@pytest.mark.parametrize("where", ["node", "shared"])
def test_built_images_are_listed_and_pruned_by_their_last_use(node: Path, open_folder: Path, where: str) -> None:
    folder = node / "image-cache" if where == "node" else open_folder / "tier"
    words = [] if where == "node" else ["--shared", str(folder)]
    folder.mkdir()
    base = os.urandom(5 << 20)
    old, new = (stored(folder, "a/numbers", tag, hours, base) for tag, hours in (("old", 72), ("new", 2)))
    listed = [line.split() for line in _run("list", *words).stdout.splitlines()]
    names = [f"built:a/numbers:{tag}" for tag in ("old", "new")]
    assert [line[:4] for line in listed[1:]] == [[name, "built", "2M", "6M"] for name in names]
    assert _run("prune", "--older-than", "2d", *words).stdout == "freed 1M\n"
    assert (old.exists(), new.exists()) == (False, True)
    os.utime(new)
    assert "6M are left, which are in use" in _run("prune", "--max-size", "0", *words).stderr
    assert _run("prune", "--older-than", "0s", *words).stdout == "freed 6M\n"
    assert not new.parent.exists()


async def test_a_built_image_that_sandboxes_use_stays_and_its_use_is_noted(node: Path) -> None:
    cache = ImageCache(node / "image-cache")
    path = stored(node / "image-cache", "numbers", "v1", 72)
    with await cache.get(parse_image("built:numbers:v1")):
        path.with_suffix(".used").unlink()
        held = cache.here(parse_image("built:numbers:v1"))
        assert held is not None
        assert time.time() - path.with_suffix(".used").stat().st_mtime < 60
        held.release()
        lines = [line.split() for line in _run("list").stdout.splitlines()[1:]]
        assert [(line[0], line[4]) for line in lines] == [("built:numbers:v1", "yes")] * 2
        await asyncio.to_thread(_run, "prune", "--older-than", "0s", "--max-size", "0")
        assert path.exists()
    await asyncio.to_thread(_run, "prune", "--older-than", "0s")
    assert not path.exists()


async def test_a_built_image_that_rollouts_or_pools_need_stays(yard: Yard, node: Path, tmp_path: Path) -> None:
    await yard.declare(sandbox=yard.pool.spec.sandbox.model_copy(update={"default_image": "built:numbers:default"}))
    request = RolloutRequest(
        id="r", pool="swe", task=Task.model_validate({"kind": "math", "image": "built:numbers:asked"})
    )
    await yard.rollouts.submit("default", [request])
    tasks = [json.dumps({"kind": "math", "image": f"built:numbers:batch{n}"}) for n in range(100)]
    batch = BatchRequest(id="b", pool="swe", n=2, tasks=[Task.model_validate_json(task) for task in tasks])
    await yard.parts.batches.create("default", batch, tasks)
    paths = {tag: stored(node / "image-cache", "numbers", tag, 72) for tag in ("default", "asked", "batch99", "other")}
    words = ("prune", "--max-size", "0", "--kubeconfig")
    done = await asyncio.to_thread(_run, *words, str(tmp_path / "nowhere"))
    assert done.stderr.count("stays: the server must say that no rollout needs it (no kubeconfig") == 4
    assert all(path.exists() for path in paths.values())
    async with serve_app(build(yard.parts.services())) as url:
        write_kubeconfig(tmp_path / "admin", url, "", yard.parts.signer.issue(Role.ADMIN, "admin"))
        asked = await asyncio.to_thread(_run, "delete", "built:numbers:asked", *words[3:], str(tmp_path / "admin"))
        done = await asyncio.to_thread(_run, *words, str(tmp_path / "admin"))
    assert asked.stderr == "error: built:numbers:asked stays: rollouts or pools need it\n"
    assert {tag for tag, path in paths.items() if path.exists()} == {"default", "asked", "batch99"}
    assert done.stderr.splitlines()[:3] == [
        f"built:numbers:{tag} stays: rollouts or pools need it" for tag in ("asked", "batch99", "default")
    ]
