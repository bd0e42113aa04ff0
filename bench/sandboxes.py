"""Sandboxes on this machine, each runtime beside its own bare start and beside other packages.

    python -m bench.sandboxes [--calls 300] [--starts 20] [--at-once 50] [--waves 0]

- Latency of a tool call from this process into a sandbox and back, beside SWE-ReX and hpc-sandbox (their own packages from
  PyPI, in a folder of their own), a tmux loop, and an IPython kernel through jupyter_client over ZMQ.
- Cold start to the first answer of bash, beside the bare runtime, which runs `python3 -c pass` with the same isolation and
  the same image. The bare start of bubblewrap has no limit on the sum of the files.
- The claim of a warm sandbox to the first answer of bash, beside the same.
- A number of sandboxes at once, beside as many bare starts; and the memory of each (PSS of all its processes).
- `--waves N`: N sandboxes in waves of 25, and what stays.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.host.sandbox_account import sandbox_account
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.apptainer import Apptainer
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT, find_runtime
from rollyard.sandbox.images import default_root
from rollyard.sandbox.memory_guard.process_memory import descendants
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.sandbox.warm_sandboxes import WarmSandboxes

LIMITS = Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=256 << 20)
SPEC = SandboxSpec(None, LIMITS)
PEER_CALLS = 30
"""Number of calls of what takes tens of milliseconds a call."""
PEERS = ("swe-rex==1.4.0", "hpc-sandbox==0.5.1", "ipykernel>=6", "jupyter_client>=8")
WAVE = 25
AT_ONCE_ROUNDS = 5
"""Number of times that many sandboxes are started at once, in turn with bare starts. The medians count."""


def line(name: str, seconds: list[float], baseline: list[float] | None = None) -> None:
    """Print median, p95, and the ratio of the medians."""
    ordered = sorted(seconds)
    p95 = ordered[int(0.95 * (len(ordered) - 1))]
    median = statistics.median(ordered)
    ratio = f"{median / statistics.median(baseline):9.2f}x" if baseline else ""
    print(f"  {name:<46}{len(ordered):>5}{median * 1000:>11.2f}{p95 * 1000:>10.2f}{ratio}", flush=True)


def head(title: str) -> None:
    print(f"\n{title}\n  {'':<46}{'n':>5}{'median ms':>11}{'p95 ms':>10}{'ratio':>10}")


async def timed(call: Callable[[], Awaitable[None]], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return seconds


# tool calls


async def resident(runtime: Runtime, calls: int) -> tuple[list[float], list[float]]:
    async with SandboxFactory(runtime) as sandboxes, await sandboxes.start(SPEC) as sandbox:

        async def bash() -> None:
            assert (await sandbox.bash("echo hi", 10)).output == "hi\n"

        async def ipython() -> None:
            assert (await sandbox.ipython("1+1", 10)).output == "2\n"

        await sandbox.prepare(["bash", "ipython"])
        await timed(bash, 20)
        await timed(ipython, 20)
        return await timed(bash, calls), await timed(ipython, calls)


async def tmux() -> tuple[list[float], list[float]]:
    """Loops of tmux commands on the host, without a sandbox and without pauses.

    The first waits until the command says that it has ended, as agents' tmux tools do, and reads the screen. The second
    reads the screen until it shows what it looks for, so it serves only where the output is known.
    """
    folder = tempfile.mkdtemp()
    base = ["tmux", "-f", "/dev/null", "-S", f"{folder}/socket"]
    numbers = itertools.count(1000)

    def run(*words: str) -> str:
        return subprocess.run([*base, *words], capture_output=True, text=True, check=True).stdout

    async def to_the_end() -> None:
        mark = f"hi{next(numbers)}"
        run("send-keys", f"echo {mark}; tmux wait-for -S ended", "Enter")
        run("wait-for", "ended")
        assert mark in run("capture-pane", "-p").splitlines()

    async def to_the_output() -> None:
        mark = f"hi{next(numbers)}"
        run("send-keys", f"echo {mark}", "Enter")
        while mark not in run("capture-pane", "-p").splitlines():
            pass

    try:
        run("new-session", "-d", "-x", "160", "-y", "50", "bash --norc --noprofile")
        await timed(to_the_end, 5)
        return await timed(to_the_end, PEER_CALLS), await timed(to_the_output, PEER_CALLS)
    finally:
        subprocess.run([*base, "kill-server"], check=False)  # noqa: ASYNC221 - nothing else runs
        shutil.rmtree(folder)


def peers(apptainer: Apptainer | None, starts: int) -> dict[str, list[float]]:
    """Return the seconds of the other packages' calls and starts. They run as the account of our sandboxes."""
    account = sandbox_account()
    packages = build_once(node_cache() / "bench-peers-2", _install)
    folder = Path(tempfile.mkdtemp())
    try:
        os.chown(folder, account.uid, account.gid)
        shutil.copy(Path(__file__).with_name("sandbox_peers.py"), folder)
        python = shutil.which("python3", path="/usr/bin") or sys.executable
        argv = [python, "sandbox_peers.py", str(PEER_CALLS), str(starts)]
        env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(folder), "PYTHONPATH": str(packages)}
        if apptainer is not None:
            image = folder / "image.sif"
            build = [apptainer.program, "-s", "build", str(image), str(default_root(node_cache()).layers[0])]
            subprocess.run(build, env=env, cwd=folder, check=True, **account.credentials)
            argv += [str(image), apptainer.program, str(folder / "scratch")]
        done = subprocess.run(argv, env=env, cwd=folder, stdout=subprocess.PIPE, check=True, **account.credentials)
        found: dict[str, list[float]] = json.loads(done.stdout)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _install(folder: Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "install", "-qq", "--target", str(folder), *PEERS], check=True)
    subprocess.run(["chmod", "-R", "a+rX", str(folder)], check=True)


