"""The Apptainer that runs an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.engine.launch.container import container_program
from rollyard.engine.process.child_process import EngineFailed


def program(path: Path, text: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_an_apptainer_that_cannot_run_the_image_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollyard.engine.launch.container.node_cache", lambda: tmp_path / "cache")
    monkeypatch.delenv("ROLLYARD_APPTAINER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    with pytest.raises(EngineFailed, match="needs Apptainer"):
        container_program("vllm.sif")
    broken = program(tmp_path / "bin" / "apptainer", "exit 255")
    assert container_program("vllm.sif") == broken, "its error is the engine's"
    whole = program(tmp_path / "bin" / "singularity", 'case "$*" in "exec "*" vllm.sif true") exit 0;; esac; exit 1')
    assert container_program("vllm.sif") == whole
    monkeypatch.setenv("ROLLYARD_APPTAINER", "/no/such/program")
    assert container_program("vllm.sif") == whole
    program(Path(whole), "exit 1")
    assert container_program("vllm.sif") == "/no/such/program"
