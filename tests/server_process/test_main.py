from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.core.aio import running
from rollyard.server_process.main import ServeOptions, _serve
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


def test_a_data_folder_whose_path_is_not_utf_8_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    command = [sys.executable, "-m", "rollyard.cli.main", "serve", "--data", folder, "--cluster", "local"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "is not valid UTF-8" in done.stderr
    assert "choose a folder" in done.stderr
    assert not folder.exists()