# starts


def bare(runtime: Runtime) -> list[str]:
    """Return the command of the runtime alone, with its own writable layer and devices, which runs `python3 -c pass`."""
    cache = node_cache()
    root = default_root(cache)
    argv = runtime.command(root, LIMITS, own_python(cache), ["/usr/bin/python3", "-c", "pass"]).argv
    scratch, text = f"{cache}/scratch-1", "\n".join(argv)
    overlay = f"--overlay-src\n{root.layers[0]}\n--tmp-overlay\n/"
    own = {
        f"--bind\n{scratch}/root\n/\n": f"{overlay}\n",
        f"--dev-bind\n{scratch}/dev\n/dev\n": "--dev\n/dev\n",
        f"--bind\n{scratch}/dev:/dev\n": "",
        "--writable\n": "--writable-tmpfs\n",
        "--no-mount\ndev,": "--no-mount\n",
        f"{scratch}/root": str(root.layers[0]),
    }
    for ours, theirs in own.items():
        text = text.replace(ours, theirs)
    return text.split("\n")


async def run_bare(argv: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *argv, env=LAUNCH_ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, **sandbox_account().credentials
    )
    assert await process.wait() == 0


async def cold(sandboxes: SandboxFactory, argv: list[str], starts: int) -> tuple[list[float], list[float]]:
    """Return the seconds of our starts and of bare starts, taken in turn."""
    ours, theirs = [], []
    for _ in range(starts + 1):
        started = time.perf_counter()
        async with await sandboxes.start(SPEC) as sandbox:
            assert (await sandbox.bash("echo hi", 60)).output == "hi\n"
            ours.append(time.perf_counter() - started)
        theirs += await timed(lambda: run_bare(argv), 1)
    return ours[1:], theirs[1:]


async def claims(sandboxes: SandboxFactory, count: int, tool: str = "bash") -> list[float]:
    """Return the seconds from a claim to the first answer of a tool in a warm sandbox."""
    warm, seconds = WarmSandboxes(sandboxes, most=1, places=2), []
    try:
        for _ in range(count + 1):
            expected = warm.expect(SPEC, [tool])
            while not warm.counts.ready:
                await asyncio.sleep(0.01)
            started = time.perf_counter()
            async with await expected.claim() as sandbox:
                if tool == "bash":
                    assert (await sandbox.bash("echo hi", 60)).output == "hi\n"
                else:
                    assert (await sandbox.ipython("1+1", 60)).output == "2\n"
                seconds.append(time.perf_counter() - started)
    finally:
        await warm.close()
    assert warm.counts.warm == count + 1
    return seconds[1:]


async def at_once(sandboxes: SandboxFactory, argv: list[str], count: int) -> tuple[float, float, float]:
    """Return the seconds of our starts, the seconds of the bare starts, and the MiB of one sandbox."""
    started = time.perf_counter()
    await asyncio.gather(*(run_bare(argv) for _ in range(count)))
    theirs, before = time.perf_counter() - started, set(descendants(os.getpid()))
    started = time.perf_counter()
    opened = await asyncio.gather(*(sandboxes.start(SPEC) for _ in range(count)))
    await asyncio.gather(*(sandbox.bash("echo hi", 60) for sandbox in opened))
    ours = time.perf_counter() - started
    used = sum(pss(pid) for pid in set(descendants(os.getpid())) - before)
    await asyncio.gather(*(sandbox.close() for sandbox in opened))
    return ours, theirs, used / count / (1 << 20)


