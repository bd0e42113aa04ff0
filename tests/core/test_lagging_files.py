"""Files of a shared folder that lags: they are missing, empty or there in part at first, and removed files stay for a
while. Each reader waits, or reads again."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rollyard.core import lagging_files
from rollyard.core.errors import ImageBuildFailed
from rollyard.core.lagging_files import read_when_complete
from rollyard.doctor import compute_node
from rollyard.image_builds.build_task import BuildResult, BuildTask
from rollyard.image_builds.run_build import BuildOptions
from rollyard.server_process.job.job_folder import ServerJobFolder
from rollyard.server_process.job.server_supervisor import run

FIRST = [None, 0.0, 0.5]
"""Share of the file that can be seen at first; None: it is missing."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lagging_files, "LAG_POLL_SECONDS", 0.02)


@contextmanager
def late(file: Path, first: float | None) -> Iterator[None]:
    """Show the first part of a file, and the whole a moment later."""
    whole = file.read_bytes()
    file.unlink()
    if first is not None:
        file.write_bytes(whole[: int(first * len(whole))])
    timer = threading.Timer(0.2, lambda: file.write_bytes(whole))
    timer.start()
    try:
        yield
    finally:
        timer.join()


@contextmanager
def no_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(lagging_files, "LAG_SECONDS", 0.0)
        yield


@pytest.mark.parametrize("first", FIRST)
def test_a_file_is_read_once_it_is_complete(tmp_path: Path, first: float | None) -> None:
    file = tmp_path / "file"
    file.write_text('{"one": 1}')
    with late(file, first):
        assert read_when_complete(lambda: json.loads(file.read_text()), "it") == {"one": 1}


@pytest.mark.parametrize(("text", "error"), [(None, FileNotFoundError), ("{", ValueError)])
def test_a_file_that_never_comes_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, error: type[Exception]
) -> None:
    if text is not None:
        (tmp_path / "file").write_text(text)
    with no_patience(monkeypatch), pytest.raises(error):
        read_when_complete(lambda: json.loads((tmp_path / "file").read_text()), "it")


# a build of images as a job


def task(folder: Path) -> BuildTask:
    made = BuildTask(folder / "0")
    made.write(BuildOptions(context=folder, outputs=["oci:x"]))
    return made


@pytest.mark.parametrize("first", FIRST)
async def test_a_build_waits_for_its_task(tmp_path: Path, first: float | None) -> None:
    made = task(tmp_path)
    with late(made.folder / "task.json", first):
        result = await made.run(1, print)
    assert str(tmp_path) in result.error, "the build itself, of a folder without a Dockerfile"
    assert "is not a folder of a build" not in result.error


def test_a_folder_that_is_none_of_a_build_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with no_patience(monkeypatch), pytest.raises(ImageBuildFailed, match="is not a folder of a build"):
        BuildTask(tmp_path)._options()


@pytest.mark.parametrize("text", [b"", b'{"digest": "sha', b"[]", b"{}", b'{"strange": 1}'])
def test_a_part_of_a_result_is_no_result(tmp_path: Path, text: bytes) -> None:
    made = task(tmp_path)
    assert made.result() is None
    (made.folder / "result.json").write_bytes(text)
    assert made.result() is None
    made._keep(BuildResult(None, "no"))
    assert made.result() == BuildResult(None, "no")


# the doctor on a compute node


def test_the_probe_of_a_node_waits_for_its_request(tmp_path: Path) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps({"host": "127.0.0.1", "port": 1, "scratch": "/tmp"}))
    with late(request, 0.5):
        compute_node.report(tmp_path)
    assert json.loads((tmp_path / "report.json").read_text())["findings"]


@pytest.mark.parametrize("part", ["", '{"node": "n1", "fin'])
def test_a_part_of_a_report_is_no_report(tmp_path: Path, part: str) -> None:
    report = tmp_path / "report.json"
    report.write_text(part)
    assert compute_node._read(report) == []


# the server's own job


@pytest.mark.parametrize("name", ["name", "batch.sh"])
@pytest.mark.parametrize("first", [None, 0.0])
def test_the_servers_job_keeps_its_name_and_runs(tmp_path: Path, name: str, first: float | None) -> None:
    place = ServerJobFolder(tmp_path)
    place.write_script("#!/bin/bash\n")
    server = [sys.executable, "-c", f"open({str(tmp_path / 'ran')!r}, 'x')"]
    with late(place.folder / name, first):
        there = ServerJobFolder(tmp_path, in_job=True)
        assert there.name == place.name
        assert run(there, server) == 0
    assert (tmp_path / "ran").exists()


def test_a_server_that_is_no_longer_wanted_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = ServerJobFolder(tmp_path)
    with no_patience(monkeypatch):
        assert run(place, ["/no/such/program"]) == 0


def test_the_servers_job_invents_no_other_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ServerJobFolder(tmp_path)
    name = tmp_path / "server-job" / "name"
    with no_patience(monkeypatch):
        name.write_text("")
        with pytest.raises(OSError, match="it is empty"):
            ServerJobFolder(tmp_path, in_job=True)
        name.unlink()
        with pytest.raises(FileNotFoundError):
            ServerJobFolder(tmp_path, in_job=True)
    assert not name.exists()
