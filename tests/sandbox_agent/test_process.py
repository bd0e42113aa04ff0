"""The agent with its own Python as a process on a socket, without a sandbox around it."""

from __future__ import annotations

import marshal
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rollyard.host.node_cache import node_cache
from rollyard.sandbox.base import OWN
from rollyard.sandbox.bundled_python import own_python, sandbox_agent_argv
from rollyard.sandbox_agent.frames import PROTOCOL, Stream
from rollyard.sandbox_agent.settings import environment

SETTINGS = {"env": {"TASK": "x"}, "memory_bytes": 4 << 30, "file_bytes": 1 << 20, "processes": 4096, "cpus": []}


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Stream, subprocess.Popen[bytes]]]:
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # its home folder is not on this machine
    ours, its = socket.socketpair()
    ours.settimeout(120)
    own = own_python(node_cache())
    argv = [part.replace(OWN, str(own)) for part in sandbox_agent_argv(own)]
    gate, its_gate = socket.socketpair()
    with its:
        process = subprocess.Popen(argv, stdin=its)
    with its_gate:
        socket.send_fds(ours, [b"G"], [its_gate.fileno()])
    stream = Stream(ours)
    with gate:
        yield stream, process
    stream.close()
    assert process.wait(60) == 0


def ask(stream: Stream, header: dict[str, Any], body: bytes = b"") -> tuple[dict[str, Any], bytes]:
    stream.send(header, body)
    frame = stream.receive()
    assert frame is not None
    return frame


def test_hello_then_calls_by_id(agent: tuple[Stream, subprocess.Popen[bytes]]) -> None:
    stream, process = agent
    stream.send(SETTINGS)
    hello = stream.receive()
    assert hello is not None
    assert hello[0]["protocol"] == PROTOCOL
    assert hello[0]["pid"] == process.pid
    reply, body = ask(stream, {"id": 5, "op": "bash", "timeout": 10}, b"echo $TASK; ulimit -f")
    assert (reply["id"], reply["exit_code"], body) == (5, 0, b"x\n1024\n")
    reply, body = ask(stream, {"id": 6, "op": "ipython", "timeout": 10}, b"'cell'")
    assert (reply["id"], reply["failed"], body) == (6, False, b"'cell'\n")
    reply, _ = ask(stream, {"id": 7, "op": "read", "path": "/nowhere", "limit": 1})
    assert reply["errno"] == 2


def test_the_tools_start_in_the_images_folder_with_its_variables(
    agent: tuple[Stream, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    stream, _ = agent
    folder = tmp_path / "of the image"
    image = {"KIND": "image", "TASK": "image", "HOME": "/root", "PATH": "/image/bin:/usr/bin"}
    stream.send({**SETTINGS, "image_env": image, "workdir": str(folder)})
    stream.receive()
    _, body = ask(stream, {"id": 1, "op": "bash", "timeout": 10}, b"pwd; echo $KIND $TASK $HOME $PATH")
    assert body.decode() == f"{folder}\nimage x /home/agent /image/bin:/usr/bin:/opt/rollyard/fallback\n"
    _, body = ask(stream, {"id": 2, "op": "ipython", "timeout": 10}, b"import os; print(os.getcwd())")
    assert body.decode() == f"{folder}\n"
    ask(stream, {"id": 3, "op": "edit", "command": "create", "path": "new", "arguments": {"file_text": "text"}})
    assert (folder / "new").read_text() == "text"


def test_a_waiting_call_can_be_cancelled(agent: tuple[Stream, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    stream, _ = agent
    stream.send(SETTINGS)
    stream.receive()
    go = tmp_path / "go"
    stream.send({"id": 1, "op": "bash", "timeout": 60}, f"while [ ! -e {go} ]; do sleep 0.01; done".encode())
    stream.send({"id": 2, "op": "bash", "timeout": 60}, b"echo never")
    stream.send({"id": 3, "op": "bash", "timeout": 60}, b"echo third")
    stream.send({"op": "cancel", "id": 2})
    stream.send({"id": 4, "op": "write", "path": str(go), "mode": 0o644})  # read after the cancellation
    answers = [frame[0]["id"] for _ in range(3) if (frame := stream.receive())]
    assert [number for number in answers if number != 4] == [1, 3]


def test_a_fault_is_told(agent: tuple[Stream, subprocess.Popen[bytes]]) -> None:
    stream, _ = agent
    stream.send(SETTINGS)
    stream.receive()
    reply, _ = ask(stream, {"id": 1, "op": "bash"}, b"a call without a timeout")
    assert reply["fault"] == "KeyError: 'timeout'"


def test_an_owner_that_leaves_at_once(agent: tuple[Stream, subprocess.Popen[bytes]]) -> None:
    assert agent[1].pid


def test_an_owner_that_leaves_while_bash_starts(agent: tuple[Stream, subprocess.Popen[bytes]]) -> None:
    agent[0].send(SETTINGS)
    agent[0].receive()


def test_what_commands_see_of_the_environment() -> None:
    image = {"PATH": "/image/bin", "PS1": "$ ", "APPTAINER_NAME": "x", "_PRIVATE": "kept", "LANG": "C", "HOME": "/root"}
    seen = environment(image, {"EXTRA": "1"})
    assert seen["PATH"] == "/image/bin:/opt/rollyard/fallback"
    assert (seen["HOME"], seen["LANG"], seen["_PRIVATE"], seen["EXTRA"]) == ("/home/agent", "C.UTF-8", "kept", "1")
    assert not {"PS1", "APPTAINER_NAME"} & seen.keys()
    assert os.environ.get("ROLLYARD_NEVER") is None


def test_the_agent_starts_without_slow_imports() -> None:
    own = own_python(node_cache())
    start = [part.replace(OWN, str(own)) for part in sandbox_agent_argv(own)[:-1]]
    code = "import sys, rollyard.sandbox_agent.main, rollyard.sandbox_agent.server; print(*sys.modules)"
    done = subprocess.run([*start, "-c", code], env={}, capture_output=True, text=True, check=True)
    slow = {"re", "enum", "typing", "collections", "functools", "contextlib", "dataclasses", "socket", "ctypes", "site"}
    assert slow.isdisjoint(done.stdout.split())
    archived = marshal.loads((own / "modules").read_bytes())
    assert {"rollyard.sandbox_agent.main", "rollyard.sandbox_agent.server", "struct"} <= archived.keys()
