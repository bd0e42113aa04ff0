"""The same tools in every runtime, for many sandboxes at once; and what is said when there is no runtime."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.host.sandbox_account import sandbox_account
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.bubblewrap import Bubblewrap
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.root_mount import RootMount
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")
MOUNT = RootMount(node_cache() / "scratch-1")
LEAKING = (
    "PYTHONPATH", "LD_LIBRARY_PATH", "CONDA_PREFIX", "SLURM_JOB_ID", "HF_TOKEN", "https_proxy", "APPTAINERENV_LEAK",
    "SINGULARITYENV_LEAK", "ROLLYARD_TEST_LEAK",
)  # fmt: skip


async def test_every_tool(sandbox: Sandbox) -> None:
    await sandbox.prepare(["bash", "ipython"])
    shell = await sandbox.bash("echo hi; pwd; test -t 1 && echo terminal; cat", 10)
    assert (shell.output, shell.exit_code) == ("hi\n/workspace\nterminal\n", 0)
    assert (await sandbox.ipython("1+1", 10)).output == "2\n"
    assert (await sandbox.edit("create", "/workspace/a.txt", file_text="one\ntwo\n")).ok
    edited = await sandbox.edit("str_replace", "a.txt", old_str="two", new_str="three")
    assert edited.ok
    assert await sandbox.read_file("a.txt", 100) == b"one\nthree\n"
    stopped = await sandbox.bash("sleep 100", 0.2)
    assert (stopped.timed_out, stopped.restarted) == (True, False)


async def test_places_to_write(sandbox: Sandbox) -> None:
    result = await sandbox.bash("for d in /workspace ~ /tmp /var/tmp /dev/shm; do echo x > $d/x && cat $d/x; done", 10)
    assert result.output == "x\n" * 5
    assert (await sandbox.bash("cd; pwd; echo $HOME; id -u; cd -", 10)).output.startswith("/home/agent\n/home/agent\n")
    assert (await sandbox.bash("id -u", 10)).output != "0\n"


async def test_python3_is_on_the_path(sandbox: Sandbox) -> None:
    assert (await sandbox.bash("python3 -c 'print(6 * 7)'", 10)).output == "42\n"
    own = await sandbox.bash("/opt/rollyard/fallback/python3 -c 'import ssl, sqlite3, ctypes; print(6 * 7)'", 10)
    assert own.output == "42\n"


async def test_the_environment_is_the_tasks_own(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SandboxSpec(None, Limits(1, 1 << 30, 64 << 20), env={"TASK": "secret value", "PATH": "/usr/bin"})
    for name in LEAKING:
        monkeypatch.setenv(name, "leak")
    async with SandboxFactory(runtime) as sandboxes, await sandboxes.start(spec) as sandbox:
        seen = await sandbox.bash("env; cat /proc/1/environ /proc/1/cmdline 2>&1", 10)
    lines = seen.output.splitlines()
    assert "TASK=secret value" in lines
    assert "PATH=/usr/bin:/opt/rollyard/fallback" in lines
    assert "leak" not in seen.output
    assert not any(line.startswith(("APPTAINER", "SINGULARITY", "PROMPT_COMMAND", "PS1", "LD_")) for line in lines)


async def test_twenty_at_once(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    started = await asyncio.gather(*(sandboxes.start(spec) for _ in range(20)))
    try:
        results = await asyncio.gather(
            *(box.bash(f"echo {n} > /tmp/n; cat /tmp/n", 60) for n, box in enumerate(started))
        )
        assert [result.output for result in results] == [f"{n}\n" for n in range(20)]
        assert len({box.id for box in started}) == 20
    finally:
        await asyncio.gather(*(box.close() for box in started))
    assert not any(box.alive for box in started)


async def test_many_calls_in_a_row(sandbox: Sandbox) -> None:
    for n in range(200):
        assert (await sandbox.bash(f"echo {n}", 10)).output == f"{n}\n"
        assert (await sandbox.ipython(f"{n}", 10)).output == f"{n}\n"


async def test_the_cpus_decide_what_programs_count(sandboxes: SandboxFactory) -> None:
    async with await sandboxes.start(SandboxSpec(None, Limits(1, 1 << 30, 64 << 20))) as one:
        assert (await one.bash("nproc", 10)).output == "1\n"
    usable = len(os.sched_getaffinity(0))
    async with await sandboxes.start(SandboxSpec(None, Limits(4096, 1 << 30, 64 << 20))) as many:
        assert (await many.bash("nproc", 10)).output == f"{usable}\n"


async def test_a_name_without_a_runtime_says_what_one_can_do() -> None:
    if shutil.which("singularity"):
        pytest.skip("SingularityCE is installed here")
    with pytest.raises(SandboxStartFailed, match=r"none is installed.*install Apptainer"):
        find_runtime("singularity")


async def test_a_runtime_that_does_not_start_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLYARD_APPTAINER", "/usr/bin/false")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    cache = node_cache()
    if shutil.which("apptainer") or (cache / "apptainer").exists():
        assert find_runtime("apptainer") != Apptainer("/usr/bin/false", cache, MOUNT)
    else:
        with pytest.raises(SandboxStartFailed, match="apptainer: it failed"):
            find_runtime("apptainer")


async def test_a_launcher_that_fails_is_quoted(open_folder: Path) -> None:
    scratch = open_folder / "scratch"
    scratch.mkdir()
    for content, said in (
        ("echo broken launcher >&2", "broken launcher"),
        (f"exec cat {open_folder}/missing", "No such file"),
    ):
        launcher = open_folder / "launcher"
        launcher.write_text(f"#!/bin/sh\n{content}\n")
        launcher.chmod(0o755)
        async with SandboxFactory(Bubblewrap(str(launcher), RootMount(scratch))) as sandboxes:
            with pytest.raises(SandboxStartFailed, match=said):
                await sandboxes.start(SandboxSpec(None, Limits(1, 1 << 30, 1 << 20)))
    async with SandboxFactory(Bubblewrap(f"{open_folder}/bwrap", RootMount(scratch))) as sandboxes:
        with pytest.raises(SandboxStartFailed, match=f"{open_folder}/bwrap: No such file"):
            await sandboxes.start(SandboxSpec(None, Limits(1, 1 << 30, 1 << 20)))


@pytest.fixture
def setuid_like_apptainer(runtime: Runtime, open_folder: Path) -> Path:
    """An Apptainer that refuses a configuration of ours, as one installed with setuid does."""
    if not isinstance(runtime, Apptainer):
        pytest.skip("about Apptainer only")
    wrapper = open_folder / "apptainer"
    refuse = '[ "$2" = -c ] && { echo "no configuration of yours" >&2; exit 255; }'
    wrapper.write_text(f'#!/bin/sh\n{refuse}\nexec {runtime.program} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


async def test_an_installation_that_takes_no_configuration(
    setuid_like_apptainer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLYARD_APPTAINER", str(setuid_like_apptainer))
    runtime = find_runtime("apptainer")
    assert runtime == Apptainer(str(setuid_like_apptainer), node_cache(), MOUNT, own_config=False)
    spec = SandboxSpec(None, Limits(1, 1 << 30, 1 << 20))
    async with SandboxFactory(runtime) as there, await there.start(spec) as sandbox:
        assert (await sandbox.bash("echo works", 10)).output == "works\n"
        while "1.0M" not in (await sandbox.bash("df -h --output=size /workspace", 10)).output:
            pass


@pytest.mark.heavy
async def test_apptainer_can_be_installed_into_a_folder(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = Path(__file__).parents[2] / "deploy" / "apptainer" / "install.sh"
    prefix = open_folder / "apptainer"
    done = subprocess.run(["bash", script, prefix], capture_output=True, text=True, check=False)
    if "names no Debian mirror" in done.stderr or "is missing" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("apptainer version ")
    monkeypatch.setenv("ROLLYARD_APPTAINER", str(prefix / "bin" / "apptainer"))
    assert find_runtime("apptainer") == Apptainer(str(prefix / "bin" / "apptainer"), node_cache(), MOUNT)
    assert sandbox_account().uid != 0
