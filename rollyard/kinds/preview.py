"""Preview of a pool's next submit. Dry runs and `diff` show the preview. It is not stored."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import API_VERSION, KindModel


class Submission(KindModel):
    """Answer of a pool's subresource `script`."""

    api_version: str = API_VERSION
    kind: Literal["Submission"] = "Submission"
    script: str
    """Batch script of the next allocation, with `UID` in place of the allocation's uid. Empty if the pool submits no jobs."""
    jobs: int
    """Number of allocations that the present plan submits, including replacements."""
    summary: str
    """One line for people: number of allocations, resources of each, walltime, and partition or job."""
