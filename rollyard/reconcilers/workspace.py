"""The folder an allocation's job works from, on storage that its node sees: its identity, its token, its log."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.pools import InferencePool, Pool
from rollyard.kinds.wire import AllocationFile
from rollyard.slurm.base import BatchScript
from rollyard.slurm.script import JOB_PREFIX, batch_script
from rollyard.trust.secrets import write_secret
from rollyard.trust.tokens import Role

LAST_WORDS_BYTES = 16 << 10


class Workspace:
    """Folders below `<data>/allocations`, 0700, one an allocation."""

    def __init__(self, data: Path, server_id: str, issue: Callable[[Role, str], str]) -> None:
        self._data = data
        self._server_id = server_id
        self._issue = issue

    def comment(self, uid: str) -> str:
        """Names a job as ours: what adoption and the sweep for orphans go by."""
        return f"rollyard:{self._server_id}:{uid}"

    def uid_of(self, comment: str) -> str | None:
        """The allocation's uid; None when the job is not this server's."""
        prefix = self.comment("")
        return comment.removeprefix(prefix) if comment.startswith(prefix) else None

    def folder(self, namespace: str, name: str) -> Path:
        return self._data / "allocations" / f"{namespace}.{name}"

    def log_file(self, namespace: str, name: str) -> Path:
        return self.folder(namespace, name) / "job.log"

    def script(self, allocation: Allocation) -> BatchScript:
        """What would be submitted. Pure."""
        meta, pool = allocation.metadata, allocation.spec.pool
        folder = self.folder(meta.namespace, meta.name)
        word = "inference-server" if pool.kind == "InferencePool" else "node-agent"
        return batch_script(
            allocation.spec.template,
            name=f"{JOB_PREFIX}{meta.name}",
            comment=self.comment(meta.uid),
            log_path=str(folder / "job.log"),
            directory=str(folder),
            command=[sys.executable, "-m", "rollyard.cli.main", word, "--allocation", str(folder)],
        )

    def prepare(self, allocation: Allocation, pool: Pool) -> BatchScript:
        """Write the folder; again is no error. Blocks."""
        meta = allocation.metadata
        folder = self.folder(meta.namespace, meta.name)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        role = Role.ENGINE if isinstance(pool, InferencePool) else Role.NODE
        write_secret(folder / "token", self._issue(role, meta.uid))
        told = AllocationFile(
            allocation=meta.name,
            namespace=meta.namespace,
            uid=meta.uid,
            pool_kind=pool.kind,
            pool=pool.metadata.name,
            endpoint_file=str(self._data / "endpoint.json"),
            ca_file=str(self._data / "ca.pem"),
            scratch=allocation.spec.template.scratch,
            inference=pool.spec if isinstance(pool, InferencePool) else None,
        )
        write_secret(folder / "allocation.json", told.model_dump_json())
        script = self.script(allocation)
        write_secret(folder / "batch.sh", script.text)
        return script

    def last_words(self, allocation: Allocation) -> str:
        """Why a job ended, in its own words: its last line that says error, else its last line. Blocks."""
        path = self.log_file(allocation.metadata.namespace, allocation.metadata.name)
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - LAST_WORDS_BYTES))
                lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return ""
        errors = [line for line in lines if line.startswith("error: ")]
        return (errors or lines or [""])[-1].removeprefix("error: ")[:500]

    def remove(self, allocation: Allocation) -> None:
        shutil.rmtree(self.folder(allocation.metadata.namespace, allocation.metadata.name), ignore_errors=True)
