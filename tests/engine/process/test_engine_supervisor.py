"""The supervisor with real engine processes: brought up, brought back, given up, ended."""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import os
import re
import signal
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import pytest

from rollyard.core.aio import running
from rollyard.core.backoff import Backoff
from rollyard.engine.launch.command_line import engine_command
from rollyard.engine.process import child_process
from rollyard.engine.process import engine_supervisor as module
from rollyard.engine.process.child_process import EngineCommand
from rollyard.engine.process.engine_supervisor import EngineFailed, Prepare, Supervisor
from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePoolSpec
from tests.support.standstill import freeze
from tests.support.until import until

pytestmark = pytest.mark.slow(25)

WAIT_SECONDS = 60.0
BRIEF = """
import socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.bind(sys.argv[1])
    server.listen()
    for _ in range(3):  # /health, /v1/models, /metrics; then /health again
        connection, _ = server.accept()
        connection.recv(4096)
        connection.sendall(b"HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n")
        connection.close()
    server.accept()
raise ValueError("no")
"""
"""An engine that is ready once, and dies of the next probe."""


def always(command: EngineCommand) -> Prepare:
    async def prepare() -> EngineCommand:
        return command

    return prepare


def embedded(model: Path, uds: Path) -> Prepare:
    spec = {"model": {"path": str(model)}, "engine": {"embedded": {}}, "replicas": 1}
    return always(engine_command(InferencePoolSpec.model_validate(spec), uds))


def program(text: str) -> Prepare:
    return always(EngineCommand(["bash", "-c", text]))