def pss(pid: int) -> int:
    try:
        words = Path(f"/proc/{pid}/smaps_rollup").read_text().split()
    except OSError:
        return 0
    return int(words[words.index("Pss:") + 1]) << 10


# waves


def count_files(folder: str) -> int:
    return sum(1 for _ in os.scandir(folder))


def state() -> dict[str, int]:
    """Return what a sandbox could leave behind, and the resident KiB of this process."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 10
    return {
        "processes": len(descendants(os.getpid())),
        "mounts": Path("/proc/self/mountinfo").read_text().count("\n"),
        "descriptors": count_files("/proc/self/fd"),
        "sockets": sum("socket:" in os.readlink(entry) for entry in _descriptors()),
        "threads": count_files("/proc/self/task"),
        "in the cache": count_files(str(node_cache())),
        "in the temporary folder": count_files(tempfile.gettempdir()),
        "resident KiB": resident,
    }


def _descriptors() -> Iterable[str]:
    for name in os.listdir("/proc/self/fd"):
        if os.path.islink(path := f"/proc/self/fd/{name}"):
            yield path


async def waves(sandboxes: SandboxFactory, count: int) -> None:
    shown = max(1, count // WAVE // 5)
    for number in range(count // WAVE + 1):
        opened = await asyncio.gather(*(sandboxes.start(SPEC) for _ in range(WAVE)))
        await asyncio.gather(*(sandbox.bash("echo hi > /tmp/x; sleep 1000 &", 60) for sandbox in opened))
        await asyncio.gather(*(sandbox.close() for sandbox in opened))
        del opened
        if number % shown == 0:
            print(f"  after {(number + 1) * WAVE:>5} sandboxes: {state()}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--waves", type=int, default=0)
    chosen = parser.parse_args()
    runtimes: list[Runtime] = []
    names: tuple[RuntimeName, ...] = ("apptainer", "bubblewrap")
    for name in names:
        try:
            runtimes.append(find_runtime(name))
        except SandboxStartFailed as error:
            print(f"left out: {name}: {error}")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")

    apptainer = next((runtime for runtime in runtimes if isinstance(runtime, Apptainer)), None)
    peer = peers(apptainer, chosen.starts)
    called = {runtime.name: await resident(runtime, chosen.calls) for runtime in runtimes}
    bash = next(iter(called.values()))[0]
    head(f"echo hi in bash (ratio: beside {runtimes[0].name})")
    for name, (seconds, _) in called.items():
        line(name, seconds)
    line("SWE-ReX, in process, no sandbox", peer["swe-rex"], bash)
    if apptainer is not None:
        line("hpc-sandbox", peer["hpc-sandbox call"], bash)
    if shutil.which("tmux"):
        to_the_end, to_the_output = await tmux()
        line("tmux loop to the command's end, no sandbox", to_the_end, bash)
        line("tmux loop to a known output, no sandbox", to_the_output, bash)
    head(f"1+1 in IPython (ratio: beside {runtimes[0].name})")
    for name, (_, seconds) in called.items():
        line(name, seconds)
    line("jupyter_client over ZMQ, no sandbox", peer["jupyter_client"], next(iter(called.values()))[1])

    for runtime in runtimes:
        argv = bare(runtime)
        async with SandboxFactory(runtime) as sandboxes:
            head(f"cold start, {runtime.name} (ratio: beside the bare start)")
            ours, theirs = await cold(sandboxes, argv, chosen.starts)
            line("to the first answer of bash", ours, theirs)
            line("bare: python3 -c pass", theirs, theirs)
            line("warm: from the claim to the first answer", await claims(sandboxes, chosen.starts), theirs)
            line("warm: to the first 1+1 in IPython", await claims(sandboxes, chosen.starts, "ipython"), theirs)
            if runtime is apptainer:
                line("hpc-sandbox, to the first answer", peer["hpc-sandbox start"], theirs)
            rounds = [await at_once(sandboxes, argv, chosen.at_once) for _ in range(AT_ONCE_ROUNDS)]
            together, alone, memory = (statistics.median(figures) for figures in zip(*rounds, strict=True))
            ratios = sorted(ours / theirs for ours, theirs, _ in rounds)
            ratio = f"ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            print(f"  {chosen.at_once} at once: {together:.2f} s, bare {alone:.2f} s, {ratio}")
            print(f"  memory of one sandbox: {memory:.1f} MiB")
            if chosen.waves:
                await waves(sandboxes, chosen.waves)


if __name__ == "__main__":
    asyncio.run(main())
