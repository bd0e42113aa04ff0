"""What would be submitted for a pool: shown by dry runs and by `diff`, stored nowhere."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.base import API_VERSION, Kinded


class Submission(Kinded):
    """The answer of a pool's subresource `script`."""

    api_version: str = API_VERSION
    kind: Literal["Submission"] = "Submission"
    script: str
    """Batch script of the next allocation, with UID where its own is going to stand; empty where nothing is ever submitted."""
    jobs: int
    """How many would be submitted now, those that replace others included."""
    summary: str
    """In one line for people: how many, what each asks for, for how long and where."""
