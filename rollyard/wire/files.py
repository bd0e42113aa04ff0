"""Files that the server writes: the input of each job, and the server's present address."""

from __future__ import annotations

from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.base import WireMessage


class AllocationFile(WireMessage):
    """`allocation.json` in the allocation's folder (0700): the input of the job. The folder also has the job's token (0600)."""

    allocation: str
    namespace: str
    uid: str
    pool: str
    endpoint_file: str
    """Path of the server's `endpoint.json`. The job reads this file again before each reconnect."""
    ca_file: str
    """Path of the certificate of the server's own CA, in PEM."""
    scratch: str
    """Folder on the node's own disk."""
    inference: InferencePoolSpec | None = None
    """Spec of the pool; null for an allocation of a RolloutPool."""


class EndpointFile(WireMessage):
    """`endpoint.json` (0600) in the server's data folder. The file is replaced atomically."""

    url: str
    epoch: int
    """Number that grows with each start of a server on this folder. A server does not overwrite a file whose number is
    higher than its own."""
    job: str | None = None
    """Id of the Slurm job in which the server runs; null if there is none."""
