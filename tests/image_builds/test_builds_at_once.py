"""Builds of one machine at the same time."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from rollyard.image_builds import layer_store
from rollyard.image_builds.image_state import ImageState
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.outputs import parse_output, write_output
from rollyard.images.locks import try_lock


async def test_a_layout_keeps_the_images_of_all_builds(tmp_path: Path) -> None:
    store, tags = LayerStore(tmp_path / "builds"), {f"v{number}" for number in range(16)}

    def write(tag: str) -> None:
        state = ImageState("", labels={"tag": tag})
        asyncio.run(write_output(parse_output(f"oci:{tmp_path}/layout:{tag}"), state, store, -1, tmp_path))

    await asyncio.gather(*(asyncio.to_thread(write, tag) for tag in tags))
    listed = json.loads((tmp_path / "layout/index.json").read_bytes())["manifests"]
    assert {one["annotations"]["org.opencontainers.image.ref.name"] for one in listed} == tags
    assert {path.name for path in tmp_path.iterdir()} == {"builds", "layout"}


async def test_a_build_that_begins_during_a_trim_keeps_its_layers(tmp_path: Path) -> None:
    store = LayerStore(tmp_path)
    trimming = try_lock(tmp_path / "users", shared=False)
    assert trimming is not None
    begun = asyncio.create_task(store.work_folder().__aenter__())
    asyncio.get_running_loop().call_later(0.1, trimming.release)
    folder, _ = await begun
    (tmp_path / "layers/sha256-1").touch()
    assert (store.trim(-1), folder.is_dir()) == (0, True)
    assert (tmp_path / "layers/sha256-1").exists()


async def test_a_build_whose_new_lock_another_takes_for_a_leftover_chooses_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, names = LayerStore(tmp_path), iter(["first", "second"])
    monkeypatch.setattr(layer_store.secrets, "token_hex", lambda count: next(names, "third"))
    looked = try_lock(tmp_path / "work/first.lock", shared=False)
    async with store.work_folder() as (folder, _):
        assert folder.name == "second"
    assert looked is not None
    looked.release_and_delete()
    assert list((tmp_path / "work").iterdir()) == []
