"""All processes of an engine end with it, also those in sessions of their own, and what they held is free again."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rollyard.core.process_tree import boot_id
from rollyard.engine.process import child_process, owned_engine, shared_memory
from rollyard.engine.process.child_process import EngineCommand, EngineFailed
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.process.owned_engine import EngineRemains, start_engine
from rollyard.engine.process.scratch_folder import MARK, scratch_folder
from rollyard.engine.process.shared_memory import RECORD, EngineFiles, MemoryFile, remove_unused
from tests.support.leaky_engine import ROOT, Leak, new_leak
from tests.support.until import until
from tests.support.yard import alive, kill

LAST_PROCESS = ["sleep", "1000"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_process, "CLEAN_UP_SECONDS", 0.3)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def leak(tmp_path: Path) -> Iterator[Leak]:
    made = new_leak(tmp_path / "leak")
    yield made
    made.file.unlink(missing_ok=True)
    assert made.alive == []


def leaky(leak: Leak, *options: str, then: str = "exec sleep 1000") -> EngineCommand:
    return EngineCommand(["bash", "-c", f"{shlex.join(leak.command(*options))} & {then}"])


async def held(leak: Leak) -> int:
    """Return the child's pid once it holds everything."""
    return int((await until(lambda: leak.alive))[0])


async def recorded(folder: Path, leak: Leak) -> None:
    await until(lambda: (folder / RECORD).exists() and leak.name in (folder / RECORD).read_text())


@pytest.mark.parametrize("option", [[], ["--orphan"]])
@pytest.mark.parametrize("how", ["killed", "ended"])
async def test_a_child_with_a_session_of_its_own_gives_port_and_shared_memory_back(
    leak: Leak, tmp_path: Path, how: str, option: list[str]
) -> None:
    engine = await start_engine(leaky(leak, *option), tmp_path)
    await held(leak)
    if how == "killed":
        kill(engine.pid)
        assert await engine.wait() == -signal.SIGKILL
    await engine.end()
    assert leak.held() == ""
    assert engine.returncode == (-signal.SIGKILL if how == "killed" else -signal.SIGTERM)


