"""A bridge as a process of its own, which a test may kill."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

import aiohttp

from tests.support.yard import ROOT, Yard


class BridgeProcess:
    """An async context manager that serves while it is open."""

    def __init__(self, yard: Yard, *words: str, listens: bool = True, **env: str) -> None:
        """`words`: the command's words after `rollyard bridge`. `listens`: whether it takes `--listen`."""
        self._yard, self._words, self._listens, self._env = yard, words, listens, env
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    async def __aenter__(self) -> Self:
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=300))
        await asyncio.to_thread(self.start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.http.close()
        await asyncio.to_thread(self.kill, signal.SIGTERM)

    def start(self, listen: str = "127.0.0.1:0") -> None:
        """Start the process, and wait until it serves."""
        command = [sys.executable, "-m", "rollyard.cli.main", "bridge", *self._words]
        command += ["--listen", listen] if self._listens else []
        env = {**os.environ, **self._env, "HOME": str(self._yard.folder)}
        env.pop("ROLLYARD_KUBECONFIG", None)
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        self.url = found[0]

    def kill(self, number: int = signal.SIGKILL) -> int:
        """End the process; return its exit code."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.stdout.close()
        return self._process.wait(60)

    def restart(self) -> None:
        """Kill the process, and start a new one at the same address."""
        self.kill()
        self.start(self.url.removeprefix("http://"))

    async def post(self, path: str, body: Any) -> Any:
        async with self.http.post(f"{self.url}{path}", json=body) as answer:
            assert answer.status == 200, await answer.text()
            return await answer.json()
