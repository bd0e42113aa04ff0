"""Many builds at once: on this machine, or as one Slurm job array."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.core.errors import ImageBuildFailed, SlurmError, SlurmUnreachable
from rollyard.image_builds.build_task import LOG, BuildResult, BuildTask
from rollyard.image_builds.run_build import BuildOptions, named_build
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import Driver
from rollyard.slurm.batch_script import FOLDER, JOB_PREFIX, batch_script
from rollyard.slurm.choose_driver import choose_driver

POLL_SECONDS = 1.0
GRACE_SECONDS = 40.0
"""Seconds that a result may take to appear in a shared folder after its job has ended."""
_COMMAND = ("-m", "rollyard.image_builds.build_task_main")


@dataclass(frozen=True)
class BurstProgress:
    """State of all builds at one moment."""

    results: Mapping[str, BuildResult]
    """Name of an image -> result, for the builds that have ended."""
    total: int
    running: int
    note: str = ""
    """Sentence about Slurm, if it does not answer."""


@dataclass(frozen=True)
class BurstPlace:
    """Place where builds run."""

    cluster: str = "local"
    at_once: int = 4
    """Greatest number of builds at the same time on this machine."""
    template: AllocationTemplate | None = None
    """Resources of each job of the array; needed unless `cluster` is local."""


Report = Callable[[BurstProgress], None]


class BuildBurst:
    """Builds an image of each context or definition file. The folders of the tasks are in FOLDER/.builds."""

    def __init__(
        self,
        contexts: Sequence[Path],
        folder: Path,
        output: Callable[[str], str],
        options: BuildOptions,
        names: Sequence[str] | None = None,
    ) -> None:
        """`output`: name of an image -> its output. `options`: those of every build. A `file` is relative to each context.
        `names`: those of the images; None: those of the contexts."""
        self._folder = folder.resolve() / ".builds" / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        self.outputs: dict[str, str] = {}
        """Name of an image -> its output."""
        self.tasks: dict[str, BuildTask] = {}
        self._options: dict[str, BuildOptions] = {}
        for i, (context, file) in enumerate(named_build(one.resolve()) for one in contexts):
            name = names[i] if names is not None else context.name if file is None else file.stem
            if name in self._options:
                raise ImageBuildFailed(f"two builds have the name {name}, which names the image: rename one")
            self.outputs[name] = output(name)
            if options.file is not None:
                file = context / options.file
            self._options[name] = replace(options, context=context, file=file, outputs=[self.outputs[name]])

    async def run(self, place: BurstPlace, report: Report) -> Mapping[str, BuildResult]:
        """Build all; return the result of each image. `report` is called once in a second. Cancelling it ends the builds.

        Raises ImageBuildFailed if a folder cannot be written, Invalid for a wrong cluster, and SlurmError if the jobs
        cannot be submitted.
        """
        try:
            self._folder.mkdir(parents=True)
            for number, (name, options) in enumerate(self._options.items()):
                self.tasks[name] = BuildTask(self._folder / str(number))
                self.tasks[name].write(options)
        except OSError as error:
            raise ImageBuildFailed(f"{self._folder} cannot be made: {error.strerror}") from error
        results = await (self._here(place, report) if place.cluster == "local" else self._in_slurm(place, report))
        if all(result.digest is not None for result in results.values()):
            shutil.rmtree(self._folder, ignore_errors=True)
        return results

    # this machine

    async def _here(self, place: BurstPlace, report: Report) -> Mapping[str, BuildResult]:
        places, running = asyncio.Semaphore(place.at_once), Counter[str]()
        lost: dict[str, BuildResult] = {}

        async def one(name: str, task: BuildTask) -> None:
            async with places:
                running["builds"] += 1
                try:
                    code = await _run_here(task)
                finally:
                    running["builds"] -= 1
                if task.result() is None:
                    lost[name] = BuildResult(None, f"its process ended with status {code}: {task.last_line()}")

        async with asyncio.TaskGroup() as group:
            builds = [group.create_task(one(name, task)) for name, task in self.tasks.items()]
            while not all(build.done() for build in builds):
                report(BurstProgress(self._results(lost), len(self.tasks), running["builds"]))
                await asyncio.wait(builds, timeout=POLL_SECONDS)
        results = self._results(lost)
        report(BurstProgress(results, len(self.tasks), 0))
        return results

    # Slurm

    async def _in_slurm(self, place: BurstPlace, report: Report) -> Mapping[str, BuildResult]:
        driver = await choose_driver(place.cluster, self._folder / "jobs")
        try:
            async with self._jobs(driver, place) as ids:
                return await self._follow(driver, dict(zip(self.tasks, ids, strict=True)), report)
        finally:
            await driver.close()

    @contextlib.asynccontextmanager
    async def _jobs(self, driver: Driver, place: BurstPlace) -> AsyncIterator[Sequence[str]]:
        """Submit the array, and cancel what is left of it at the end."""
        script = batch_script(
            place.template or AllocationTemplate(), name=f"{JOB_PREFIX}image-builds",
            comment=f"image-builds/{self._folder.name}", log_path=str(self._folder / LOG), directory=str(self._folder),
            command=[sys.executable, *_COMMAND, FOLDER], tasks=len(self.tasks),
        )  # fmt: skip
        ids = await driver.submit(script)
        try:
            yield ids
        finally:
            left = [id for id, task in zip(ids, self.tasks.values(), strict=True) if task.result() is None]
            if left:
                with contextlib.suppress(SlurmError):
                    await driver.cancel(left)

    async def _follow(self, driver: Driver, ids: Mapping[str, str], report: Report) -> Mapping[str, BuildResult]:
        lost: dict[str, BuildResult] = {}
        ended: dict[str, float] = {}
        """Name -> time at which its job was first seen to have ended."""
        while len(results := self._results(lost)) < len(self.tasks):
            note, running = "", 0
            try:
                jobs = (await driver.list_jobs()).jobs
            except SlurmUnreachable as error:
                note = f"Slurm does not answer: {error}"
            else:
                for name, id in ids.items():
                    job = jobs.get(id)
                    running += job is not None and job.state is JobState.RUNNING
                    if name not in results and (job is None or job.state.ended):
                        since = ended.setdefault(name, time.monotonic())
                        if time.monotonic() - since > GRACE_SECONDS:
                            state = "ended" if job is None else f"ended {job.state} {job.reason}".rstrip()
                            words = self.tasks[name].last_line()
                            lost[name] = BuildResult(None, f"its job {id} {state} without a result: {words}")
                    else:
                        ended.pop(name, None)
            report(BurstProgress(results, len(self.tasks), running, note))
            await asyncio.sleep(POLL_SECONDS)
        report(BurstProgress(results, len(self.tasks), 0))
        return results

    def _results(self, lost: Mapping[str, BuildResult]) -> dict[str, BuildResult]:
        found = {name: task.result() or lost.get(name) for name, task in self.tasks.items()}
        return {name: result for name, result in found.items() if result is not None}


async def _run_here(task: BuildTask) -> int:
    log = await asyncio.to_thread(open, task.log, "ab")
    with log:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *_COMMAND, str(task.folder), stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        return await process.wait()
    finally:
        if process.returncode is None:
            process.terminate()
            await process.wait()
