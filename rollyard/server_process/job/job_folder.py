"""The folder `server-job` in the data folder: the name, the script and the log of the server's jobs.

The script is the desired state. While the script exists, a server should run, and the running server keeps standby jobs
queued. Once the script is removed, no further server starts.
"""

from __future__ import annotations

import errno
import secrets
from pathlib import Path

from rollyard.core.lagging_files import read_when_complete
from rollyard.slurm.base import BatchScript, Job, JobListing
from rollyard.slurm.batch_script import JOB_PREFIX
from rollyard.trust.secret_files import write_secret

LAST_LINE_BYTES = 4096


class ServerJobFolder:
    """The folder. Blocks; raises OSError."""

    def __init__(self, data: Path, *, in_job: bool = False) -> None:
        """A missing folder is created, with a new name for the jobs. `in_job`: this process runs in the server's job, so
        the folder exists; on a shared file system that lags, its files may appear late."""
        self.data = data.resolve()
        self.folder = self.data / "server-job"
        self.script_file = self.folder / "batch.sh"
        self.log = self.folder / "log"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        name = self.folder / "name"
        if not in_job and not name.exists():
            # The name is not made from the path: nodes may see the folder at another path, and a path may be used again
            # for another folder.
            write_secret(name, f"{JOB_PREFIX}serve-{secrets.token_hex(4)}")
        self.name = _words(name)

    @property
    def comment(self) -> str:
        """Comment of the server's jobs. Comments of allocations begin differently, so these jobs do not count as orphans."""
        return f"rollyard-server:{self.name}"

    def desired_script(self) -> BatchScript | None:
        """Script of the server's jobs; None if no server should run."""
        try:
            text = self.script_file.read_text()
        except FileNotFoundError:
            return None
        if not text:
            return None  # not complete yet
        return BatchScript(name=self.name, comment=self.comment, text=text, directory=str(self.folder))

    def await_script(self) -> BatchScript | None:
        """Wait for the script of a job that has just been submitted. Return None if no server should run."""
        try:
            return read_when_complete(self._script, str(self.script_file))
        except ValueError:
            return None

    def _script(self) -> BatchScript:
        if (script := self.desired_script()) is None:
            raise ValueError("it does not exist; if this stays so, no server should run")
        return script

    def write_script(self, text: str) -> BatchScript:
        write_secret(self.script_file, text)
        return BatchScript(name=self.name, comment=self.comment, text=text, directory=str(self.folder))

    def remove_script(self) -> None:
        self.script_file.unlink(missing_ok=True)

    def live_jobs(self, listing: JobListing) -> list[Job]:
        """The server's jobs that have not ended."""
        return [job for job in listing.jobs.values() if job.name == self.name and not job.state.ended]

    def last_log_line(self) -> str:
        """Last line of the log, cut to a length that can be displayed."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - LAST_LINE_BYTES))
                lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return ""
        return lines[-1][-500:] if lines else ""


def _words(file: Path) -> str:
    """Read a file that is never empty. Raises OSError."""

    def read() -> str:
        if words := file.read_text().strip():
            return words
        raise OSError(errno.ENODATA, "it is empty; remove it, and start the server again", str(file))

    return read_when_complete(read, str(file))