async def test_the_next_engine_finds_nothing_of_the_last_one(
    leak: Leak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine cannot start beside a child of the one before: the port and the file are taken."""

    async def prepare() -> EngineCommand:
        return leaky(leak)

    supervisor = Supervisor(prepare, tmp_path / "e")
    task = asyncio.create_task(supervisor.run())
    try:
        for life in (1, 2, 3):
            await until(lambda life=life: len(leak.children) == life)  # type: ignore[misc]
            assert len(leak.alive) == 1
            supervisor.restart(prepare)
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert leak.held() == ""


async def test_other_children_of_the_model_server_live_on(leak: Leak, tmp_path: Path) -> None:
    other = await asyncio.create_subprocess_exec(*LAST_PROCESS, start_new_session=True)
    engine = await start_engine(leaky(leak), tmp_path)
    await held(leak)
    await engine.end()
    assert other.returncode is None
    other.kill()
    await other.wait()


MODEL_SERVER = """
import asyncio, sys
from pathlib import Path
from rollyard.core.process_tree import boot_id
from rollyard.engine.process import child_process
from rollyard.engine.process.child_process import EngineCommand
from rollyard.engine.process.owned_engine import start_engine
from rollyard.engine.process.scratch_folder import scratch_folder
async def main():
    child_process.CLEAN_UP_SECONDS = 0.3
    with scratch_folder(Path(sys.argv[1])) as folder:
        engine = await start_engine(EngineCommand(sys.argv[2:]), folder)
        print(folder, engine._owner.pid, engine.pid, flush=True)
        await engine.wait()
asyncio.run(main())
"""


def model_server(base: Path, command: EngineCommand) -> tuple[subprocess.Popen[str], Path, int, int]:
    server = subprocess.Popen(
        [sys.executable, "-c", MODEL_SERVER, str(base), *command.argv], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    folder, owner, engine = server.stdout.readline().split()
    return server, Path(folder), int(owner), int(engine)


async def test_a_killed_model_server_takes_its_engines_whole_tree_with_it(leak: Leak, tmp_path: Path) -> None:
    server, _, owner, engine = model_server(tmp_path, leaky(leak))
    await held(leak)
    server.kill()
    server.communicate(timeout=60)
    await until(lambda: not alive(owner))
    assert not alive(engine)
    assert leak.held() == ""


async def test_the_next_model_server_kills_what_a_killed_model_server_and_owner_left(
    leak: Leak, tmp_path: Path
) -> None:
    server, folder, owner, engine = model_server(tmp_path, leaky(leak, "--orphan"))
    child = await held(leak)
    other = subprocess.Popen(LAST_PROCESS, env={**os.environ, MARK: f"{folder}-other"})
    await recorded(folder, leak)
    for pid in (server.pid, owner):
        kill(pid)
    assert server.stdout is not None
    server.stdout.close()  # the child has it too
    server.wait(60)
    await until(lambda: not alive(engine))
    assert alive(child)  # it has a session of its own, and its parent is not the owner
    with scratch_folder(tmp_path):
        assert leak.held() == ""
        assert not folder.exists()
    assert other.poll() is None
    other.kill()
    other.wait()


async def test_the_next_model_server_removes_the_shared_memory_of_processes_that_were_all_killed(
    leak: Leak, tmp_path: Path
) -> None:
    server, folder, owner, engine = model_server(tmp_path, leaky(leak))
    child = await held(leak)
    await recorded(folder, leak)
    for pid in (server.pid, owner, engine, child):  # as a cgroup that ran out of memory, or Slurm after KillWait
        kill(pid)
    server.communicate(timeout=60)
    await until(lambda: not alive(child))
    assert leak.file.exists()
    with leak.file.open("rb"), scratch_folder(tmp_path):
        assert leak.file.exists()
        assert {path.name for path in folder.iterdir()} == {"lock", RECORD}
    with scratch_folder(tmp_path):
        assert not leak.file.exists()
        assert not folder.exists()


async def test_a_file_that_another_program_uses_or_may_have_made_is_kept(
    leak: Leak, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(leaky(leak), tmp_path)
    await held(leak)
    await recorded(tmp_path, leak)
    with leak.file.open("rb"):
        await engine.end()
        assert leak.file.exists()
    assert f"still in /dev/shm, because another program may need them: {leak.name}" in caplog.text
    with scratch_folder(tmp_path):  # a later start, when nobody uses the file any more
        pass
    leak.file.unlink()


@pytest.mark.parametrize("fault", ["name", "mode", "inode", "before"])
def test_shared_memory_is_removed_only_if_it_is_certain_to_be_the_engines(fault: str) -> None:
    path = shared_memory.FOLDER / f"{'weights' if fault == 'name' else 'psm'}_ry{os.getpid()}"
    files = EngineFiles(None)
    path.write_bytes(b"x")
    path.chmod(0o644 if fault == "mode" else 0o600)
    try:
        if fault == "before":
            files = EngineFiles(None)
        with path.open("rb"):
            files.look(lambda: [os.getpid()])
        assert (MemoryFile(path.name, path.stat().st_ino) in files.found) == (fault != "before")
        if fault == "inode":
            path.with_suffix(".new").write_bytes(b"x")
            path.with_suffix(".new").rename(path)
        assert path.name not in files.remove()[0]
        assert path.exists()
    finally:
        path.unlink()


def test_a_private_unused_file_of_the_engine_is_removed() -> None:
    path = shared_memory.FOLDER / f"psm_ry{os.getpid()}"
    files = EngineFiles(None)
    path.touch(mode=0o600)
    with path.open("rb"):
        files.look(lambda: [os.getpid()])
        assert files.remove() == ([], [path.name])
    assert files.remove() == ([path.name], [])
    assert not path.exists()
    assert remove_unused(files.found) == ([], [])


async def test_a_killed_owner_is_told_and_nothing_is_started_in_its_place(leak: Leak, tmp_path: Path) -> None:
    async def prepare() -> EngineCommand:
        return leaky(leak)

    supervisor = Supervisor(prepare, tmp_path / "e")
    task = asyncio.create_task(supervisor.run())
    child = await held(leak)
    status = Path(f"/proc/{child}/stat")
    owner = child
    while b"engine_owner" not in Path(f"/proc/{owner}/cmdline").read_bytes():
        owner = int(Path(f"/proc/{owner}/stat").read_text().rpartition(")")[2].split()[1])
    supervisor.restart(prepare, or_else=prepare)
    assert status.exists()
    kill(owner)
    try:
        with pytest.raises(EngineRemains, match="some of them may still run"):
            await asyncio.wait_for(task, 60)
    finally:
        kill(child)
        await until(lambda: not alive(child))


async def test_processes_that_do_not_end_are_named(leak: Leak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owned_engine, "KILL_SECONDS", -1.0)
    engine = await start_engine(leaky(leak), tmp_path)
    child = await held(leak)
    # one of the two may have ended at the look
    with pytest.raises(EngineRemains, match=r"have not ended .* after KILL: .*python.* \(pid \d+\)"):
        await engine.end()
    await until(lambda: not alive(child))


async def test_a_port_that_another_user_holds_is_told_at_once(leak: Leak, tmp_path: Path) -> None:
    async def prepare() -> EngineCommand:
        return EngineCommand(leak.command())

    with socket.create_server(("127.0.0.1", leak.port)), pytest.raises(EngineFailed, match="Address already in use"):
        await asyncio.wait_for(Supervisor(prepare, tmp_path / "e").run(), 60)


async def test_a_name_in_shared_memory_that_another_user_took_is_told_at_once_and_stays(
    leak: Leak, tmp_path: Path
) -> None:
    async def prepare() -> EngineCommand:
        return EngineCommand(leak.command())

    leak.file.touch(mode=0o600)
    os.chown(leak.file, 65534, 65534)
    with pytest.raises(EngineFailed, match="FileExistsError"):
        await asyncio.wait_for(Supervisor(prepare, tmp_path / "e").run(), 60)
    assert leak.file.stat().st_uid == 65534


def test_a_damaged_record_is_no_obstacle(tmp_path: Path) -> None:
    for text in ("", "{", "[]", '{"boot": 1}', json.dumps({"boot": boot_id(), "files": [["psm_x"]]})):
        (tmp_path / RECORD).write_text(text)
        assert shared_memory.remove_recorded(tmp_path) == ([], [])
