"""A gang: the processes of a replica that spans nodes. srun starts one process on each node. The processes find each
other through a file in the allocation's folder.

The processes start and end together. If one dies, srun ends all of them (--kill-on-bad-exit), and the pool starts a new
replica. Otherwise an engine that lacks a rank could not answer requests, but might report for a long time that it is
healthy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from pathlib import Path

from rollyard.core.errors import Unavailable
from rollyard.engine.launch.gang_rank import GangRank
from rollyard.trust.secret_files import write_secret

POLL_SECONDS = 0.5
JOIN_SECONDS = 600.0
"""Seconds that the other ranks wait for rank 0's address. srun starts the processes within seconds, but a node's prolog
may take minutes."""


class Gang:
    """The gang of this process. The meeting file is the file in which rank 0 publishes its address."""

    def __init__(self, rank: int, size: int, meeting: Path) -> None:
        self.rank, self.size = rank, size
        self._meeting_file = meeting

    @classmethod
    def of_step(cls, folder: Path) -> Gang | None:
        """Return the gang of this job step; None if the step has one process.

        The meeting file's name contains the job's id, restart count and step.
        """
        size = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1"))
        if size < 2:
            return None
        run = "-".join(os.environ.get(f"SLURM_{name}", "0") for name in ("JOB_ID", "RESTART_COUNT", "STEP_ID"))
        return cls(int(os.environ["SLURM_PROCID"]), size, folder / f"gang-{run}.json")

    def lead(self, address: str, model: str) -> GangRank:
        """Publish rank 0's address to the other ranks. Raises OSError."""
        with socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            port = int(probe.getsockname()[1])
        write_secret(self._meeting_file, json.dumps({"address": address, "port": port, "model": model}), durable=False)
        return GangRank(0, self.size, address, port, model)

    async def join(self) -> GangRank:
        """For the other ranks: wait for rank 0's address. Raises Unavailable if rank 0 does not publish it in time, or if
        the meeting file cannot be read until then."""
        failure = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(JOIN_SECONDS):
                while True:
                    try:
                        if (meeting := await asyncio.to_thread(self._read)) is not None:
                            return GangRank(self.rank, self.size, *meeting)
                        failure = ""
                    except (OSError, ValueError) as error:  # an error of the shared folder may pass
                        failure = f"; {self._meeting_file} cannot be read: {error}"
                    await asyncio.sleep(POLL_SECONDS)
        raise Unavailable(f"rank 0 of this gang has not reported its address within {JOIN_SECONDS:g} s{failure}")

    async def wait_until_left(self) -> None:
        """For the other ranks: wait until rank 0 has left the gang."""
        while True:
            with contextlib.suppress(
                OSError, ValueError
            ):  # an error of the shared folder does not mean that rank 0 has left
                if await asyncio.to_thread(self._read) is None:
                    return
            await asyncio.sleep(POLL_SECONDS)

    def leave(self) -> None:
        """For rank 0: delete the meeting file. The other ranks then end."""
        self._meeting_file.unlink(missing_ok=True)

    def _read(self) -> tuple[str, int, str] | None:
        try:
            found = json.loads(self._meeting_file.read_bytes())
        except FileNotFoundError:
            return None
        return str(found["address"]), int(found["port"]), str(found["model"])
