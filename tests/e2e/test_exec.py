"""People look into the sandboxes of running rollouts: `rollyard exec` and `rollyard cp`, on each runtime."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.errors import Conflict, SandboxStartFailed
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.task import Task
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox_agent.own_threads import MOST_PROGRAMS
from rollyard.wire.attach import WINDOW, AttachKind, Start
from tests.support import gated_tasks
from tests.support.yard import ROOT, Yard, alive, end, kill

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(60)]


one_runtime = pytest.mark.parametrize("site", ["auto"], indirect=True)
"""For tests of what no runtime has a part in."""
RUNTIMES = ["auto", pytest.param("bubblewrap", marks=pytest.mark.long)]  # Apptainer first, where it is installed


class Site:
    """A yard whose rollouts wait at gates."""

    def __init__(self, yard: Yard, client: AsyncClient) -> None:
        self.yard = yard
        self.client = client
        self.rollouts = 0

    def gates(self, id: str) -> Path:
        return self.yard.folder / "gates" / id

    async def submit(self, *, kind: str = "gated", until: Stage = Stage.RUN, **more: Any) -> str:
        """Submit a rollout, and return its id when the rollout waits in this stage."""
        self.rollouts += 1
        id = f"look.{self.rollouts}"
        gates = self.gates(id)
        gates.mkdir(parents=True)
        for stage in [stage for stage in Stage if list(Stage).index(stage) < list(Stage).index(until)]:
            (gates / stage.value).touch()
        task = Task.model_validate({"kind": kind, "gates": str(gates)})
        request = {"id": id, "pool": "demo", "task": task, "agent": {"max_turns": 1}, **more}
        await self.client.submit([RolloutRequest.model_validate(request)])

        async def waits() -> bool:
            return (await self.client.rollout(id))[0].stage is until

        await self.yard.until(waits)
        return id

    async def exec(
        self, id: str, *command: str, code: int = 0, text: str = "", more: tuple[str, ...] = ()
    ) -> tuple[str, str]:
        return await self.yard.rollyard("exec", *more, id, "--", *command, code=code, text=text)

    async def finish(self, id: str) -> Any:
        for stage in Stage:
            (self.gates(id) / stage.value).touch()
        return (await self.yard.gather(self.client, [id]))[0]

    def inside(self, mark: str) -> list[int]:
        """Pids of processes whose command line has this mark, except those of the command line."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes()
                if mark.encode() in words and b"rollyard.cli" not in words:
                    found.append(int(entry.name))
        return found


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=RUNTIMES)
async def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Site]:
    try:
        find_runtime(cast(RuntimeName, request.param))
    except SandboxStartFailed as error:
        pytest.skip(f"{request.param} does not start here: {error}")
    yard = Yard(tmp_path_factory.mktemp("yard"))
    yard.env["PYTHONPATH"] = gated_tasks.install(yard.folder / "plugin")
    try:
        yard.start()
        async with yard.client() as client:
            stages = {stage: {"timeoutSeconds": 600} for stage in ("init", "run", "eval")}
            patient = {"stages": stages, "allocation": {"timeLimit": "02:00:00"}}  # the rollouts wait for this test
            await yard.apply(
                client, policy={"replicas": 1}, demo={"replicas": 1, "sandbox": {"runtime": request.param}, **patient}
            )
            await yard.ready(client)
            yield Site(yard, client)
    finally:
        await end(yard)


def _begin_on_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGHUP, signal.SIGINT):  # a suite in the background ignores them, and so would its children
        signal.signal(number, signal.SIG_DFL)


