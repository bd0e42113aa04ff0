"""Digests of datasets, computed from the canonical texts of their tasks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from rollyard.kinds.batch import SourceRef

MAX_TASK_LINE_BYTES = 512 << 10
"""Greatest size of one task. A task and the other fields of the batch must fit together into a rollout's request."""


def digest_of(tasks: Iterable[str]) -> str:
    """Return the sha256 of canonical lines."""
    found = hashlib.sha256()
    for text in tasks:
        found.update(text.encode() + b"\n")
    return found.hexdigest()


def source_digest(source: SourceRef) -> str:
    """Return the digest under which the tasks of a plug-in are stored. It covers the plug-in's name and options."""
    return "source-" + hashlib.sha256(source.model_dump_json().encode()).hexdigest()
