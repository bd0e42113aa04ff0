"""Commands and messages that somebody at a shell meets, in this order."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import yaml

from tests.support import forked_commands
from tests.support.yard import MODEL, ROOT, Yard

pytestmark = pytest.mark.slow(35)

LIMIT_SECONDS = 180.0
TASK = {"kind": "math", "problem": "What is 417 * 36 + 58?", "answer": "15070"}


def start(yard: Yard, *words: str, **more: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rollyard.cli.main", *words]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    # a suite that a shell started in the background ignores SIGINT, and so would its children
    ready = {"preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)}
    return subprocess.Popen(command, text=True, env=yard.user_env, cwd=ROOT, **{**pipes, **ready, **more})  # type: ignore[call-overload, no-any-return]


def rollyard(yard: Yard, *words: str, text: str = "", code: int = 0) -> tuple[str, str]:
    """(standard output, standard error)"""
    done = forked_commands.run(*words, env=yard.user_env, text=text, seconds=LIMIT_SECONDS)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout, done.stderr


def pools(folder: Path, **spec: object) -> str:
    """The demo's two pools, smaller."""
    objects = list(yaml.safe_load_all((ROOT / "examples" / "demo" / "pools.yaml").read_text()))
    for found in objects:
        found["spec"] |= {"replicas": 1, **spec}
        if found["kind"] == "InferencePool":
            found["spec"]["model"]["path"] = os.path.relpath(MODEL, folder)
    (folder / "pools.yaml").write_text(yaml.safe_dump_all(objects))
    return str(folder / "pools.yaml")


def line_that_has(process: subprocess.Popen[str], words: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if words in line:
            return str(line)
    raise AssertionError(f"it ended without a line that has {words!r}")


def wait_until_it_reads(process: subprocess.Popen[str]) -> None:
    """Until it has taken a line from its standard input, and so asks for the next."""
    assert process.stdin is not None
    process.stdin.write("{}\n")
    process.stdin.flush()
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)


def test_apply_waits_for_a_server_that_was_started_just_before_it(yard: Yard, tmp_path: Path) -> None:
    config = yard.folder / ".rollyard" / "config"
    written = config.rename(yard.folder / "config")
    applied = start(yard, "apply", "-f", pools(tmp_path, suspend=True))
    line_that_has(applied, "waiting up to 20 s for the server to start")
    written.rename(config)  # as a new server does; to start one may take a busy machine longer than 20 s
    out, err = applied.communicate(timeout=LIMIT_SECONDS)
    assert (applied.returncode, out) == (0, "inferencepool/policy created\nrolloutpool/demo created\n"), err

    yard.stop()  # quick and clear where none answers
    began = time.monotonic()
    _, err = rollyard(yard, "get", "rp", code=1)
    assert time.monotonic() - began < 60
    assert "Connection refused" in err
    assert "trying again for 10 s" in err
    assert "is `rollyard serve` running?" in err
    assert "SSLContext" not in err


