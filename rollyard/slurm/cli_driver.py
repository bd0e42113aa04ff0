"""The driver that calls Slurm's commands and parses their text. It works with Slurm 20.11 to 26.05.

The option `--json` is not used, for two reasons. The text has had the same field names for years. A query of 1,000 jobs
takes milliseconds as text, and a second as JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from rollyard.core.errors import SlurmError, SlurmUnreachable
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import LIMIT_SECONDS, BatchScript, Job, JobAccount, JobIds, JobListing, Site
from rollyard.slurm.batch_script import JOB_PREFIX, directives
from rollyard.slurm.refusal import BY_PLUGIN, read_refusal
from rollyard.slurm.scontrol_text import read_site
from rollyard.slurm.user_names import known_user

MARK = "~|~"
"""Separator of fields. Names and comments may contain any text, but are unlikely to contain this separator."""
QUEUE = ("JobArrayID", "Name", "Comment", "State", "Reason", "NodeList", "RestartCnt", "exit_code", "SubmitTime",
         "StartTime", "EndTime")  # fmt: skip
ACCOUNTING = ("JobID", "JobName", "Comment", "State", "Reason", "NodeList", "ExitCode", "Submit", "Start", "End")
"""The fields of QUEUE in the same order, under sacct's names. The number of restarts is missing, because sacct of Slurm
22.05 does not report this number."""
COUNTED = ("JobID", "JobName", "Submit", "Start", "End", "AllocCPUS", "AllocTRES")
"""Fields of sacct for `JobAccount`."""
IDS_AT_ONCE = 500
"""Greatest number of ids in one command line."""
_NO_ANSWER = re.compile(
    r"[Uu]nable to contact|[Ss]ocket timed out|Zero Bytes were transmitted|[Cc]onnection (refused|reset|failure|timed out)"
    r"|persist|temporarily unable|[Uu]nexpected message|Transport endpoint|[Cc]redential|in standby|[Cc]onfiguration source"
    r"|Protocol authentication|Message (send|receive) failure|[Uu]nspecified error"
)
"""Messages with which Slurm's own commands report that they got no answer from slurmctld."""
_NOT_FOUND = re.compile(r"Invalid job id|already completing or completed")
_KEEP_ENV = {"SLURM_CONF", "SLURM_JWT"}


