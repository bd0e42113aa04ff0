"""What tests of several packages start from."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

ROOT = Path(__file__).parents[1]

# Where people work Python keeps what it compiles, beside the sources.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """A small policy in Hugging Face layout."""
    return Path(os.environ.get("ROLLYARD_TEST_MODEL", ROOT / "examples/tiny_policy/model"))


@dataclass
class EngineProcess:
    """A running embedded engine that serves a model as `policy`."""

    process: subprocess.Popen[bytes]
    socket: Path

    def session(self) -> aiohttp.ClientSession:
        """Every request of it goes to this engine; the URL's host is of no account."""
        return aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(str(self.socket), limit=0))


StartEngine = Callable[..., EngineProcess]


@pytest.fixture(scope="session")
def start_engine(model_dir: Path) -> Iterator[StartEngine]:
    """start_engine(*options, model=...): an engine that answers; ended with the test run at the latest."""
    started: list[EngineProcess] = []
    with tempfile.TemporaryDirectory() as folder:

        def start(*options: str, model: Path = model_dir) -> EngineProcess:
            socket = Path(folder, f"engine{len(started)}")
            command = [sys.executable, "-m", "rollyard.engines.embedded", "--model", str(model)]
            process = subprocess.Popen([*command, "--served-name", "policy", "--uds", str(socket), *options], cwd=ROOT)
            started.append(EngineProcess(process, socket))
            deadline = time.monotonic() + 120
            while not socket.exists():
                assert process.poll() is None, "the engine ended before it served"
                assert time.monotonic() < deadline, "the engine does not serve"
                time.sleep(0.01)
            return started[-1]

        yield start
        for engine in started:
            engine.process.terminate()
        for engine in started:
            engine.process.wait(60)