def test_commands_on_suspended_pools(yard: Yard, tmp_path: Path) -> None:
    file = pools(tmp_path, suspend=True)

    # a relative path means one thing, or is refused
    _, err = rollyard(yard, "apply", "-f", "-", text=Path(file).read_text(), code=1)
    assert "spec.model.path: write an absolute path" in err
    sent, _ = rollyard(yard, "apply", "-f", file, "--dry-run", "client", "-o", "yaml")
    assert str(MODEL) in sent
    assert "inferencepool/policy created" in rollyard(yard, "apply", "-f", "-", text=sent)[0]

    # what cannot be read is told by file and line
    (tmp_path / "latin.yaml").write_bytes(b"# pools\nkind: R\xe9seau\n")
    assert (
        "latin.yaml:2: byte 0xe9 is not UTF-8" in rollyard(yard, "apply", "-f", str(tmp_path / "latin.yaml"), code=1)[1]
    )
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert "declares no object" in rollyard(yard, "apply", "-f", str(tmp_path / "empty.yaml"), code=1)[1]
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(b'{"kind": "math"}\n{"kind": "m\xe9th"}\n')
    assert "bad.jsonl:2: byte 0xe9" in rollyard(yard, "submit", "-f", str(bad), "--pool", "demo", code=1)[1]

    bad.write_text(json.dumps(TASK) + '\n\n{"kind": "math", "problme": 1}\n')
    _, err = rollyard(yard, "submit", "-f", str(bad), "--pool", "demo", code=1)
    assert "bad.jsonl:3: task.problem: " in err
    bad.write_text(json.dumps(TASK) + '\n{"kind": \n{"knd": "math"}\n')
    _, err = rollyard(yard, "submit", "-f", str(bad), "--pool", "demo", code=1)
    assert "bad.jsonl:2: this is not valid JSON" in err
    assert "bad.jsonl:3: task.kind: " in err
    assert "nothing was submitted" in err

    # options
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(TASK) + "\n" for _ in range(6)))
    submit = ("submit", "-f", str(tasks), "--pool", "demo")
    assert "--n" in rollyard(yard, *submit, "--n", "0", code=2)[1]
    _, err = rollyard(yard, *submit, "--id-prefix", "a b", code=2)
    assert "--id-prefix 'a b': write only letters" in err
    assert "did you mean `temperature`?" in rollyard(yard, *submit, "--sampling", "temprature=1", code=1)[1]

    assert "KIND/NAME" in rollyard(yard, "suspend", "rp", code=2)[1], "it suspended nothing"

    # objects
    rollyard(yard, "wait", "rp/demo", "--for", "condition=SlurmReachable")  # the last condition that a new pool gets
    _, err = rollyard(yard, "wait", "rp/demo", "--for", "condition=Suspendd", "--timeout", "5", code=1)
    told, complaint = err.splitlines()
    assert told.startswith("rolloutpool/demo: it has no condition Suspendd; it has Ready, ")
    assert complaint.endswith(told.removeprefix("rolloutpool/demo: "))
    _, err = rollyard(yard, "wait", "rp/none", "--for", "condition=Ready", code=1)
    assert "not found" in err
    _, err = rollyard(yard, "wait", "rp/demo", "--for", "condition=Ready", "--timeout", "1", code=1)
    assert "Suspended" in err
    out, _ = rollyard(yard, "get", "ip,rp")
    assert [line.split()[0] for line in out.splitlines() if line] == [
        "NAME", "inferencepool/policy", "NAME", "rolloutpool/demo",
    ]  # fmt: skip
    path = 'jsonpath={.items[*].status.conditions[?(@.type=="Suspended")].status}'
    assert rollyard(yard, "get", "rp", "-o", path)[0] == "True"
    assert "paths look like" in rollyard(yard, "get", "rp", "-o", "jsonpath={.items[?(@.a==1 && @.b==2)]}", code=1)[1]

    # Ctrl-C leaves rollouts behind, and says so
    waiting = start(yard, *submit, "--wait", "--temperature", "0.5")
    assert "resume" in line_that_has(waiting, "6 queued: ")
    waiting.send_signal(signal.SIGINT)
    out, err = waiting.communicate(timeout=LIMIT_SECONDS)
    assert waiting.returncode == 130
    assert "6 of 6 rollouts were accepted and continue on the server" in err
    assert "Aborted" not in err
    cancel = err.split("To cancel them: rollyard ")[1].split(". To wait")[0].split()
    assert "cancelled" in rollyard(yard, *cancel)[0]
    assert rollyard(yard, "rollouts", "list", "--status", "Queued")[0].count("\n") == 1

    tried = start(yard, "try", json.dumps(TASK), "--pool", "demo")
    assert "resume" in line_that_has(tried, " Queued INIT: ")
    tried.send_signal(signal.SIGINT)
    _, err = tried.communicate(timeout=LIMIT_SECONDS)
    for told in ("To see it: rollyard ", "To cancel it: rollyard "):
        command = err.split(told)[1].split("\n")[0].split(". To")[0].split()
        assert "try-" in rollyard(yard, *command)[0], "what it says to type is a command that works"

    # a read of standard input ends at the first Ctrl-C
    reading = start(yard, "submit", "-f", "-", "--pool", "demo")
    wait_until_it_reads(reading)
    reading.send_signal(signal.SIGINT)
    assert reading.wait(LIMIT_SECONDS) == 130
    reading.communicate()  # closes its pipes, not before

    # a run whose rollouts all fail is not a success
    doomed = start(yard, *submit, "--wait", "--id-prefix", "doomed")
    line_that_has(doomed, "6 queued: ")
    rollyard(yard, "rollouts", "cancel", "--prefix", "doomed")
    out, _ = doomed.communicate(timeout=LIMIT_SECONDS)
    assert doomed.returncode == 1
    assert "Cancelled: cancelled on request" in out

    # deleted is what is gone
    out, _ = rollyard(yard, "delete", "-f", file)
    assert out.splitlines()[0] == "inferencepool/policy: deletion started; it drains and ends its jobs first"
    assert out.splitlines()[-1] == "rolloutpool/demo deleted"
    assert "not found" in rollyard(yard, "get", "rp", "demo", code=1)[1]


def test_an_object_with_the_name_of_a_deleted_one_has_its_own_events_alone(yard: Yard, tmp_path: Path) -> None:
    file = pools(tmp_path, suspend=True)
    rollyard(yard, "apply", "-f", file)
    rollyard(yard, "wait", "rp/demo", "--for", "condition=Suspended")
    deadline = time.monotonic() + LIMIT_SECONDS
    while "spec.suspend is true" not in rollyard(yard, "events", "--for", "rp/demo")[0]:  # written after the condition
        assert time.monotonic() < deadline
    rollyard(yard, "delete", "-f", file)
    rollyard(yard, "apply", "-f", pools(tmp_path, replicas=0))
    rollyard(yard, "wait", "rp/demo", "--for", "condition=Suspended=False")
    shown, _ = rollyard(yard, "describe", "rp/demo")
    assert re.search(r"Sandboxes:  \d+ warm now; rollouts got \d+ warm and \d+ cold; \d+ warm ended unused", shown)
    assert "spec.suspend is true" not in shown.split("Events:")[1]
    assert "spec.suspend is true" in rollyard(yard, "events")[0]
    assert all(" Warning " in line for line in rollyard(yard, "events", "--warnings")[0].splitlines()[1:])


def test_rollouts_that_are_scored_are_a_success_and_the_node_agents_log_tells_of_each(
    yard: Yard, tmp_path: Path
) -> None:
    assert "is ready and up to date" in rollyard(yard, "apply", "-f", pools(tmp_path), "--wait")[0]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps(TASK) + "\n")
    submit = ("submit", "-f", str(tasks), "--pool", "demo", "--n", "3", "--temperature", "0", "--wait")
    assert "Completed   3" in rollyard(yard, *submit, "--id-prefix", "first")[0]
    assert "Completed   3" in rollyard(yard, *submit, "--id-prefix", "first")[0], "the same ids attach"
    tried, told = rollyard(
        yard, "try", json.dumps(TASK), "--pool", "demo", "--temperature", "0", "--sampling", "max_tokens=512"
    )
    assert "=== Completed" in tried
    assert "Completed" in told
    log, _ = rollyard(yard, "logs", "rp/demo")
    assert [log.count(f"rollout first-1.{i}: Completed, reward ") for i in range(3)] == [1, 1, 1]
    assert "PyTorch" not in log
