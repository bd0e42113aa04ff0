"""GPUs counted out to sandboxes. This machine needs no GPU: the device nodes are files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rollyard.core.errors import SandboxStartFailed
from rollyard.sandbox import gpus, sandbox_factory
from rollyard.sandbox.base import Limits, Runtime, SandboxSpec
from rollyard.sandbox.gpus import Gpu, GpuCounter, allocated_gpus, node_binds, visible_gpus
from rollyard.sandbox.sandbox_factory import SandboxFactory

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def nodes(open_folder: Path) -> Path:
    """Stands for /dev on a node with four GPUs."""
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (open_folder / name).write_text(f"{name}\n")
    return open_folder


async def test_which_gpus_an_allocation_has(nodes: Path) -> None:
    def found(**environ: str) -> list[tuple[str, str | None]]:
        return [(gpu.name, gpu.node and gpu.node.name) for gpu in allocated_gpus(environ, nodes)]

    assert found() == [(str(n), f"nvidia{n}") for n in range(4)]
    assert found(CUDA_VISIBLE_DEVICES="1,3") == [("1", "nvidia1"), ("3", "nvidia3")]
    assert found(CUDA_VISIBLE_DEVICES="0,1", SLURM_JOB_GPUS="2,3") == [("0", "nvidia2"), ("1", "nvidia3")]
    assert found(CUDA_VISIBLE_DEVICES="") == []
    assert found(CUDA_VISIBLE_DEVICES="GPU-8a", SLURM_JOB_GPUS="gpu:1") == [("GPU-8a", None)]
    assert found(CUDA_VISIBLE_DEVICES="MIG-1c,MIG-2d") == [("MIG-1c", None), ("MIG-2d", None)]
    for nothing in ("NoDevFiles", "-1", "none"):
        assert found(CUDA_VISIBLE_DEVICES=nothing) == [], "no GPU, and not a GPU of this name"
    assert found(CUDA_VISIBLE_DEVICES="3,-1,1") == [("3", "nvidia3")], "CUDA stops at the first name that is no GPU"
    assert allocated_gpus({}, nodes / "empty") == []


async def test_a_gpu_is_in_one_sandbox_at_a_time() -> None:
    counter = GpuCounter([Gpu(str(n), None) for n in range(3)])
    first, second = await counter.take(2), await counter.take(1)
    assert [gpu.name for gpu in first.gpus] == ["0", "1"]
    assert [gpu.name for gpu in second.gpus] == ["2"]
    waiting = asyncio.create_task(counter.take(2))
    await asyncio.sleep(0)
    second.release()
    second.release()
    await asyncio.sleep(0)
    assert not waiting.done()
    first.release()
    assert len({gpu.name for gpu in (await waiting).gpus}) == 2


async def test_too_few_gpus_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "WAIT_SECONDS", 0.05)
    counter = GpuCounter([Gpu("0", None)])
    with pytest.raises(SandboxStartFailed, match=r"needs 2 GPUs .*has 1: raise `allocation.gpusPerNode`"):
        await counter.take(2)
    await counter.take(1)
    with pytest.raises(SandboxStartFailed, match="0 of 1 GPUs are free"):
        await counter.take(1)


async def test_device_nodes_of_these_gpus_alone(nodes: Path) -> None:
    one, odd = Gpu("0", nodes / "nvidia2"), Gpu("GPU-8a", None)
    assert [place for _, place in node_binds([one])] == ["/dev/nvidia2", "/dev/nvidiactl", "/dev/nvidia-uvm"]
    assert visible_gpus([one]) == "0"
    assert len(node_binds([odd], nodes)) == 6
    assert visible_gpus([odd]) == "GPU-8a"
    assert node_binds([]) == []


async def test_a_sandbox_with_a_gpu(runtime: Runtime, nodes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [Gpu(str(n), nodes / f"nvidia{n + 2}") for n in range(2)]
    monkeypatch.setattr(sandbox_factory, "allocated_gpus", lambda: found)
    spec = SandboxSpec(None, Limits(1, 1 << 30, 64 << 20), gpus=1)
    look = "ls -d /dev/nvidia[0-9]* 2> /tmp/e; cat /dev/nvidia[0-9]*; echo $CUDA_VISIBLE_DEVICES; ulimit -v"
    async with SandboxFactory(runtime) as factory:
        async with await factory.start(spec) as first, await factory.start(spec) as second:
            seen = [(await box.bash(look, 10)).output for box in (first, second)]
            plain = SandboxSpec(None, Limits(1, 1 << 30, 64 << 20))
            async with await factory.start(plain) as without:
                said = (await without.bash("ls /dev/nvidia*; echo [$CUDA_VISIBLE_DEVICES]; ulimit -v", 10)).output
        async with await factory.start(SandboxSpec(None, Limits(1, 1 << 30, 64 << 20), gpus=2)) as both:
            names = (await both.bash("echo $CUDA_VISIBLE_DEVICES", 10)).output
    assert said.splitlines()[-2:] == ["[]", str(1 << 20)]
    assert names == "0,1\n"
    assert seen == [f"/dev/nvidia{n}\nnvidia{n}\n0\nunlimited\n" for n in (2, 3)]