class Person:
    """`rollyard exec -it` on a terminal."""

    def __init__(self, site: Site, *words: str) -> None:
        self._ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 31, 97, 0, 0))
        command = [sys.executable, "-m", "rollyard.cli.main", "exec", "-it", *words]
        env = {**os.environ, "HOME": str(site.yard.folder), "TERM": "xterm-256color"}
        self.process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, env=env, cwd=ROOT, start_new_session=True,
            preexec_fn=_begin_on_terminal,
        )  # fmt: skip
        os.close(its)
        self.screen = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def until(self, pattern: str) -> None:
        """Wait until the screen shows the pattern, then forget the screen."""

        async def read() -> None:
            while not re.search(pattern, self.screen):
                data = await asyncio.to_thread(os.read, self._ours, 4096)
                self.screen += data.decode(errors="replace")

        try:
            async with asyncio.timeout(60):
                await read()
        except (TimeoutError, OSError):
            pytest.fail(f"no {pattern!r} on the screen: {self.screen!r}")
        self.screen = ""

    async def end(self) -> int:
        """Return the exit code."""
        return await asyncio.to_thread(self.process.wait, 60)

    def hang_up(self) -> None:
        """Close the terminal, as a lost connection of a person's shell does."""
        os.close(self._ours)
        self._ours = -1

    def close(self) -> None:
        if self._ours >= 0:
            self.hang_up()
        self.process.kill()
        self.process.wait()


@contextlib.contextmanager
def person(site: Site, *words: str) -> Iterator[Person]:
    made = Person(site, *words)
    try:
        yield made
    finally:
        made.close()


async def test_a_command_has_its_own_input_outputs_and_exit_code(site: Site) -> None:
    id = await site.submit()
    out, err = await site.exec(
        id, "bash", "-c", "read x; echo got $x; echo oops >&2; pwd; exit 7", code=7, text="hi\n", more=("-i",)
    )
    assert (out, err) == ("got hi\n/workspace\n", "oops\n")
    assert await site.exec(id, "cat") == ("", ""), "without -i the input is empty"
    assert (await site.exec(id, "no-such-program", code=127))[1].startswith("no-such-program: there is no such program")
    await site.exec(id, "bash", "-c", "kill -9 $$", code=137)
    ended = await site.finish(id)
    assert (ended.status, ended.metrics["looks"]) == (Status.TRUNCATED, 4)
    history = await site.client.rollout_history(id)
    looks = [(e.stage, e.reason, e.message) for e in history.entries if e.event == "Exec"]
    assert len(looks) == 4
    assert looks[1] == (Stage.RUN, "by admin", "cat")
    assert "by admin: no-such-program" in (await site.yard.rollyard("rollouts", "describe", id))[0]


async def test_a_shell_on_a_terminal_has_its_size_its_keys_and_its_end(site: Site) -> None:
    id = await site.submit()
    with person(site, id, "--", "bash", "--norc") as one:
        one.type("stty size; echo $TERM; tty\n")
        await one.until(r"31 97\r\n.*xterm-256color\r\n.*/dev/pts/")
        one.resize(40, 120)
        one.type("until [ \"$(stty size)\" = '40 120' ]; do :; done; echo resi''zed\n")
        await one.until(r"resized[^$]*\$ ")  # what is typed before the prompt may lose its first key
        one.type("echo re''ady; sleep 1000\n")
        await one.until("ready")
        one.type("\x03")
        await one.until(r"\$ ")
        one.type("echo inter''rupted\n")
        await one.until("interrupted")
        one.type("exit 5\n")
        assert await one.end() == 5
    await site.finish(id)


async def test_a_terminal_that_closes_ends_what_ran_on_it(site: Site) -> None:
    id = await site.submit()
    mark = f"9{os.getpid()}"
    command = (
        f"sleep {mark} & yes & trap '' HUP; sleep {mark}; sleep {mark}"  # the terminal is full, and nobody reads it
    )
    for end_of_it in ("hang up", "kill", "terminate"):
        with person(site, id, "--", "bash", "-c", command) as one:

            async def runs() -> bool:
                return len(site.inside(f"sleep\0{mark}")) == 2

            await site.yard.until(runs)
            if end_of_it == "hang up":
                one.hang_up()
            else:
                one.process.send_signal(signal.SIGKILL if end_of_it == "kill" else signal.SIGTERM)
                assert await one.end() == (-signal.SIGKILL if end_of_it == "kill" else 128 + signal.SIGTERM)

            async def nothing() -> bool:
                return not site.inside(mark)

            await site.yard.until(nothing)
    ended = await site.finish(id)
    assert ended.status is Status.TRUNCATED


