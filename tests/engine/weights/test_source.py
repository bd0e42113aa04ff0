"""The checksum of a folder names the content of its weights."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid
from rollyard.engine.weights.source import folder_checksum


def model(folder: Path, **files: bytes) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name.replace("_", ".")).write_bytes(content)
    return folder


def test_the_same_weights_have_the_same_version_wherever_they_lie(tmp_path: Path) -> None:
    first = folder_checksum(model(tmp_path / "a", a_safetensors=b"1", b_safetensors=b"2", config_json=b"{}"))
    assert re.fullmatch("[0-9a-f]{12}", first)
    assert folder_checksum(model(tmp_path / "b", b_safetensors=b"2", a_safetensors=b"1")) == first


def test_other_weights_have_another_version(tmp_path: Path) -> None:
    versions = {
        folder_checksum(model(tmp_path / "a", a_safetensors=b"12", b_safetensors=b"3")),
        folder_checksum(model(tmp_path / "b", a_safetensors=b"1", b_safetensors=b"23")),
        folder_checksum(model(tmp_path / "c", a_safetensors=b"12", c_safetensors=b"3")),
        folder_checksum(model(tmp_path / "d", a_safetensors=b"13", b_safetensors=b"3")),
    }
    assert len(versions) == 4


def test_a_folder_without_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=f"ModelMissing: {tmp_path / 'no'} is not a folder"):
        folder_checksum(tmp_path / "no")
    with pytest.raises(Invalid, match="contains no weights"):
        folder_checksum(model(tmp_path / "a", config_json=b"{}"))


def test_reading_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="Stopped"):
        folder_checksum(model(tmp_path / "a", a_safetensors=b"1"), lambda: True)