def processes(word: str) -> list[int]:
    """Living processes with this word in their command line; a zombie has none."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


async def test_an_engine_gets_ready_comes_back_when_killed_and_ends_with_its_supervisor(
    model_dir: Path, tmp_path: Path
) -> None:
    uds = tmp_path / "e"
    supervisor = Supervisor(embedded(model_dir, uds), uds)
    async with running(supervisor.run()):
        await until(lambda: supervisor.health.ready)
        assert uds.stat().st_mode & 0o077 == 0
        length = supervisor.health.context
        assert (length or 0) > 0, "the length of the context, which the engine reports"
        (first,) = processes(str(uds))
        os.kill(first, signal.SIGKILL)
        await until(lambda: not supervisor.health.ready)
        await until(lambda: supervisor.health.ready)
        assert supervisor.health.context == length
        assert processes(str(uds)) not in ([], [first])
    assert processes(str(uds)) == []


def missing() -> Prepare:
    async def prepare() -> EngineCommand:
        raise EngineFailed(Reason("EngineMissing", "it was asked and did not answer"))

    return prepare


@pytest.mark.parametrize("other", [missing(), always(EngineCommand(["/no/python"])), program("echo no; exit 1")])
async def test_an_engine_that_cannot_take_anothers_place_gives_it_back(
    model_dir: Path, tmp_path: Path, other: Prepare
) -> None:
    uds = tmp_path / "e"
    supervisor = Supervisor(embedded(model_dir, uds), uds)
    async with running(supervisor.run()):
        await until(lambda: supervisor.health.ready)
        supervisor.restart(other, or_else=embedded(model_dir, uds))
        await until(lambda: bool(supervisor.launch_failure))
        await until(lambda: supervisor.health.ready)
    assert supervisor.life == 3


async def test_an_engine_that_is_asked_for_between_two_lives_of_another_is_started_once(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Backoff", lambda first, cap: Backoff(1e6, 1e6))
    uds = tmp_path / "e"
    supervisor = Supervisor(program("exit 1"), uds)
    async with running(supervisor.run()):
        await until(lambda: str(supervisor.health.reason).startswith("EngineDied: exit code 1"))
        supervisor.restart(embedded(model_dir, uds))
        await until(lambda: supervisor.health.ready)
        assert supervisor.life == 2


@pytest.mark.parametrize("turns", range(4))
async def test_a_supervisor_ends_that_is_cancelled_just_after_another_engine_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, turns: int
) -> None:
    monkeypatch.setattr(module, "Backoff", lambda first, cap: Backoff(1e6, 1e6))
    supervisor = Supervisor(program("exit 1"), tmp_path / "e")
    task = asyncio.create_task(supervisor.run())
    await until(lambda: str(supervisor.health.reason).startswith("EngineDied: exit code 1"))
    supervisor.restart(program("exec sleep 300"))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task}, timeout=WAIT_SECONDS)
    assert task.cancelled()


async def test_an_engine_that_hangs_is_replaced(
    model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.05)
    monkeypatch.setattr(module, "PROBE_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(child_process, "STOP_SECONDS", 0.2)  # TERM does not reach what is stopped
    uds = tmp_path / "e"
    supervisor = Supervisor(embedded(model_dir, uds), uds)
    async with running(supervisor.run()):
        await until(lambda: supervisor.health.ready)
        (first,) = processes(str(uds))
        freeze(first)
        await until(lambda: str(supervisor.health.reason).startswith("Unhealthy"))
        await until(lambda: "no longer answers" in str(supervisor.health.reason))
        await until(lambda: supervisor.health.ready)
        assert processes(str(uds)) not in ([], [first])


async def test_a_model_that_cannot_be_served_is_given_up_with_the_engines_own_words(
    model_dir: Path, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    uds = tmp_path / "e"
    with pytest.raises(EngineFailed, match=r"exit code 2: use engine\.vllm: the embedded engine serves only Qwen3"):
        await asyncio.wait_for(Supervisor(embedded(model, uds), uds).run(), WAIT_SECONDS)


async def test_a_failed_start_is_told_by_the_reason_that_was_stated_long_before_the_exit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RECENT_SECONDS", 0.0)
    engine = "echo 'ValueError: No available memory for the cache blocks.'; echo 'RuntimeError: see root cause'; exit 1"
    with pytest.raises(EngineFailed, match=r"^OutOfMemory: ValueError: No available memory"):
        await asyncio.wait_for(Supervisor(program(engine), tmp_path / "e").run(), WAIT_SECONDS)


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("echo loading; echo 'error: no memory' >&2; echo bye; exit 7", "EngineFailed: exit code 7: no memory"),
        (  # vLLM may end with code 0 after an error of one of its processes
            "echo 'RuntimeError: Unsupported CPU attention configuration: head_dim=16'; "
            "echo 'resource_tracker.py:254: UserWarning: There appear to be 1 leaked objects'; exit 0",
            "EngineFailed: exit code 0: RuntimeError: Unsupported CPU attention configuration: head_dim=16",
        ),
        ("kill -KILL $$", "EngineFailed: killed by signal 9 (KILL); it wrote nothing in its last 10 s"),
        (
            "echo '{\"id\": 7}'; kill -KILL $$",
            'EngineFailed: killed by signal 9 (KILL); its last output, 0 s before: {"id": 7}',
        ),
        (
            "head -c 200000 /dev/zero; echo; echo last; exit 1",
            "EngineFailed: exit code 1; its last output, 0 s before: last",
        ),
    ],
)
async def test_what_it_died_of_is_told(engine: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(EngineFailed) as failed:
        await asyncio.wait_for(Supervisor(program(engine), tmp_path / "e").run(), WAIT_SECONDS)
    assert re.sub(r"[1-5] s before", "0 s before", str(failed.value)) == reason


async def test_a_log_that_stalls_holds_up_nothing_but_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, input = os.pipe()
    room = fcntl.fcntl(input, fcntl.F_GETPIPE_SZ)
    lines = room // 4  # of 8 bytes: twice what the log takes before it stalls
    said = b"".join(b"%07d\n" % n for n in range(lines))
    rescued, pending = threading.Event(), array.array("i", [0])

    def read() -> bytes:
        found = b""
        while len(found) < len(said):
            found += os.read(output, room)
        return found

    def rescue() -> None:  # a loop that stands still goes on, and the test fails
        rescued.set()
        read()

    timer = threading.Timer(WAIT_SECONDS, rescue)
    timer.start()
    with os.fdopen(input, "w") as log, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", log)
        async with running(Supervisor(program(f"seq -f %07.0f 0 {lines - 1}; sleep 300"), tmp_path / "e").run()):
            while pending[0] < room and not rescued.is_set():
                fcntl.ioctl(output, termios.FIONREAD, pending)
                await asyncio.sleep(0.01)
            timer.cancel()
            assert not rescued.is_set()
            assert await asyncio.to_thread(read) == said
    timer.join()
    os.close(output)


async def test_an_interpreter_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    supervisor = Supervisor(always(EngineCommand(["/no/python"])), tmp_path / "e")
    with pytest.raises(EngineFailed, match="EngineMissing: /no/python cannot be started: No such file"):
        await supervisor.run()


async def test_an_engine_that_never_gets_ready_is_given_up(tmp_path: Path) -> None:
    supervisor = Supervisor(program("exec sleep 300"), tmp_path / "e", startup_seconds=0.1)
    with pytest.raises(EngineFailed, match=r"^StartupTimeout: it was not ready after 0\.1 s"):
        await asyncio.wait_for(supervisor.run(), WAIT_SECONDS)


async def test_one_that_gets_ready_and_dies_again_and_again_is_given_up_as_a_crash_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CRASHES", 3)
    monkeypatch.setattr(module, "PROBE_SECONDS", 0.05)
    seen = set()

    class Seen(Supervisor):
        def __setattr__(self, name: str, value: Any) -> None:
            if name == "health":
                seen.add(value.reason.word if value.reason is not None else "")
            super().__setattr__(name, value)

    uds = tmp_path / "e"
    supervisor = Seen(always(EngineCommand([sys.executable, "-c", BRIEF, str(uds)])), uds)
    with pytest.raises(
        EngineFailed, match=r"^CrashLoop: ended 3 times in a row; the last time: exit code 1: ValueError: no"
    ):
        await asyncio.wait_for(supervisor.run(), WAIT_SECONDS)
    assert {"Loading", "", "EngineDied", "Restarting"} <= seen


async def test_memory_that_ran_out_has_a_word_of_its_own(tmp_path: Path) -> None:
    says = "echo 'ERROR 11-21 11:42:53 [core.py:7] torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB'; exit 1"
    with pytest.raises(
        EngineFailed, match=r"^OutOfMemory: OutOfMemoryError: CUDA out of memory\. Tried to allocate 2 GiB$"
    ):
        await asyncio.wait_for(Supervisor(program(says), tmp_path / "e").run(), WAIT_SECONDS)


async def test_workers_that_an_engine_leaves_behind_are_ended_before_it_is_started_again(tmp_path: Path) -> None:
    mark = str(tmp_path / "worker")
    worker = f'{sys.executable} -c "import time; time.sleep(300)" {mark}'
    with pytest.raises(EngineFailed, match=r"exit code 1; its last output, [0-5] s before: leader"):
        await asyncio.wait_for(
            Supervisor(program(f"{worker} & echo leader; exit 1"), tmp_path / "e").run(), WAIT_SECONDS
        )
    await until(lambda: processes(mark) == [])
