"""Set-up and fixtures for the tests of several packages."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import hypothesis
import pytest
from xdist.scheduler import LoadFileScheduling

from rollyard.host.removed_folder import remove_folder
from tests.support.compatibility import Compatibility
from tests.support.forked_trainers import ForkedTrainers, forked_trainers
from tests.support.lazy_module import import_lazy_modules

ROOT = Path(__file__).parents[1]

# Python keeps its compiled files beside the sources, as on users' machines.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Rollyard's processes that a test starts find no torch. vLLM finds a plug-in that halves its start.
_SUPPORT = Path(__file__).parent / "support"
os.environ["PYTHONPATH"] = os.pathsep.join(
    [*map(str, (_SUPPORT / "without_torch", _SUPPORT / "vllm_plugin")), *filter(None, [os.environ.get("PYTHONPATH")])]
)
# Threads of torch and numpy busy-wait for each other, on cores that other tests need.
os.environ["OMP_NUM_THREADS"] = "1"

# Without this each process that imports aiohttp reads the system's file of CAs, in 0.06 s of CPU time. OpenSSL still finds
# these CAs in the system's folder. The file has one certificate, because OpenAI's and Anthropic's clients refuse one with
# none.
os.environ["SSL_CERT_FILE"] = str(_SUPPORT / "no_ca.pem")

# vLLM keeps what it knows of models' classes, and Apptainer its settings, elsewhere than in the user's home folder; torch
# what it compiles elsewhere than in /tmp.
_CACHE = Path(os.environ.get("ROLLYARD_CACHE") or Path.home() / ".cache" / "rollyard")
os.environ.setdefault("VLLM_CACHE_ROOT", str(_CACHE / "vllm"))
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_CACHE / "torchinductor"))
os.environ.setdefault("APPTAINER_CONFIGDIR", str(_CACHE / "apptainer-settings"))

# On a busy machine an example of a millisecond may take a second.
hypothesis.settings.register_profile("busy", deadline=None)
hypothesis.settings.load_profile("busy")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the search for garbage, which would take a third of the time. What exists then is never searched."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function):
        import_lazy_modules(item.module)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run modules marked `slow` first, the longest before the others, so that none starts when the rest are done."""

    def seconds(item: pytest.Item) -> float:
        mark = item.get_closest_marker("slow")
        return float(mark.args[0]) if mark else 0.0

    items.sort(key=seconds, reverse=True)


SHARING = (
    "tests/bridges",
    "tests/page_proxy",
    "tests/e2e/slurm_faults",
    "tests/e2e/slurm_accounts",
    "tests/e2e/one_yard",
)


TOGETHER = {
    "tests/examples/test_grpo.py": "tests/trainers/test_trl_runs.py",
    **dict.fromkeys(
        ("tests/trainers/test_trl.py", "tests/trainers/test_failed_members.py", "tests/engine/embedded/test_model.py"),
        "tests/trainers/test_stream_worker.py",
    ),
}
"""Module -> module on whose worker it runs. test_grpo shares the process that has imported TRL. The others import torch and
the models of transformers into their worker, in six seconds of CPU time."""


class ByModule(LoadFileScheduling):
    """Gives whole modules to workers, in order. Some modules form a group.

    Memory suffices for one module with a vLLM at a time. The modules of some folders share one yard, others an import.
    """

    def _split_scope(self, nodeid: str) -> str:
        module = str(super()._split_scope(nodeid))
        module = TOGETHER.get(module, module)
        return next((group for group in ("vllm", *SHARING) if group in module), module)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule | None:
    return ByModule(config, log) if config.option.dist == "loadfile" else None


LEFT_OUT = {
    "not long": "left out: tests marked long; scripts/test --long runs them",
    "not long and not heavy": "left out by --quick: tests marked heavy (Apptainer; vLLM; Slurm 26.05 and pyslurm; Chromium), "
    "setting up Slurm, and long (soaks)",
}
"""Expression of marks, as scripts/test gives it -> what the last lines say about it."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if words := LEFT_OUT.get(terminalreporter.config.option.markexpr):
        terminalreporter.write_line(words)


@pytest.fixture(scope="session")
def trainers() -> Iterator[ForkedTrainers]:
    with forked_trainers() as found:
        yield found


@pytest.fixture
def compatibility(request: pytest.FixtureRequest) -> Compatibility:
    """Comparisons for a row of docs/compatibility.md."""
    return Compatibility(request.node.nodeid)


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
        """Make a session whose every request goes to this engine; the URL's host is ignored."""
        return aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(str(self.socket), limit=0))


StartEngine = Callable[..., EngineProcess]


def _listens(path: Path) -> bool:
    """Whether a connection succeeds: the file is there a moment earlier."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


@pytest.fixture(scope="session")
def start_engine(model_dir: Path) -> Iterator[StartEngine]:
    """start_engine(*options, model=...): an engine that answers; it is ended with the test run at the latest."""
    started: list[EngineProcess] = []
    with tempfile.TemporaryDirectory() as folder:

        def start(*options: str, model: Path = model_dir) -> EngineProcess:
            uds = Path(folder, f"engine{len(started)}")
            command = [sys.executable, "-m", "rollyard.engine.embedded", "--model", str(model)]
            process = subprocess.Popen([*command, "--served-name", "policy", "--uds", str(uds), *options], cwd=ROOT)
            started.append(EngineProcess(process, uds))
            deadline = time.monotonic() + 120
            while not _listens(uds):
                assert process.poll() is None, "the engine ended before it served"
                assert time.monotonic() < deadline, "the engine does not serve"
                time.sleep(0.01)
            return started[-1]

        yield start
        for engine in started:
            engine.process.terminate()
        for engine in started:
            engine.process.wait(300)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that the sandboxes' account can reach, unlike pytest's own folders, which only their owner can."""
    umask = os.umask(0o022)  # a server of an earlier test in this process closed its files to others
    folder = Path(tempfile.mkdtemp(prefix="rollyard-test-"))
    folder.chmod(0o755)
    yield folder
    os.umask(umask)
    remove_folder(folder)  # a failed test may leave folders that are too deep for shutil
    assert not folder.exists()
