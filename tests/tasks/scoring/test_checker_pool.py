"""Checker processes: limited, side by side, and gone with whoever asked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rollyard.core.errors import NodeFault
from rollyard.tasks.scoring.checker_pool import CheckerKilled, CheckerPool
from tests.support.until import until

CHILD = """
import os, resource, signal
from rollyard.tasks.scoring.checker_process import Unprepared, serve
kept, prepared = bytearray(), []
def check(what, *more):
    if what == b"burn":
        while True: pass
    if what == b"wait":
        open(more[0]).close()  # until the other end of this pipe is opened
    if what == b"fill":
        return {"bytes": len(bytearray(1 << 40))}
    if what == b"die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == b"die once":
        if not os.path.exists(more[0]):
            open(more[0], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
    if what == b"grow":
        kept.extend(bytes(64 << 20))
    if what == b"limits":
        return {"hard": resource.getrlimit(int(more[0]))[1]}
    if what == b"prepared" and not prepared:
        raise Unprepared
    if what == b"print":
        print('{"forged": 1}')
    return {"pid": os.getppid(), "length": sum(map(len, more)), "kept": len(kept), "prepared": prepared}
def prepare():
    if "UNPREPARABLE" in os.environ:
        raise ImportError("no algebra system")
    prepared.append(os.getpid())
if "LIMIT" in os.environ:
    kind, most = map(int, os.environ["LIMIT"].split())
    resource.setrlimit(kind, (most, most))
serve(check, int(os.environ.get("CPU_SECONDS", "1")), 1 << 30, prepare)
"""


@pytest.fixture
async def checkers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[CheckerPool]:
    (tmp_path / "child_of_a_test.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = CheckerPool("child_of_a_test", [b"prepared"], 3)
    yield made
    await made.close()


def children() -> set[int]:
    """Return the checkers of this process; engines of other tests may be children of it too."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # a thread may end, as the one that waited for a child
            for pid in (task / "children").read_text().split():
                if b"child_of_a_test" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(int(pid))
    return found


async def test_questions_of_any_size_are_answered_by_one_child(checkers: CheckerPool) -> None:
    first = await checkers.ask(b"")
    assert await checkers.ask(b"print", b"x" * (8 << 20), b"y") == {**first, "length": (8 << 20) + 1}
    assert children() == {first["pid"]}


async def test_questions_share_a_child_until_one_of_them_takes_long(checkers: CheckerPool, tmp_path: Path) -> None:
    """Each of many questions at once started a child of its own, which takes longer than all of them together."""
    assert len({found["pid"] for found in await asyncio.gather(*(checkers.ask(b"") for _ in range(12)))}) == 1
    os.mkfifo(pipe := tmp_path / "pipe")
    waiting = [asyncio.create_task(checkers.ask(b"wait", str(pipe).encode())) for _ in range(2)]
    await until(lambda: len(children()) == 2)
    free = (await checkers.ask(b""))["pid"]
    assert not any(task.done() for task in waiting)
    assert len(children()) == 3
    with open(pipe, "w"):
        assert free not in {(await task)["pid"] for task in waiting}


async def test_a_child_prepares_once_when_a_question_needs_it(checkers: CheckerPool) -> None:
    before = await checkers.ask(b"")
    assert before["prepared"] == []
    for what in (b"prepared", b"prepared", b""):
        assert await checkers.ask(what) == {**before, "prepared": [before["pid"]]}


async def test_children_that_cannot_prepare_are_a_fault_of_ours(
    checkers: CheckerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNPREPARABLE", "1")
    assert "pid" in await checkers.ask(b""), "another question needs nothing of it"
    with pytest.raises(NodeFault, match="die on this node"):
        await checkers.ask(b"prepared")


async def test_what_takes_too_long_is_ended(checkers: CheckerPool) -> None:
    with pytest.raises(CheckerKilled, match="timed_out"):
        await checkers.ask(b"burn")


async def test_memory_has_a_limit_and_none_is_kept_for_the_next_question(checkers: CheckerPool) -> None:
    assert await checkers.ask(b"fill") == {"too_large": 1.0}
    grown = await checkers.ask(b"grow")
    assert grown["kept"] == 64 << 20
    assert await checkers.ask(b"") == {**grown, "kept": 0}


async def test_a_child_killed_from_outside_is_not_held_against_the_question(
    checkers: CheckerPool, tmp_path: Path
) -> None:
    assert "pid" in await checkers.ask(b"die once", str(tmp_path / "seen").encode())
    with pytest.raises(CheckerKilled, match="checker_killed"):
        await checkers.ask(b"die")
    assert "pid" in await checkers.ask(b"")


def group(leader: int) -> list[str]:
    """Processes of this process group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if int((entry / "stat").read_text().rpartition(")")[2].split()[2]) == leader:
                    found.append(entry.name)
    return found


async def test_a_cancelled_question_leaves_no_process(checkers: CheckerPool) -> None:
    child = int((await checkers.ask(b""))["pid"])
    asked = asyncio.create_task(checkers.ask(b"burn"))
    await until(lambda: len(group(child)) >= 2)
    asked.cancel()
    await until(lambda: not group(child))
    assert children() == set()


async def test_a_child_that_does_not_start_is_a_fault_of_ours() -> None:
    with pytest.raises(NodeFault, match="nosuch"):
        await CheckerPool("nosuch.module", [b""]).ask(b"")


async def test_children_that_always_die_are_a_fault_of_ours(checkers: CheckerPool) -> None:
    """Nothing is held against an answer where a harmless one fares no better."""
    checkers._warm_up_question = [b"die"]
    with pytest.raises(NodeFault, match="die on this node at every request"):
        await checkers.ask(b"die")


@pytest.mark.parametrize("kind", [resource.RLIMIT_CPU, resource.RLIMIT_AS])
async def test_a_lower_limit_of_the_site_stays(
    checkers: CheckerPool, monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """A child that may not raise its own hard limit died of every question."""
    most = {resource.RLIMIT_CPU: 3600, resource.RLIMIT_AS: 900 << 20}[kind]
    monkeypatch.setenv("LIMIT", f"{kind} {most}")
    assert await checkers.ask(b"limits", str(kind).encode()) == {"hard": most}


async def test_a_question_that_reaches_a_low_cpu_limit_of_the_site_is_timed_out(
    checkers: CheckerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the hard limit the kernel sends SIGKILL, which reads as a kill from outside."""
    monkeypatch.setenv("LIMIT", f"{resource.RLIMIT_CPU} 3")
    monkeypatch.setenv("CPU_SECONDS", "9")
    with pytest.raises(CheckerKilled, match="timed_out"):
        await checkers.ask(b"burn")