class CliDriver:
    """`sbatch`, `squeue`, `scancel`, `sacct` and `scontrol`, as the user who runs the server."""

    name = "cli"

    def __init__(self, env: Mapping[str, str] | None = None, *, limit_seconds: float = LIMIT_SECONDS) -> None:
        """`env`: environment of the commands. Default: the environment of this process. Most of Slurm's variables are
        removed from it.

        The jobs get the same environment, because `--export=ALL` is sbatch's default.
        """
        # SBATCH_* would override the directives in the script. If the server runs in a Slurm job, its own jobs must not
        # get the SLURM_* variables of that job.
        source = os.environ if env is None else env
        self._env = {
            k: v for k, v in source.items() if k in _KEEP_ENV or not k.startswith(("SLURM", "SBATCH", "SQUEUE"))
        }
        self._asking = {**self._env, "TZ": "UTC", "SLURM_TIME_FORMAT": "standard", "LC_ALL": "C"}
        self._limit = limit_seconds
        self._user = getpass.getuser()
        self._keeps_accounts = True

    async def list_jobs(self) -> JobListing:
        taken_at = time.time()
        fields = ",".join(f"{field}:{MARK}" for field in QUEUE)
        # squeue prints the header even if the queue is empty. So an empty output is an error, not an empty queue.
        text = await self._run_query("squeue", "-u", self._user, "-r", "-t", "all", "-O", fields)
        return JobListing(taken_at, read_queue(text))

    async def submit(self, script: BatchScript) -> list[str]:
        command = ("sbatch", "--parsable", f"--chdir={script.directory}")
        code, out, err = await self._run(command, self._env, script.text)
        id, words = _printed_id(out), _complaint_text(err)
        if id is None:
            if code == 0:
                raise SlurmUnreachable(f"sbatch answered {out[:200]!r}, which is not a job id")
            lines = _complaint_lines(err)
            told = lines[:-1] if len(lines) > 1 and lines[-1].endswith(BY_PLUGIN) else lines
            if code < 0 or any(_NO_ANSWER.search(line) for line in told):
                raise SlurmUnreachable(words)
            raise read_refusal(lines or [words])
        array = directives(script.text).get("array")
        ids = JobIds([id] if array is None else [f"{id}_{task}" for task in range(int(array.partition("-")[2]) + 1)])
        if code != 0:  # the job exists: a plug-in failed afterwards, or the answer was cut off
            ids.complaint = f"sbatch ended with exit code {code}: {words}"
        return ids

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        # With --batch only the job's first process gets the signal. This is our command, because the batch script ends
        # with `exec`. The command's children do not get the signal.
        options = () if signal is None else ("--batch", f"--signal={signal}")
        for some in _portions(ids):
            code, _, err = await self._run(("scancel", *options, *some), self._asking)
            wrong = [line for line in err.splitlines() if line.strip() and not _NOT_FOUND.search(line)]
            if code != 0 and wrong:
                words = _complaint_text("\n".join(wrong))
                raise SlurmUnreachable(words) if code < 0 or _NO_ANSWER.search(words) else SlurmError(words)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        if not self._keeps_accounts or not ids:
            return {}
        found: dict[str, Job] = {}
        fields = ",".join(ACCOUNTING)
        for some in _portions(ids):
            command = ("sacct", "-X", "-p", f"--delimiter={MARK}", "-j", ",".join(some), "-o", fields)
            code, out, err = await self._run(command, self._asking)
            if code != 0 and "accounting storage is disabled" in err:
                self._keeps_accounts = False
                return {}
            if code != 0:
                raise SlurmUnreachable(_complaint_text(err))
            for job in (_job([*row[:6], "0", *row[6:]]) for row in _rows(out, len(ACCOUNTING))):
                found[job.id] = job
        return {id: found[id] for id in ids if id in found}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        found: dict[str, list[JobAccount]] = {}
        for some in _portions(ids):
            command = ("sacct", "-X", "-D", "-p", f"--delimiter={MARK}", "-j", ",".join(some), "-o", ",".join(COUNTED))
            code, out, err = await self._run(command, self._asking)
            if code != 0 and "accounting storage is disabled" in err:
                return None
            if code != 0:
                raise SlurmUnreachable(_complaint_text(err))
            found |= read_accounts(out)
        return found

    async def site(self) -> Site:
        config = await self._run_query("scontrol", "show", "config")
        partitions = await self._run_query("scontrol", "-o", "show", "partition")
        return read_site(config, partitions, await self._run_query("scontrol", "-o", "show", "node"))

    async def show_job(self, id: str) -> dict[str, str]:
        """Return the fields of one job under Slurm's names; empty for an unknown job. Raises SlurmUnreachable."""
        code, out, err = await self._run(("scontrol", "-o", "show", "job", id), self._asking)
        if code != 0:
            if _NOT_FOUND.search(err):
                return {}
            raise SlurmUnreachable(f"scontrol: {_complaint_text(err)}")
        return dict(re.findall(r"(\w+)=(\S*)", out))

    async def close(self) -> None:
        pass

    async def _run_query(self, *command: str) -> str:
        """Run a query and return its output. Raises SlurmUnreachable with the command's error text."""
        code, out, err = await self._run(command, self._asking)
        if code != 0:
            raise SlurmUnreachable(f"{command[0]}: {_complaint_text(err)}")
        return out

    async def _run(
        self, command: Sequence[str], env: Mapping[str, str], text: str | None = None
    ) -> tuple[int, str, str]:
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *command, env=env, stdin=pipe if text is not None else null, stdout=pipe, stderr=pipe
            )
        except OSError as error:
            raise SlurmUnreachable(f"{command[0]} cannot be run: {error.strerror}") from None
        try:
            async with asyncio.timeout(self._limit):
                out, err = await process.communicate(text.encode() if text is not None else None)
        except TimeoutError:
            raise SlurmUnreachable(f"{command[0]} did not answer within {self._limit:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")


