"""Driver that uses slurmrestd, with a version of the API that slurmrestd and Rollyard both support.

After each change of the queue, slurmrestd sends all fields of all users' jobs. So on a large cluster Slurm's commands
answer faster.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from rollyard.core.errors import SlurmError, SlurmUnreachable, SubmitRefused
from rollyard.slurm.base import LIMIT_SECONDS, BatchScript, Job, JobAccount, JobListing, Site
from rollyard.slurm.batch_script import directives
from rollyard.slurm.refusal import read_refusal
from rollyard.slurm.rest.address import SlurmCredentials, SlurmrestdAddress
from rollyard.slurm.rest.codec import Body, array_tasks, complaints, parse_json
from rollyard.slurm.rest.job_fields import job_variables
from rollyard.slurm.rest.queue_reader import FAULTS, QueueReader
from rollyard.slurm.rest.slurmrestd_client import SlurmrestdClient
from rollyard.slurm.rest.version_choice import RestVersions, negotiate

T = TypeVar("T")
OMITTED_VARIABLES = ("SLURM", "SBATCH", "SQUEUE", "ROLLYARD_SLURM")
"""Prefixes of variables that jobs do not inherit. Such a variable may override one that the job sets itself, or contain
a token."""
NOT_FOUND = {2017, 2021}
"""Slurm's error numbers: the job does not exist; the job has ended."""
SLURMCTLD_ERRORS = range(2000, 3000)
"""Error numbers of slurmctld."""
NOTHING_FOUND = 9003
"""slurmrestd's error number for an empty result."""


