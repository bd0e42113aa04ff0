"""Many builds at once, here and as a job array on a real Slurm."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from rollyard.cli.image_build import build_many
from rollyard.images.built_images import BuiltImages
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import parse_image
from tests.image_builds.conftest import Builder
from tests.support.cluster import Cluster, start_cluster, stop_cluster
from tests.support.image_files import place
from tests.support.until import until

pytestmark = pytest.mark.slow(40)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    cluster = start_cluster(nodes=2)
    yield cluster
    stop_cluster(cluster)


def contexts(builder: Builder, **dockerfiles: str) -> list[str]:
    for name, text in dockerfiles.items():
        (builder.folder / name).mkdir()
        (builder.folder / name / "Dockerfile").write_text(text)
    return [str(builder.folder / name) for name in dockerfiles]


def burst(builder: Builder, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rollyard.cli.main", "images", "build-many", *words]
    command += ["--allow-folder", str(builder.folder / "base")]
    env = {**os.environ, "ROLLYARD_CACHE": str(builder.cache), "PYTHONPATH": os.getcwd(), **variables}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=300)


def test_many_builds_give_an_archive_each_and_name_the_failed_ones(builder: Builder) -> None:
    good = contexts(builder, one="FROM ../base\nRUN echo 1 > /file\n", two="FROM ../base\nENV A=b\n")
    bad = contexts(builder, three="FROM ../base\nRUN echo words; false\n", four="FORM x\n")
    into = builder.folder / "built"
    done = burst(builder, *good, *bad, "--into", str(into), "--at-once", "2", "--runtime", "bubblewrap")
    assert done.returncode == 1
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == [
        f"oci-archive:{into}/{name}.tar" for name in ("one", "two")
    ]
    assert "three: Dockerfile:2: RUN echo words; false ended with exit status 1" in done.stderr
    assert "four: Dockerfile:1: there is no instruction 'FORM'" in done.stderr
    assert "2 of 4 images could not be built: four, three" in done.stderr
    assert sorted(path.name for path in into.iterdir()) == [".builds", "one.tar", "two.tar"]
    (log,) = into.glob(".builds/*/2/log")
    assert "words" in log.read_text()
    again = burst(builder, *good, "--into", str(into))
    assert (again.returncode, again.stderr) == (0, "")


async def test_many_builds_under_one_name_store_their_base_once(builder: Builder, open_folder: Path) -> None:
    folders = contexts(builder, **{f"env{i}": f"FROM ../base\nRUN echo {i} > /file\n" for i in range(3)})
    shared = open_folder / "shared"
    shared.mkdir()
    done = await asyncio.to_thread(burst, builder, *folders, "--tag", "envs", "--shared", str(shared))
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(line.split()[0] for line in done.stdout.splitlines()) == [f"built:envs:env{i}" for i in range(3)]
    assert sorted(os.listdir(shared)) == ["built"]
    found = BuiltImages(shared).images()
    base = max(one.shared_bytes for one in found)
    assert {one.shared_bytes for one in found} == {base}
    assert BuiltImages(shared).bytes() - base == sum(one.own_bytes for one in found) < base / 5
    cache = ImageCache(open_folder / "node", CacheSettings(shared_folder=str(shared)))
    for number in range(3):
        with await cache.get(parse_image(f"built:envs:env{number}")) as image:
            assert place(image, "file").read_text() == f"{number}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name the images: --tag NAME"),
        (["--tag", "a", "--into", "b"], "name the images: --tag NAME"),
        (["--into", "b", "--shared", "/"], "--shared needs --tag NAME"),
        (["--tag", "a", "--cluster", "slurm"], "--tag needs --shared FOLDER, which all nodes see"),
        (["--tag", "A"], "is not a name of a built image"),
    ],
)
def test_many_builds_say_what_to_write(words: list[str], said: str) -> None:
    done = CliRunner().invoke(build_many, ["context", *words])
    assert (done.exit_code, said in " ".join(done.output.split())) == (2, True), done.output


async def test_a_job_array_builds_on_nodes(builder: Builder, slurm: Cluster) -> None:
    folders = contexts(builder, **{f"env{i}": f"FROM ../base\nRUN echo {i} > /file\n" for i in range(4)})
    broken = contexts(builder, broken="FROM ../base\nRUN kill -9 -1; exit 3\n")
    into = builder.folder / "built"
    words = [
        "--into",
        str(into),
        "--cluster",
        "slurm",
        "--runtime",
        "bubblewrap",
        "--mem",
        "100M",
        "--time",
        "00:10:00",
    ]
    done = await asyncio.to_thread(burst, builder, *folders, *broken, *words, **slurm.env)
    assert done.returncode == 1, done.stderr
    assert len(done.stdout.splitlines()) == 4, done.stdout + done.stderr
    assert "broken: Dockerfile:2" in done.stderr
    assert sorted(path.name for path in into.glob("*.tar")) == [f"env{i}.tar" for i in range(4)]

    def alive() -> str:
        command = ["squeue", "-h", "-t", "PENDING,CONFIGURING,RUNNING"]
        env = {**os.environ, **slurm.env}
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    await until(lambda: not alive(), seen=alive)  # a job ends a moment after its result is there


async def test_an_interrupted_burst_cancels_its_jobs_and_a_lost_job_is_an_error(
    builder: Builder, slurm: Cluster
) -> None:
    folders = contexts(builder, slow="FROM ../base\nRUN sleep 600\n", lost="FROM ../base\nRUN sleep 601\n")
    into = builder.folder / "built"
    command = [
        sys.executable, "-m", "rollyard.cli.main", "images", "build-many", *folders, "--into", str(into), "--cluster", "slurm",
        "--runtime", "bubblewrap", "--mem", "100M", "--allow-folder", str(builder.folder / "base"),
    ]  # fmt: skip
    env = {**os.environ, **slurm.env, "ROLLYARD_CACHE": str(builder.cache), "PYTHONPATH": os.getcwd()}
    process = await asyncio.create_subprocess_exec(
        *command, env=env, stderr=asyncio.subprocess.PIPE,
        # a suite that a shell started in the background ignores SIGINT, and so would its children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip

    def queue() -> list[str]:
        done = subprocess.run(
            ["squeue", "-h", "-r", "-o", "%i %T"], env=env, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    def logs() -> str:
        return "".join(path.read_text() for path in into.glob(".builds/*/*/log"))

    try:
        async with asyncio.timeout(300):
            while logs().count("RUN sleep") < 2:
                await asyncio.sleep(0.1)
            (lost,) = [line.split()[0] for line in queue() if line.split()[0].endswith("_1")]
            subprocess.run(["scancel", lost], env=env, check=True)
            assert process.stderr is not None
            line = (await process.stderr.readline()).decode()
            assert line.startswith(f"lost: its job {lost} ended"), line
            process.send_signal(signal.SIGINT)
            await process.wait()
            while queue():
                await asyncio.sleep(0.1)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert Path(builder.cache / "image-builds").is_dir()