def _printed_id(text: str) -> str | None:
    """Return the id from the line that `sbatch --parsable` prints for a new job: `7`, or `7;cluster`."""
    found = re.findall(r"^(\d+)(?:;\S*)?$", text, re.MULTILINE)
    return found[-1] if found else None


def read_queue(text: str) -> dict[str, Job]:
    """Return our jobs in squeue's output: id -> job. Raises SlurmUnreachable if the text is not a table of squeue."""
    jobs = (_job(row) for row in _rows(text, len(QUEUE)) if row[1].startswith(JOB_PREFIX))
    return {job.id: job for job in jobs}


def read_accounts(text: str) -> dict[str, list[JobAccount]]:
    """Return the jobs in sacct's output of COUNTED: id -> runs. Raises SlurmUnreachable if the text is no such table."""
    found: dict[str, list[JobAccount]] = {}
    for id, name, submitted, start, end, cpus, resources in _rows(text, len(COUNTED)):
        typed = re.findall(r"gres/gpu:[^=,]+=(\d+)", resources)
        total = re.search(r"gres/gpu=(\d+)", resources)
        gpus = int(total[1]) if total is not None else sum(map(int, typed))
        account = JobAccount(name, _seconds(submitted), _seconds(start), _seconds(end), int(cpus or 0), gpus)
        found.setdefault(id, []).append(account)
    return found


def _portions(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    return (ids[start : start + IDS_AT_ONCE] for start in range(0, len(ids), IDS_AT_ONCE))


def _rows(text: str, width: int) -> Iterator[list[str]]:
    """Yield the rows below the header. Rows are found by counting fields, each of which ends with MARK. Line breaks do not
    separate rows, because the comments of jobs that are not ours may contain line breaks.

    Raises SlurmUnreachable for text that is not a table of this width.
    """
    *fields, rest = text.split(MARK)
    if not fields or len(fields) % width or rest.strip():
        raise SlurmUnreachable(f"Slurm's answer cannot be read: {text[-200:]!r}")
    for start in range(width, len(fields), width):
        first, *others = fields[start : start + width]
        yield [first.lstrip("\n"), *others]


def _job(row: Sequence[str]) -> Job:
    """Parse a row. Raises SlurmUnreachable for a malformed row."""
    id, name, comment, state, reason, node, restarts, code, submit, start, end = row
    try:
        word = JobState.read(state)
        return Job(
            id=id,
            name=name,
            comment="" if comment == "(null)" else comment,
            state=word,
            reason="" if reason == "None" else reason,
            node=node if node != "None assigned" else "",
            restart_count=int(restarts or 0),
            exit_code=_exit_code(code) if word.ended else None,
            submit_time=_seconds(submit),
            start_time=_seconds(start),
            end_time=_seconds(end),
            cancelled_by=_cancelled_by(state),
        )
    except ValueError as error:
        raise SlurmUnreachable(f"Slurm's answer about job {id[:40]!r} cannot be read: {error}") from None


def _cancelled_by(state: str) -> str:
    """Return the user named in sacct's `CANCELLED by 0`. squeue names no user."""
    found = re.fullmatch(r"CANCELLED by (\d+)", state.strip())
    return known_user(found[1]) if found is not None else ""


def _exit_code(text: str) -> int:
    """Return the exit code as a shell shows it. squeue prints a wait status, sacct `code:signal`."""
    if ":" in text:
        code, number = (int(part) for part in text.split(":"))
    else:
        code, number = int(text or 0) >> 8, int(text or 0) & 0x7F
    return 128 + number if number else code


def _seconds(text: str) -> float | None:
    if text in ("", "N/A", "Unknown", "None", "NONE"):
        return None
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _complaint_text(text: str) -> str:
    """Return a command's error lines in one line, at most the last 500 characters. One line would not be enough, because
    the cause is often in the last line but one."""
    return "; ".join(dict.fromkeys(_complaint_lines(text)))[-500:] or "it printed nothing"


def _complaint_lines(text: str) -> list[str]:
    """Return the error lines without the command's name."""
    return [re.sub(r"^(\w+: )?(error|fatal): ", "", line.strip()) for line in text.splitlines() if line.strip()]
