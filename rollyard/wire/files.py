"""Files of the server: the input of a job, and the present address of the server."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.base import WireMessage


class AllocationFile(WireMessage):
    """`allocation.json` in an allocation's folder (0700): all input of a batch job. The file `token` (0600) is beside it."""

    allocation: str
    namespace: str
    uid: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str
    endpoint_file: str
    """Path of the server's `endpoint.json`, which is read again before each reconnect."""
    ca_file: str
    """PEM of the server's own CA."""
    scratch: str
    """Node-local folder."""
    inference: InferencePoolSpec | None = None
    """The pool's spec, for an allocation of an InferencePool."""


class EndpointFile(WireMessage):
    """`endpoint.json` in the server's data folder (0600), replaced atomically."""

    url: str
    epoch: int
    """Number that grows with each start of a server on this folder. An older server never overwrites a newer one's file."""
    job: str | None = None
    """Slurm job of the server, if it runs in one."""