class RestDriver:
    """Driver for the jobs of one user: the user of the token, else the user of this process."""

    name = "slurmrestd"

    def __init__(
        self,
        address: SlurmrestdAddress,
        identity: SlurmCredentials,
        env: Mapping[str, str] | None = None,
        *,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        """`env`: environment that jobs inherit, without OMITTED_VARIABLES. Default: the environment of this process."""
        source = os.environ if env is None else env
        self._env = {k: v for k, v in source.items() if not k.startswith(OMITTED_VARIABLES)}
        self._umask = umask()
        self._link = SlurmrestdClient(address, identity, limit_seconds)
        self._reader = QueueReader(limit_seconds)
        self._versions: RestVersions | None = None
        self._last: tuple[int, Mapping[str, Job]] | None = None
        """Time of the queue's last change (by slurmctld's clock), and our jobs at that time."""

    async def list_jobs(self) -> JobListing:
        taken_at = time.time()
        codec = (await self._negotiate()).codec
        last, user = self._last, await self._link.user()
        query = {} if last is None else {"update_time": str(last[0])}
        with _as_unreachable("its jobs"):
            found = await self._read(
                lambda raw: self._reader.queue(codec, raw, user), "GET", f"/slurm/{codec.version}/jobs/", query
            )
        if found.errors:
            raise self._why_silent(found.errors)
        if found.changed_at != 0:
            self._last = None if found.changed_at is None else (found.changed_at, found.jobs)
            return JobListing(taken_at, found.jobs)
        if last is None:  # only a query with `update_time` can be answered with the time 0
            raise SlurmUnreachable("slurmrestd: its jobs cannot be read: they have no time of last update")
        return JobListing(taken_at, last[1])

    async def submit(self, script: BatchScript) -> list[str]:
        codec = (await self._negotiate()).codec
        job = codec.job(script, self._variables(script))
        body = await self._call("POST", f"/slurm/{codec.version}/job/submit", body=job)
        with _as_unreachable("its answer to a submit"):
            # If the answer has an id, the job exists, even if the answer has errors too, such as "Job is in held state".
            id, wrong = int(body.get("job_id") or 0), complaints(body)
        if not id:
            if not (_is_slurmctld_error(wrong) or _is_unread_request(wrong)):
                raise self._why_silent(wrong)
            raise read_refusal([words for _, words in sorted(wrong, key=lambda error: error[0] in SLURMCTLD_ERRORS)])
        array = directives(script.text).get("array")
        return [str(id)] if array is None else [f"{id}_{task}" for task in array_tasks(array)]

    async def cancel(self, ids: Sequence[str], signal: str | None = None) -> None:
        codec = (await self._negotiate()).codec
        query = {} if signal is None else {"signal": signal, **codec.signal_flags()}
        for id in ids:
            body = await self._call("DELETE", f"/slurm/{codec.version}/job/{id}", query)
            with _as_unreachable("its answer to a cancel"):
                wrong = [(number, words) for number, words in complaints(body) if number not in NOT_FOUND]
            if wrong:
                raise SlurmError(_errors_text(wrong)) if _is_slurmctld_error(wrong) else self._why_silent(wrong)

    async def accounting(self, ids: Sequence[str]) -> Mapping[str, Job]:
        versions = await self._negotiate()
        found: dict[str, Job] = {}
        for id in ids if versions.accounting is not None else ():
            found |= await self._accounted(versions, id, versions.codec.accounting_records)
        return {id: found[id] for id in ids if id in found}

    async def accounts(self, ids: Sequence[str]) -> Mapping[str, Sequence[JobAccount]] | None:
        versions = await self._negotiate()
        if versions.accounting is None:
            return None
        found: dict[str, Sequence[JobAccount]] = {}
        for id in ids:
            found |= await self._accounted(versions, id, versions.codec.accounts)
        return {id: found[id] for id in ids if id in found}

    async def site(self) -> Site:
        codec = (await self._negotiate()).codec
        nodes = await self._ask(f"/slurm/{codec.version}/nodes/")
        partitions = await self._ask(f"/slurm/{codec.version}/partitions/")
        with _as_unreachable("its nodes and partitions"):
            return codec.site(nodes, partitions)

    async def close(self) -> None:
        await self._reader.close()

    async def _accounted(
        self, versions: RestVersions, id: str, read: Callable[[Body], Mapping[str, T]]
    ) -> Mapping[str, T]:
        """Read slurmdbd's records of a job."""
        body = await self._call("GET", f"/slurmdb/{versions.accounting}/job/{id}")
        with _as_unreachable("its accounting"):
            wrong = [(number, words) for number, words in complaints(body) if number != NOTHING_FOUND]
            found = read(body) if not wrong else {}
        if wrong:
            raise self._why_silent(wrong)
        return found

    async def _negotiate(self) -> RestVersions:
        """Return the versions to use; negotiate them if they are not known.

        After a request without a usable HTTP answer the versions are negotiated again, because slurmrestd may have been
        replaced by another release.
        """
        if self._versions is None:
            body = await self._call("GET", "/openapi/v3")
            with _as_unreachable("its description of itself"):
                self._versions, self._last = negotiate(body), None
        return self._versions

    async def _ask(self, path: str, query: Mapping[str, str] | None = None) -> Body:
        """Send a query and return the answer. Raises SlurmUnreachable if the answer contains an error."""
        body = await self._call("GET", path, query)
        with _as_unreachable("its answer"):
            wrong = complaints(body)
        if wrong:
            raise self._why_silent(wrong)
        return body

    async def _call(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: Body | None = None
    ) -> Body:
        return await self._read(_parse, method, path, query, body)

    async def _read(
        self,
        read: Callable[[bytes], Awaitable[T]],
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
    ) -> T:
        """Send a request and parse its answer with `read`."""
        try:
            return await self._link.call(method, path, query or {}, body, read)
        except SlurmUnreachable:
            self._versions = None
            raise

    def _why_silent(self, wrong: Sequence[tuple[int, str]]) -> SlurmUnreachable:
        """Return SlurmUnreachable with the errors in an answer.

        The errors rarely name the cause. So the message mentions the token, if one was sent, because the token may be
        the cause.
        """
        return SlurmUnreachable(
            f"slurmrestd: {_errors_text(wrong) or 'it sent neither a job nor an error'}{self._link.token_hint()}"
        )

    def _variables(self, script: BatchScript) -> Mapping[str, str]:
        """Return the environment that sbatch would make for the job. Raises SubmitRefused for `--export` with names."""
        options = directives(script.text)
        own = {"SLURM_SUBMIT_DIR": script.directory, "SLURM_UMASK": self._umask, **job_variables(options)}
        match options.get("export", "ALL").upper():
            case "ALL":
                return self._env | own
            case "NONE":  # as with sbatch, the node makes a login environment
                return {"SLURM_EXPORT_ENV": "NONE", "SLURM_GET_USER_ENV": "1", **own}
            case word:
                raise SubmitRefused(f"--export={word}: write ALL or NONE, and put variables into `env`")


def umask() -> str:
    """Return this process's umask. It is read from /proc, because each call of `os.umask` sets a new umask."""
    found = re.search(r"^Umask:\s*(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return found[1] if found else "0022"


@contextlib.contextmanager
def _as_unreachable(what: str) -> Iterator[None]:
    """Turn the errors that a malformed body raises into SlurmUnreachable."""
    try:
        yield
    except FAULTS as error:
        raise SlurmUnreachable(f"slurmrestd: {what} cannot be read: {type(error).__name__}: {error}") from None


async def _parse(raw: bytes) -> Body:
    return parse_json(raw)


def _is_slurmctld_error(wrong: Sequence[tuple[int, str]]) -> bool:
    """Return whether slurmctld itself refused the request. For a refusal by a standby controller, return False."""
    return any(number in SLURMCTLD_ERRORS and "standby" not in words for number, words in wrong)


def _is_unread_request(wrong: Sequence[tuple[int, str]]) -> bool:
    """Return whether slurmrestd could not parse the request. slurmctld never gets such a request."""
    return any(9000 <= number < 9400 for number, _ in wrong)


def _errors_text(wrong: Sequence[tuple[int, str]]) -> str:
    return "; ".join(dict.fromkeys(words for _, words in wrong))[-500:]