@one_runtime
async def test_when_the_rollout_ends_the_command_ends_with_a_sentence(site: Site) -> None:
    id = await site.submit()
    with person(site, id, "--", "bash", "--norc") as one:
        one.type("echo be''gun\n")
        await one.until("begun")
        ended = asyncio.create_task(site.finish(id))
        await one.until(
            f"error: the sandbox of rollout {id} is gone, because the rollout has left RUN; `rollyard rollouts"
        )
        assert await one.end() == 1
        assert (await ended).status is Status.TRUNCATED


@one_runtime
async def test_a_flood_of_output_waits_for_its_reader_and_delays_nobody(site: Site) -> None:
    id = await site.submit()
    async with site.client.attach(id, Start(kind=AttachKind.EXEC, command=["yes"])) as flood:
        got, stopped = 0, asyncio.Event()

        async def read() -> None:
            nonlocal got
            async for _, data in flood.output():
                got += len(data)
                if got == WINDOW:
                    stopped.set()  # nothing is acknowledged

        reading = asyncio.create_task(read())
        await stopped.wait()
        assert (await site.exec(id, "echo", "meanwhile"))[0] == "meanwhile\n"
        assert got == WINDOW, "no more comes than was acknowledged"
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    out, _ = await site.exec(id, "bash", "-c", "yes | head -c 20000000")
    assert len(out) == 20_000_000

    def in_shell(command: str, rest: str = "") -> tuple[int, str]:
        words = f"exec {sys.executable} -m rollyard.cli.main exec {command} {rest}"
        done = subprocess.run(
            ["bash", "-c", words], capture_output=True, text=True, env=site.yard.user_env, cwd=ROOT, timeout=60
        )
        return done.returncode, done.stderr

    full = "error: the output cannot be written here: No space left on device; the command is ended\n"
    assert await asyncio.gather(
        asyncio.to_thread(in_shell, f"{id} -- yes", "> >(head -1)"),
        asyncio.to_thread(in_shell, f"{id} -- yes", "> /dev/full"),
        asyncio.to_thread(in_shell, f"-i {id} -- cat", "<&-"),
    ) == [(141, ""), (1, full), (0, "")]
    ended = await site.finish(id)
    assert (ended.status, ended.attempt) == (Status.TRUNCATED, 1)


async def test_the_limits_of_the_sandbox_hold(site: Site) -> None:
    id = await site.submit()
    code = "x = bytearray(64 << 30)"
    assert "MemoryError" in (await site.exec(id, "python3", "-c", code, code=1))[1]
    assert (await site.exec(id, "bash", "-c", "cat /proc/$$/oom_score_adj; ulimit -c"))[0] == "1000\n0\n"
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_PROGRAMS):
            start = Start(kind=AttachKind.EXEC, command=["bash", "-c", "echo; sleep 1000"])
            attached = await stack.enter_async_context(site.client.attach(id, start))
            await anext(attached.output())
        _, err = await site.exec(id, "true", code=1)
        assert f"{MOST_PROGRAMS} programs run already; end one of them" in err
    await site.finish(id)


@one_runtime
async def test_a_rollout_without_a_sandbox_says_what_one_can_do(site: Site) -> None:
    _, err = await site.exec("nobody", "true", code=1)
    assert "rollout 'nobody' not found" in err
    id = await site.submit()
    await site.finish(id)
    _, err = await site.exec(id, "true", code=1)
    assert f"rollout {id} has ended Truncated, and its sandbox is gone; `rollyard rollouts describe {id}`" in err
    id = await site.submit(until=Stage.EVAL)
    _, err = await site.exec(id, "true", code=1)
    assert "its sandbox has the hidden tests" in err
    _, err = await site.exec(id, "true", code=1, more=("--eval",))
    assert f"rollout {id} is in EVAL, and has no sandbox now" in err
    assert not [e for e in (await site.client.rollout_history(id)).entries if e.event == "Exec"], (
        "nobody has looked into it"
    )
    await site.finish(id)


