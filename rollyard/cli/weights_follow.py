"""`rollyard weights follow`: each new complete checkpoint of a trainer becomes an update of a pool's weights.

The server's status of the pool is the only memory: the version of a checkpoint is a prefix and the checkpoint's step, and
only steps above the last one of the pool are served. So the command may be killed at any time and started again.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from rollyard.cli.checkpoints import CheckpointFolder, TrainerCheckpoint
from rollyard.cli.options import with_client
from rollyard.client.async_client import AsyncClient
from rollyard.core.errors import Conflict, Invalid, Unavailable
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.weights import VERSION_PATTERN, Mode, WeightsOperation, WeightsStatus, WeightsUpdate

POLL_SECONDS = 0.5
STUCK_SECONDS = 60.0
"""Time without a change after which an incomplete checkpoint is reported a second time."""
UNFINISHED = ".writing-"
KEPT = 2
"""Number of served versions whose folders stay in --keep-in."""


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--pool", required=True, help="InferencePool that serves the checkpoints")
@click.option(
    "--mode",
    type=click.Choice(["Drain", "Pause", "Abort"]),
    default="Pause",
    show_default=True,
    help="running requests: Pause continues them with the new weights, Drain lets them end, Abort ends them",
)
@click.option(
    "--prefix", default="step", show_default=True, help="version of a checkpoint: this text and the checkpoint's step"
)
@click.option("--each", is_flag=True, help="serve each checkpoint in turn; without it, only the newest complete one")
@click.option("--once", is_flag=True, help="end when no complete checkpoint is left to serve")
@click.option("--marker", default="", help="file that a complete checkpoint has, such as STABLE")
@click.option(
    "--settle",
    default=1.0,
    type=click.FloatRange(min=0),
    show_default=True,
    help="seconds without a change before a checkpoint counts as complete",
)
@click.option(
    "--keep-in",
    type=click.Path(path_type=Path, file_okay=False),
    help="folder for hard links to the files of the last two served checkpoints; the trainer may then delete its own",
)
@with_client
async def follow(
    client: AsyncClient,
    namespace: str,
    folder: Path,
    pool: str,
    mode: Mode,
    prefix: str,
    each: bool,
    once: bool,
    marker: str,
    settle: float,
    keep_in: Path | None,
) -> None:
    """Serve the complete checkpoints that a trainer writes to DIR.

    DIR holds a folder for each step: global_step_N, step_N, iter_N, checkpoint-N, rollout_N, weight_vN or N.
    """
    if not re.fullmatch(VERSION_PATTERN, f"{prefix}0"):
        raise click.UsageError("--prefix: write only letters, digits and . _ : + - and start with a letter or a digit")
    keep_in = _prepared(keep_in, folder) if keep_in is not None else None
    clock = asyncio.get_running_loop().time
    seen = CheckpointFolder(folder, clock, settle=settle, marker=marker, own_config=keep_in is not None)
    run = _Follow(client, namespace, pool.rpartition("/")[2], seen, mode, Steps(prefix), each, keep_in)
    try:
        await (run.until_idle(settle) if once else run.forever())
    except asyncio.CancelledError:
        if run.under_way:
            click.echo(f"the update to {run.under_way} goes on; the same command continues from there", err=True)
        raise
    if run.failed:
        sys.exit(1)


def _prepared(keep_in: Path, folder: Path) -> Path:
    """Create the folder for hard links. Raises Invalid."""
    keep_in = keep_in.absolute()
    try:
        keep_in.mkdir(parents=True, exist_ok=True)
        if not folder.exists() or keep_in.stat().st_dev == folder.stat().st_dev:
            return keep_in
    except OSError as error:
        raise Invalid(f"--keep-in {keep_in}: {error.strerror}") from None
    raise Invalid(f"--keep-in {keep_in} must be on the same file system as {folder}, because it holds hard links")


@dataclass(frozen=True)
class Steps:
    """Versions of steps, and steps of versions."""

    prefix: str

    def version(self, step: int) -> str:
        return f"{self.prefix}{step}"

    def step(self, version: str) -> int | None:
        """Return the step; None if the version has another form."""
        number = version.removeprefix(self.prefix)
        return int(number) if version.startswith(self.prefix) and re.fullmatch("[0-9]+", number) else None

    def last(self, status: WeightsStatus) -> int:
        """Return the highest step that the pool serves or has served; -1 if there is none."""
        records = (status.current, *status.history)  # the version of the spec's model is a checksum
        names = [record.version for record in records if record is not None and record.origin == "Update"]
        return max((step for name in names if (step := self.step(name)) is not None), default=-1)


def choose(found: Sequence[TrainerCheckpoint], tried: Collection[int], *, each: bool) -> TrainerCheckpoint | None:
    """Return the complete checkpoint to serve next: the newest one, or with `each` the oldest one."""
    complete = [checkpoint for checkpoint in found if checkpoint.problem == "" and checkpoint.step not in tried]
    return (min if each else max)(complete, key=lambda checkpoint: checkpoint.step, default=None)


@dataclass
class _Follow:
    client: AsyncClient
    namespace: str
    pool: str
    folder: CheckpointFolder
    mode: Mode
    steps: Steps
    each: bool
    keep_in: Path | None
    under_way: str = ""
    """Version of the update that runs, from here or from elsewhere; empty if none runs."""
    failed: bool = False
    """Whether the last update failed."""
    tried: set[int] = field(default_factory=set)
    """Steps whose update failed or was replaced. They are tried again when their files change."""
    known: set[int] = field(default_factory=set)
    """Steps that have been seen."""
    said: set[str] = field(default_factory=set)
    """Keys of the lines that are printed once."""

    async def forever(self) -> None:
        await self._start()
        while True:
            await self._turn()
            await asyncio.sleep(POLL_SECONDS)

    async def until_idle(self, settle: float) -> None:
        """Follow until no update runs and nothing is left to serve."""
        await self._start()
        await self._turn()
        await asyncio.sleep(settle)  # the first turn has judged no checkpoint
        going = True
        while going:
            going = await self._turn()
            await asyncio.sleep(POLL_SECONDS)

    async def _start(self) -> None:
        current = (await self._status()).current
        click.echo(f"inferencepool/{self.pool} serves {current.version if current is not None else 'nothing yet'}")

    async def _turn(self) -> bool:
        """Look once, and do what is due. Return whether an update begins, runs or has just ended."""
        status = await self._status()
        last, operation = self.steps.last(status), status.operation
        found = await asyncio.to_thread(self._look, last)
        if operation is not None and operation.is_running:
            if operation.target.version != self.under_way:
                self._note_end(status)
                self._note_begin(operation)
            return True
        if self.under_way:
            self._note_end(status)
            await asyncio.to_thread(self._remove_old, status)
            return True
        await asyncio.to_thread(self._note_deleted, status)
        chosen = choose(found, self.tried, each=self.each)
        return chosen is not None and await self._begin(chosen, found)

    def _look(self, last: int) -> list[TrainerCheckpoint]:
        """Look at the folder, and print what keeps checkpoints from being served."""
        try:
            found, steps = self.folder.look(last), set(self.folder.steps())
        except Invalid as error:
            self._say_once("folder", f"waits: {error}")
            return []
        if old := sorted(step for step in steps - self.known if step <= last):
            reason = f"the pool has had {self.steps.version(last)}; name another run with --prefix"
            click.echo(f"{self._names(old)} not served again: {reason}")
        self.known |= steps
        newest = max((checkpoint.step for checkpoint in found if checkpoint.problem == ""), default=-1)
        for checkpoint in found:
            step, version = checkpoint.step, self.steps.version(checkpoint.step)
            if checkpoint.problem is None:
                self.tried.discard(step)
            elif checkpoint.problem and step < newest:
                line = f"{version} skipped: {checkpoint.problem}; {self.steps.version(newest)} is newer"
                self._say_once(f"skipped {step}", line)
            elif checkpoint.problem and checkpoint.quiet > STUCK_SECONDS:
                self._say_once(
                    f"stuck {step}", f"{version} has not changed for {STUCK_SECONDS:g} s: {checkpoint.problem}"
                )
            elif checkpoint.problem:
                self._say_once(f"waits {step}", f"{version} waits: {checkpoint.problem}")
        return found

    async def _begin(self, chosen: TrainerCheckpoint, found: Sequence[TrainerCheckpoint]) -> bool:
        version = self.steps.version(chosen.step)
        try:
            path = await self._kept(chosen, self.keep_in / version) if self.keep_in is not None else chosen.path
            source = {"adapter": str(path)} if chosen.is_adapter else {"path": str(path)}
            update = WeightsUpdate.model_validate({"version": version, "mode": self.mode, **source})
            status = await self.client.update_weights(self.namespace, self.pool, update)
        except (Conflict, OSError) as error:  # OSError: the files cannot be linked, or the trainer has deleted them
            click.echo(f"{version} failed: {error}")
            self.failed = True
            self.tried.add(chosen.step)
            return True
        except Unavailable as error:
            self._say_once("server", f"waits for the server: {error}")
            return True
        if older := [c.step for c in found if c.step < chosen.step and c.problem == "" and c.step not in self.tried]:
            click.echo(f"{self._names(older)} skipped: {version} is newer")
        if status.operation is not None:
            self._note_begin(status.operation)
        return True

    def _note_begin(self, operation: WeightsOperation) -> None:
        self.under_way = operation.target.version
        click.echo(f"{self.under_way} is being loaded from {operation.target.source}")

    def _note_end(self, status: WeightsStatus) -> None:
        """Print how the update that was under way has ended."""
        version, operation, self.under_way = self.under_way, status.operation, ""
        if not version or operation is None:
            return
        step, replaced = self.steps.step(version), operation.target.version != version
        if replaced:
            click.echo(f"{version} was replaced by {operation.target.version}")
        else:
            click.echo(f"{version} {operation.phase.lower()}: {operation.message}")
        self.failed = replaced or operation.phase != "Complete"
        if step is not None and self.failed:
            self.tried.add(step)

    def _note_deleted(self, status: WeightsStatus) -> None:
        current = status.current
        if current is not None and not Path(current.path or str(current.adapter)).exists():
            line = f"the folder of {current.version} is gone; engines that start from now on wait for the next update"
            self._say_once(f"gone {current.version}", line)

    async def _status(self) -> WeightsStatus:
        """Return the pool's weights. Wait for the server as long as it is away."""
        while True:
            try:
                status = await self.client.weights_status(self.namespace, self.pool)
            except Unavailable as error:
                self._say_once("server", f"waits for the server: {error}")
                await asyncio.sleep(error.retry_after or POLL_SECONDS)
                continue
            self.said.discard("server")
            return status

    async def _kept(self, chosen: TrainerCheckpoint, folder: Path) -> Path:
        """Link the checkpoint's files into `folder`, with the pool's own config.json if the checkpoint has none. Raises
        OSError."""
        pool = await self.client.get(InferencePool.key_of(self.namespace, self.pool))
        assert isinstance(pool, InferencePool)
        await asyncio.to_thread(_link, chosen, folder, Path(pool.spec.model.path) / "config.json")
        return folder

    def _remove_old(self, status: WeightsStatus) -> None:
        """Remove the folders in `keep_in` of all versions but the last ones."""
        if self.keep_in is None:
            return
        records = [*status.history[-KEPT:], status.current, status.operation.target if status.operation else None]
        kept = {record.version for record in records if record is not None}
        for folder in self.keep_in.iterdir():
            if self.steps.step(folder.name) is not None and folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _names(self, steps: Sequence[int]) -> str:
        names = [self.steps.version(step) for step in steps]
        return ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]} ({len(names)} checkpoints)"

    def _say_once(self, key: str, line: str) -> None:
        if key not in self.said:
            self.said.add(key)
            click.echo(line)


def _link(checkpoint: TrainerCheckpoint, folder: Path, config: Path) -> None:
    unfinished = folder.with_name(f"{UNFINISHED}{folder.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    for file in checkpoint.path.iterdir():
        if file.is_file():
            os.link(file.resolve(), unfinished / file.name)
    if not checkpoint.is_adapter and not (unfinished / "config.json").exists():
        shutil.copyfile(config, unfinished / "config.json")
    shutil.rmtree(folder, ignore_errors=True)
    unfinished.rename(folder)
