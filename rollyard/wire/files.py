"""Files by which the server tells a job where it belongs, and everybody where the server is now."""

from __future__ import annotations

from typing import Literal

from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.base import WireMessage


class AllocationFile(WireMessage):
    """`allocation.json` in an allocation's folder (0700): all that a batch job is told. `token` lies beside it, 0600."""

    allocation: str
    namespace: str
    uid: str
    pool_kind: Literal["InferencePool", "RolloutPool"]
    pool: str
    endpoint_file: str
    """Path of the server's `endpoint.json`; read again before each reconnect."""
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
    """Grows with every start of a server on this folder; an older one never overwrites a newer one."""
    job: str | None = None
    """The Slurm job that the server is, where it is one."""