@one_runtime
async def test_a_look_into_eval_is_asked_for_and_shows_in_the_metrics(site: Site) -> None:
    id = await site.submit(kind="gated_scoring", until=Stage.EVAL)

    async def opened() -> bool:
        try:
            async with site.client.attach(
                id, Start(kind=AttachKind.EXEC, command=["cat", "reward"], eval=True)
            ) as found:
                return b"".join([data async for _, data in found.output()]) == b"0.5"
        except Conflict:  # its sandbox starts
            return False

    await site.yard.until(opened)
    await site.exec(id, "bash", "-c", "echo 1 > reward", more=("--eval",))
    ended = await site.finish(id)
    assert (ended.reward, ended.metrics["looks_in_eval"] >= 2) == (1.0, True)
    (last, *_) = [e for e in reversed((await site.client.rollout_history(id)).entries) if e.event == "Exec"]
    assert (last.stage, last.message) == (Stage.EVAL, "bash -c echo 1 > reward")


@one_runtime
async def test_files_and_folders_are_copied_in_and_out(site: Site, tmp_path: Path) -> None:
    id = await site.submit()
    folder = tmp_path / "in"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "data").write_bytes(os.urandom(3_000_000))
    (folder / "run").write_text("#!/bin/sh\necho ran\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("deep/data")
    await site.yard.rollyard("cp", str(folder), f"{id}:/workspace")
    assert (await site.exec(id, "bash", "-c", "in/run; cmp in/link in/deep/data && echo same"))[0] == "ran\nsame\n"
    await site.yard.rollyard("cp", f"{id}:in", str(tmp_path / "out"))
    assert (tmp_path / "out" / "deep" / "data").read_bytes() == (folder / "deep" / "data").read_bytes()
    assert (tmp_path / "out" / "link").readlink() == Path("deep/data")
    assert os.access(tmp_path / "out" / "run", os.X_OK)
    await site.yard.rollyard("cp", str(folder / "run"), f"{id}:/tmp/walk")
    await site.yard.rollyard("cp", f"{id}:/tmp/walk", str(tmp_path))
    assert (tmp_path / "walk").read_text() == (folder / "run").read_text()
    await site.exec(id, "bash", "-c", "echo hostile > .bashrc && ln -s .bashrc result")
    await site.yard.rollyard("cp", f"{id}:result", str(tmp_path))
    assert (tmp_path / "result").read_text() == "hostile\n", "the person chooses the name of the copy"
    _, err = await site.yard.rollyard("cp", f"{id}:/nowhere", str(tmp_path), code=1)
    assert "/nowhere: there is no such file or folder in the sandbox" in err
    _, err = await site.yard.rollyard("cp", str(folder), f"{id}:/no/such/folder", code=1)
    assert "there is no such folder in the sandbox" in err
    _, err = await site.yard.rollyard("cp", "--max-size", "1Mi", f"{id}:in", str(tmp_path / "more"), code=1)
    assert "write a larger --max-size" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out", "result", "walk"]
    words = [(e.event, e.message) for e in (await site.client.rollout_history(id)).entries if "Copy" in e.event]
    assert words[:2] == [("CopyIn", "/workspace"), ("CopyOut", "in")]
    await site.finish(id)


@one_runtime
async def test_the_turns_of_a_rollout_show_while_it_runs_and_after_its_end(site: Site) -> None:
    id = await site.submit()
    out, err = await site.yard.rollyard("logs", id)
    assert out.startswith("--- turn 1: ")
    assert "-f follows it" in err
    following = asyncio.create_task(site.yard.follow("logs", "-f", f"rollout/{id}"))

    async def attached() -> bool:
        return bool(site.yard.processes("logs", "-f", id))

    await site.yard.until(attached)
    ended = await site.finish(id)
    followed = await following
    assert followed.startswith(out)
    end = (
        f"=== Truncated, reward 1, {len(ended.turns)} turns\nthe agent used all of its turns; `agent.max_turns` is 1\n"
    )
    assert followed.endswith(end)
    assert (await site.yard.rollyard("logs", id))[0] == followed
    assert not [e for e in (await site.client.rollout_history(id)).entries if e.event == "Exec"], "turns are no look"
    assert "looks" not in ended.metrics


@one_runtime
async def test_what_a_command_prints_shows_while_it_runs_and_after_its_end(site: Site) -> None:
    command = "echo begun; until [ -e /tmp/go ]; do sleep 0.05; done; printf 'over\\033[1m'"
    agent = {"type": "command", "command": command}
    id = await site.submit(agent=agent)

    async def printed() -> bool:
        return (await site.yard.rollyard("logs", id))[0] == "| begun\n"

    await site.yard.until(printed)
    following = asyncio.create_task(site.yard.follow("logs", "-f", id))
    await site.yard.until(lambda: asyncio.sleep(0, bool(site.yard.processes("logs", "-f", id))))
    # a busy machine may end the rollout before the command hears of its own end
    await asyncio.gather(site.exec(id, "touch", "/tmp/go"), return_exceptions=True)
    ended = await site.finish(id)
    assert (ended.status, ended.harness_output) == (Status.FAILED, "begun\nover\x1b[1m")
    followed = await following
    assert followed.startswith("| begun\n| over\\x1b[1m\n=== Failed")
    assert (await site.yard.rollyard("logs", id))[0] == followed


@one_runtime
async def test_a_rollout_whose_task_raises_keeps_its_turns(site: Site) -> None:
    id = await site.submit(kind="gated_failing")
    ended = await site.finish(id)
    assert (ended.status, ended.reward, len(ended.turns)) == (Status.FAILED, None, 1)
    out, _ = await site.yard.rollyard("logs", id)
    assert out.startswith("--- turn 1: ")
    assert "HandlerFailed in RUN" in out
    assert "no such thing" in out


@one_runtime
async def test_the_sandbox_of_a_failed_rollout_is_kept_for_a_while_if_asked_for(site: Site) -> None:
    id = await site.submit(kind="gated_failing", budgets={"keep_failed_seconds": 600})
    await site.exec(id, "bash", "-c", "echo evidence > /workspace/left; setsid sleep 1000 & ")
    ended = await site.finish(id)
    assert ended.status is Status.FAILED

    async def kept() -> bool:
        return (await site.client.rollout(id))[0].kept is not None

    await site.yard.until(kept)
    assert (await site.exec(id, "bash", "-c", "cat left; pgrep -c sleep"))[0] == "evidence\n1\n"
    assert f"rollyard exec -it {id} -- bash" in (await site.yard.rollyard("rollouts", "describe", id))[0]
    view = (await site.client.rollout(id))[0].kept
    assert " of failed attempts kept" in (await site.yard.rollyard("describe", "rp/demo"))[0]
    assert view is not None
    assert (view.stage, 0 < view.until - time.time() < 600) == (Stage.RUN, True)
    short = await site.submit(kind="gated_failing", budgets={"keep_failed_seconds": 2})
    await site.finish(short)

    async def over() -> bool:
        return (await site.client.rollout(short))[0].kept is None

    await site.yard.until(over)
    assert (await site.client.rollout(id))[0].kept == view
    late = await site.submit(
        kind="gated_scoring", until=Stage.EVAL, budgets={"keep_failed_seconds": 600, "eval_seconds": 2}
    )

    async def kept_in_eval() -> bool:
        found = (await site.client.rollout(late))[0].kept
        return found is not None and found.stage is Stage.EVAL

    await site.yard.until(kept_in_eval)
    await site.client.cancel(late)
    good = await site.submit(budgets={"keep_failed_seconds": 600})
    assert (await site.finish(good)).status is Status.TRUNCATED
    assert (await site.client.rollout(good))[0].kept is None, "it has not failed"
    await site.client.delete(ObjectKey(kind="Allocation", namespace="default", name=view.allocation))

    async def gone() -> bool:
        return (await site.client.rollout(id))[0].kept is None

    await site.yard.until(gone)


@one_runtime
async def test_the_death_of_a_node_agent_ends_the_command_with_a_sentence(site: Site) -> None:
    id = await site.submit()
    with person(site, id, "--", "bash", "--norc") as one:
        one.type("echo be''gun\n")
        await one.until("begun")
        agents = site.yard.processes("node-agent")
        for pid in agents:
            kill(pid)
        await one.until(f"error: the connection to the node agent of rollout {id} is lost")
        assert await one.end() == 1

    async def gone() -> bool:
        return not any(alive(pid) for pid in agents) and not site.yard.sandboxes()

    await site.yard.until(gone)
    await site.client.cancel(id)
