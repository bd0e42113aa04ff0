"""Tool latency of other packages, as JSON. `bench.sandboxes` runs this file with their packages on PYTHONPATH.

python sandbox_peers.py CALLS STARTS [IMAGE.sif APPTAINER SCRATCH]
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable


async def timed(call: Callable[[], Awaitable[object]], calls: int) -> list[float]:
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        await call()
        seconds.append(time.perf_counter() - started)
    return seconds


async def swe_rex(calls: int) -> list[float]:
    """Calls of SWE-ReX's runtime in this process, without HTTP and without a container."""
    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())

    async def call() -> None:
        assert (await runtime.run_in_session(BashAction(command="echo hi"))).output.strip() == "hi"

    seconds = await timed(call, calls)
    await runtime.close()
    return seconds


async def jupyter(calls: int) -> list[float]:
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import KernelManager

    """Calls of an IPython kernel, without a sandbox."""
    manager = KernelManager()
    manager._kernel_spec = KernelSpec(
        language="python", argv=[sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    )
    manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    client = manager.client()
    client.start_channels()
    outputs: list[str] = []

    def hear(message: dict[str, dict[str, dict[str, str]]]) -> None:
        if "data" in message["content"]:
            outputs.append(message["content"]["data"]["text/plain"])

    async def call() -> None:
        outputs.clear()
        client.execute_interactive("1+1", timeout=10, output_hook=hear)
        assert outputs == ["2"]

    try:
        client.wait_for_ready(timeout=60)
        return (await timed(call, calls + 5))[5:]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


async def hpc_sandbox(calls: int, starts: int, image: str, program: str, scratch: str) -> dict[str, list[float]]:
    from hpc_sandbox import Mount, SandboxSpec, SingularityProvider

    provider = SingularityProvider(binary=program, scratch_root=scratch)
    spec = SandboxSpec(image=image, workdir="/tmp", mounts=[Mount("/usr", "/usr", read_only=True)])
    found: dict[str, list[float]] = {"start": [], "call": []}
    for first in [True, *[False] * starts]:
        started = time.perf_counter()
        async with await provider.start(spec) as sandbox:

            async def call() -> None:
                assert (await sandbox.exec("echo hi", timeout_s=60)).stdout == "hi\n"

            await call()
            if first:  # it unpacks the image
                found["call"] = await timed(call, calls)
            else:
                found["start"].append(time.perf_counter() - started)
    await provider.wait_for_deletions()
    return found


async def main() -> None:
    calls, starts = int(sys.argv[1]), int(sys.argv[2])
    found = {"swe-rex": await swe_rex(calls), "jupyter_client": await jupyter(10 * calls)}
    if len(sys.argv) > 3:
        found |= {
            f"hpc-sandbox {key}": value for key, value in (await hpc_sandbox(calls, starts, *sys.argv[3:])).items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    asyncio.run(main())
