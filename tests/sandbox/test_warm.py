"""Warm sandboxes: who gets them, when they end, and that nothing stays of them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from rollyard.core.errors import ImageUnavailable
from rollyard.kinds.values.image_reference import parse_image
from rollyard.sandbox import warm_sandboxes
from rollyard.sandbox.base import Runtime, SandboxSpec
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.warm_sandboxes import WarmSandboxes
from tests.support.host_processes import HostProcess, descendants
from tests.support.until import until

pytestmark = pytest.mark.asyncio(loop_scope="module")
PLENTY = 1 << 40


@contextlib.asynccontextmanager
async def warmed(
    sandboxes: SandboxFactory, *, most: int = 4, places: int = 10, free: int = PLENTY
) -> AsyncIterator[WarmSandboxes]:
    warm = WarmSandboxes(sandboxes, most, places, free=lambda: free)
    try:
        yield warm
    finally:
        await warm.close()


async def one_expected(warm: WarmSandboxes, spec: SandboxSpec) -> warm_sandboxes.ExpectedSandbox:
    """Announce a claim, and wait for its sandbox."""
    expected = warm.expect(spec)
    await until(lambda: warm.counts.ready == 1)
    return expected


def first_processes() -> list[HostProcess]:
    """Process 1 of each sandbox of this process."""
    return [one for one in descendants(os.getpid()) if one.pid_inside == 1]


def folder_image(folder: Path) -> Path:
    image = folder / "image"
    for name in ("usr", "etc", "workspace", "home", "home/agent"):
        (image / name).mkdir(mode=0o755, parents=True)
    image.chmod(0o755)
    return image


async def test_the_second_claim_of_an_image_warms_the_third(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    await (await sandboxes.start(spec)).close()  # the first one of a test run may have to wait for our Python
    async with warmed(sandboxes) as warm:
        async with await warm.claim(spec, ["bash"]) as first:
            await first.bash("echo used > /tmp/mark", 10)
            rounds = asyncio.get_running_loop().time()
            await until(lambda: asyncio.get_running_loop().time() > rounds + 0.1)
            assert (warm.counts.ready, warm.counts.cold) == (0, 1)
        async with await warm.claim(spec, ["bash"]):
            await until(lambda: warm.counts.ready >= 1)
            async with await warm.claim(spec, ["bash"]) as third:
                assert (await third.bash("cat /tmp/mark || echo fresh", 10)).output.endswith("fresh\n")
        assert (warm.counts.warm, warm.counts.cold) == (1, 2)


async def test_an_expected_claim_gets_the_one_that_was_started_for_it(
    sandboxes: SandboxFactory, spec: SandboxSpec
) -> None:
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, spec)
        (started,) = {one.pid for one in first_processes()} - set()
        async with await expected.claim() as sandbox:
            assert (await sandbox.bash("echo hi", 10)).output == "hi\n"
            assert started in {one.pid for one in first_processes()}
        expected.drop()
        assert (warm.counts.warm, warm.counts.cold, warm.counts.unused) == (1, 0, 0)
    await until(lambda: not first_processes())


async def test_a_claim_takes_the_one_that_is_just_starting(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with warmed(sandboxes) as warm:
        for _ in range(3):
            expected = warm.expect(spec)
            await until(lambda: bool(warm._starts))
            async with await expected.claim() as sandbox:
                assert (await sandbox.bash("echo hi", 10)).output == "hi\n"
        assert (warm.counts.warm, warm.counts.cold, warm.counts.unused) == (3, 0, 0)


async def test_a_cancelled_claim_leaves_its_sandbox_to_the_next(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with warmed(sandboxes) as warm:
        expected, kept = warm.expect(spec), warm.expect(spec)
        await until(lambda: bool(warm._starts))
        claiming = asyncio.create_task(expected.claim())
        await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        async with await kept.claim() as sandbox:
            assert (await sandbox.bash("echo hi", 10)).output == "hi\n"
    await until(lambda: not first_processes())


async def test_a_claim_that_is_cancelled_while_it_looks_at_the_image_ends_its_sandbox(
    sandboxes: SandboxFactory, spec: SandboxSpec, open_folder: Path
) -> None:
    image = folder_image(open_folder)
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, replace(spec, image=parse_image(str(image))))
        claiming = asyncio.create_task(expected.claim())
        await asyncio.sleep(0)
        claiming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        await until(lambda: not first_processes())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_one_that_died_before_its_claim_is_replaced(
    sandboxes: SandboxFactory, spec: SandboxSpec, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_sandboxes, "CLAIM_SECONDS", 0.2)
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, spec)
        for one in first_processes():
            os.kill(one.pid, number)
        async with await expected.claim() as sandbox:
            assert (await sandbox.bash("echo hi", 10)).output == "hi\n"
        assert warm.counts.warm == 0
        for one in first_processes():
            os.kill(one.pid, signal.SIGCONT)


async def test_a_claim_gets_no_sandbox_of_another_shape(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, spec)
        others = [
            replace(spec, limits=replace(spec.limits, processes=32)),
            replace(spec, env={"GREETING": "hello"}),
        ]
        for other in others:
            await (await warm.claim(other)).close()
        await (await warm.claim(spec, ["ipython"])).close()
        assert (warm.counts.warm, warm.counts.cold) == (0, 3)
        await (await expected.claim()).close()
        assert warm.counts.warm == 1


async def test_a_folder_that_was_replaced_gives_a_new_sandbox(
    sandboxes: SandboxFactory, spec: SandboxSpec, open_folder: Path
) -> None:
    image = folder_image(open_folder)
    (image / "etc" / "mark").write_text("old")
    of_image = replace(spec, image=parse_image(str(image)))
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, of_image)
        assert warm.counts.ready == 1
        shutil.copytree(image, open_folder / "next", symlinks=True)
        image.rename(open_folder / "former")
        (open_folder / "next").rename(image)
        (image / "etc" / "mark").write_text("new")
        async with await expected.claim() as sandbox:
            assert await sandbox.read_file("/etc/mark", 100) == b"new"


async def test_rollouts_get_the_places_of_warm_ones(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    other = replace(spec, limits=replace(spec.limits, processes=32))
    async with warmed(sandboxes, places=3) as warm, contextlib.AsyncExitStack() as stack:
        expected = [warm.expect(spec) for _ in range(5)]
        await until(lambda: warm.counts.ready == 3)
        for left in (2, 1, 0):
            await stack.enter_async_context(await warm.claim(other))
            await until(lambda left=left: warm.counts.ready == left)  # type: ignore[misc]
            assert len([one for one in first_processes() if one.runs]) <= 4  # one may be ending
        await stack.aclose()
        await until(lambda: warm.counts.ready == 3)
        warm.drain()
        for one in expected:
            one.drop()
        await until(lambda: warm.counts.ready == 0)


async def test_the_greatest_number(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with warmed(sandboxes, most=2) as warm:
        expected = [warm.expect(spec) for _ in range(5)]
        await until(lambda: warm.counts.ready == 2)
        await (await expected[0].claim()).close()
        await until(lambda: warm.counts.ready == 2)
        assert not warm._starts


async def test_none_if_turned_off(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    async with warmed(sandboxes, most=0) as warm:
        expected = warm.expect(spec)
        for _ in range(3):
            await (await warm.claim(spec)).close()
        await (await expected.claim()).close()
        assert (warm.counts.warm, warm.counts.cold) == (0, 4)
        assert not first_processes()


async def test_a_failed_round_is_followed_by_another(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    answers = [OSError("no more file descriptors"), OSError("still none")]

    def free() -> int:
        if answers:
            raise answers.pop()
        return PLENTY

    warm = WarmSandboxes(sandboxes, 4, 10, free=free)
    await one_expected(warm, spec)
    assert not answers
    await warm.close()


async def test_they_end_when_memory_is_short(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    free = PLENTY
    warm = WarmSandboxes(sandboxes, 4, 10, free=lambda: free)
    warm.expect(spec)
    await until(lambda: warm.counts.ready == 1)
    free = 1 << 20
    await until(lambda: not first_processes())
    await (await warm.claim(spec)).close()
    assert warm.counts.ready == 0
    await warm.close()


async def test_a_drain_keeps_only_those_for_rollouts_in_flight(sandboxes: SandboxFactory, spec: SandboxSpec) -> None:
    other = replace(spec, limits=replace(spec.limits, processes=32))
    async with warmed(sandboxes) as warm:
        for _ in range(2):
            await (await warm.claim(other)).close()
        expected = warm.expect(spec)
        await until(lambda: warm.counts.ready >= 2)
        warm.drain()
        await until(lambda: warm.counts.ready == 1)
        await (await expected.claim()).close()
        assert warm.counts.warm == 1
        await until(lambda: not first_processes())


async def test_one_that_cannot_start_is_left_to_the_claim(
    sandboxes: SandboxFactory, spec: SandboxSpec, open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with warmed(sandboxes) as warm:
        expected = warm.expect(replace(spec, image=parse_image(str(open_folder / "missing"))))
        await until(lambda: "no warm sandbox of" in caplog.text)
        with pytest.raises(ImageUnavailable):
            await expected.claim()


async def test_an_image_without_a_shell(sandboxes: SandboxFactory, spec: SandboxSpec, empty_image: Path) -> None:
    async with warmed(sandboxes) as warm:
        expected = await one_expected(warm, replace(spec, image=parse_image(str(empty_image))))
        async with await expected.claim() as sandbox:
            assert await sandbox.read_file("/etc/mark", 100) == b"from the image\n"
        assert warm.counts.warm == 1


OWNER = """
import asyncio, sys
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.warm_sandboxes import WarmSandboxes

async def main():
    warm = WarmSandboxes(SandboxFactory(find_runtime(sys.argv[1])), 2, 10, free=lambda: 1 << 40)
    for _ in range(2):
        warm.expect(SandboxSpec(None, Limits(1, 1 << 30, 64 << 20)), ["bash", "ipython"])
    while warm.counts.ready < 2:
        await asyncio.sleep(0.01)
    print("ready", flush=True)
    await asyncio.sleep(1000)

asyncio.run(main())
"""


async def test_the_owner_is_killed(runtime: Runtime) -> None:
    argv = [sys.executable, "-c", OWNER, runtime.name]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == b"ready\n"
            family = descendants(process.pid)
            assert sum(one.pid_inside == 1 for one in family) == 2
        finally:
            process.kill()
        await until(lambda: not any(one.runs for one in family))


@pytest.fixture(scope="module", autouse=True)
def _no_other_sandbox(sandboxes: SandboxFactory) -> None:
    """These tests look at all sandboxes of this process."""
    assert not [one for one in descendants(os.getpid()) if one.pid_inside == 1]
