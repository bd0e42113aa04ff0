"""The checksum of a folder names the content of its weights."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid
from rollyard.engine.weights.folder_reading import read_weights
from rollyard.engine.weights.source import folder_checksum
from rollyard.wire.engine import WeightsTarget
from tests.support.until import until


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


def test_a_large_file_with_more_holes_than_data_is_refused_without_reading_it(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", a_bin=b"written")
    os.truncate(folder / "a.bin", 200 << 30)
    with pytest.raises(Invalid, match=r"a\.bin was not copied completely: only [0-9]+ of its 214748364800 bytes"):
        folder_checksum(folder)


def test_the_process_that_reads_a_folder_starts_without_pydantic() -> None:
    """Its start would take four times the CPU time, at each start of an engine and each change of weights."""
    code = "import rollyard.engine.weights.read_main, sys; sys.exit('pydantic' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


async def unread(folder: Path) -> str:
    with pytest.raises(Invalid) as refused:
        await read_weights(folder, None, needs_info=False)
    return str(refused.value)


async def test_weights_that_are_no_regular_file_are_refused_and_not_waited_for(tmp_path: Path) -> None:
    fifo, device = model(tmp_path / "fifo"), model(tmp_path / "device")
    os.mkfifo(fifo / "model.safetensors")
    (device / "model.safetensors").symlink_to("/dev/zero")
    for folder in (fifo, device):
        for config in (None, "{}"):
            if config is not None:
                (folder / "config.json").write_text(config)
            assert "model.safetensors cannot be read: it is a fifo or a device" in await unread(folder)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ("[" * 100_000, "config.json is not valid JSON: it is nested too deeply"),
        ('{"a":' * 100_000, "config.json is not valid JSON: it is nested too deeply"),
        ("1" * 10_000, "config.json is not valid JSON"),
        ("{", "config.json is not valid JSON"),
        ("\xff", "config.json is not valid JSON"),
        ("[]", "config.json must contain a JSON object"),
    ],
)
async def test_a_config_that_breaks_a_parser_is_refused_with_words(tmp_path: Path, config: str, words: str) -> None:
    folder = model(tmp_path / "a", a_safetensors=b"1")
    (folder / "config.json").write_bytes(config.encode("latin1"))
    assert words in await unread(folder)


async def test_a_header_that_claims_more_than_a_header_may_have_is_refused_without_reading_it(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", config_json=b"{}")
    (folder / "model.safetensors").write_bytes((150 << 30).to_bytes(8, "little"))
    os.truncate(folder / "model.safetensors", 200 << 30)
    assert "model.safetensors is not a safetensors file" in await unread(folder)


async def test_an_index_that_names_files_elsewhere_is_refused(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", config_json=b"{}", a_safetensors=b"1")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../b.safetensors"}}))
    assert "which is in another folder" in await unread(folder)


@pytest.mark.parametrize("path", ["/etc", "/dev", "/nowhere", "/tmp/a\0b"])
async def test_a_path_that_is_no_model_folder_is_refused(path: str) -> None:
    target = WeightsTarget(version="typo", path=path)
    with pytest.raises(Invalid, match="ModelMissing: "):
        await read_weights(Path("/nowhere"), target, needs_info=True)


async def test_the_process_that_reads_a_folder_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    folder = model(tmp_path / "a", config_json=b"{}")
    for name in range(40):  # each below the size from which holes are looked for
        (folder / f"{name}.bin").touch()
        os.truncate(folder / f"{name}.bin", (1 << 30) - 1)
    reading = asyncio.create_task(read_weights(folder, None, needs_info=False))
    found = await until(lambda: readers(folder), 30)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    assert found
    assert not readers(folder)


def readers(folder: Path) -> list[int]:
    """Processes that have one of the folder's files open."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(os.readlink(file).startswith(str(folder)) for file in (process / "fd").iterdir()):
                found.append(int(process.name))
    return found
