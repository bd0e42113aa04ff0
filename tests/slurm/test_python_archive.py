"""Our Python, packed once and unpacked once a node."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rollyard.kinds.allocation import AllocationTemplate
from rollyard.slurm.batch_script import batch_script
from rollyard.slurm.python_archive import UNPACK, PythonArchive

pytestmark = pytest.mark.slow(50)

ALWAYS = AllocationTemplate(unpack_python="Always")
PRINT = "import json, click, rollyard; print(json.dumps([m.__file__ for m in (click, rollyard)]))"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runtime = PythonArchive(tmp_path_factory.mktemp("runtime"))
    runtime.pack(ALWAYS)
    found = runtime.archive(ALWAYS)
    assert found is not None
    return found


def job(archive: Path, scratch: Path) -> subprocess.CompletedProcess[str]:
    """Runs what a batch script makes of it."""
    script = batch_script(
        ALWAYS, name="n", comment="c", log_path="/d/log", directory="/d", command=[sys.executable, "-c", PRINT],
        unpack=["bash", str(UNPACK), str(archive), str(scratch)],
    )  # fmt: skip
    return subprocess.run(
        ["bash", "-c", script.text], capture_output=True, text=True, timeout=120, check=False, cwd=scratch
    )


def test_jobs_that_start_together_unpack_once_and_import_from_there(archive: Path, tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        ended = list(pool.map(lambda _: job(archive, tmp_path), range(3)))
    folder = tmp_path / f"rollyard-{os.getuid()}-python" / archive.stem
    for done in ended:
        assert done.returncode == 0, done.stderr
        assert all(Path(file).is_relative_to(folder) for file in json.loads(done.stdout)), done.stdout
    made = folder.stat().st_ino
    job(archive, tmp_path)
    assert folder.stat().st_ino == made
    assert folder.stat().st_mode & 0o077 == 0

    (folder / "pydantic" / "networks.py").unlink()  # as a cleaner of old files does
    job(archive, tmp_path)
    assert (folder / "pydantic" / "networks.py").exists(), "it is unpacked again"


def test_what_a_killed_job_left_half_done_is_done_again(archive: Path, tmp_path: Path) -> None:
    folder = tmp_path / f"rollyard-{os.getuid()}-python" / archive.stem
    folder.mkdir(parents=True)
    (folder / "pydantic").mkdir()
    done = job(archive, tmp_path)
    assert all(Path(file).is_relative_to(folder) for file in json.loads(done.stdout)), done.stderr


@pytest.mark.parametrize("trouble", ["no archive", "scratch is a file"])
def test_where_it_cannot_be_the_job_says_so_and_imports_as_before(archive: Path, tmp_path: Path, trouble: str) -> None:
    if trouble == "no archive":
        archive = archive.with_name("gone.tar")
    else:
        (tmp_path / f"rollyard-{os.getuid()}-python").write_text("")
    done = job(archive, tmp_path)
    assert done.returncode == 0
    assert "our Python is not unpacked on this node" in done.stderr
    assert not any(str(tmp_path) in file for file in json.loads(done.stdout))


def test_an_archive_that_is_not_complete_yet_is_not_used_and_later_it_is(archive: Path, tmp_path: Path) -> None:
    """A shared folder that lags shows a part first. GNU tar calls a part whole that ends between two files."""
    late = tmp_path / archive.name
    whole = archive.read_bytes()
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        late.write_bytes(whole[: members[len(members) // 2].offset])
    done = job(late, tmp_path)
    assert done.returncode == 0
    assert "our Python is not unpacked on this node" in done.stderr
    assert not any(str(tmp_path) in file for file in json.loads(done.stdout))
    late.write_bytes(whole)
    done = job(late, tmp_path)
    assert all(str(tmp_path) in file for file in json.loads(done.stdout)), done.stderr


def test_it_is_packed_again_only_when_it_is_another(archive: Path) -> None:
    before = archive.stat()
    again = PythonArchive(archive.parent)
    again.pack(ALWAYS)
    assert again.archive(ALWAYS) == archive
    assert (archive.stat().st_ino, archive.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert again.archive(AllocationTemplate(unpack_python="Never")) is None
