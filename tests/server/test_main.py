from __future__ import annotations

import gc
from pathlib import Path

import pytest

from rollyard.core.aio import running
from rollyard.server.main import ServeOptions, _serve
from tests.support.until import until


async def test_full_collections_skip_all_objects_from_before_the_server_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    early: list[object] = []
    data = tmp_path / "data"
    async with running(_serve(ServeOptions(data, cluster="local"))):
        await until((data / "admin.kubeconfig").exists)
        late: list[object] = []
        read = {id(found) for found in gc.get_objects()}
    assert id(early) not in read
    assert id(late) in read
