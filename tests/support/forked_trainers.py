"""Programs that train with TRL, each in processes of its own: forks of one process that has imported TRL.

TRL's import takes 14 s of CPU time. `python -m tests.support.forked_trainers` reads one order a line and answers
each with a line of exit codes.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FORK = multiprocessing.get_context("fork")
RUN_SECONDS = 3600
SILENT = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}


class ForkedTrainers:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, module: str, *words: object, home: Path, processes: int = 1, code: int = 0) -> str:
        """Run `python -m module words`, several as torchrun does. Return what they print, or fail with its end if they end
        with another exit code."""
        order = {"module": module, "words": [str(word) for word in words], "home": str(home), "processes": processes}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        codes, text = self._process.stdout.readline(), (home / "trainer.txt").read_text()
        assert codes, "the process that imports TRL has ended"
        assert json.loads(codes) == [code] * processes, text[-4000:]
        return text


@contextmanager
def forked_trainers() -> Iterator[ForkedTrainers]:
    command = [sys.executable, "-m", "tests.support.forked_trainers"]
    # as conftest.py sets it: the servers and jobs that a trainer starts find no torch
    env = {**os.environ, **SILENT, "PYTHONPATH": os.pathsep.join([os.environ["PYTHONPATH"], str(ROOT)])}
    with subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield ForkedTrainers(process)
        assert process.stdin is not None
        process.stdin.close()  # it ends then


def serve() -> None:
    from trl import GRPOTrainer  # noqa: F401
    from trl.experimental.async_grpo import AsyncGRPOTrainer  # noqa: F401

    import rollyard.trainers.trl  # noqa: F401  # with TRL, torch and transformers

    for line in sys.stdin:
        order = json.loads(line)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks = [FORK.Process(target=_run, args=(order, rank, port)) for rank in range(order["processes"])]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        print(json.dumps([process.exitcode for process in ranks]), flush=True)


def _run(order: Mapping[str, Any], rank: int, port: int) -> None:
    """Run the program. Its output goes into `trainer.txt` of its home folder."""
    signal.alarm(RUN_SECONDS)
    _become(order["home"], rank, order["processes"], port)
    sys.argv[1:] = order["words"]
    runpy.run_module(order["module"], run_name="__main__", alter_sys=True)


def _become(home: str, rank: int, processes: int, port: int) -> None:
    out = os.open(Path(home, "trainer.txt"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ["HOME"] = os.environ["TMPDIR"] = tempfile.tempdir = home
    if processes > 1:  # as torchrun says it
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        os.environ.update({name: str(value) for name, value in {**where, **ranks}.items()})


if __name__ == "__main__":
    serve()
