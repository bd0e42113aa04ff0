"""The server's side of the node protocol."""

from __future__ import annotations

from rollyard.api.node import MAX_MESSAGE_BYTES
from rollyard.kinds.rollout import Stage
from rollyard.wire.node import Heartbeat, LeaseRef


def test_a_heartbeat_with_ten_thousand_leases_fits_if_all_ids_have_their_greatest_length() -> None:
    ref = LeaseRef(namespace="n" * 63, id="i" * 128, fence=2**63 - 1, stage=Stage.EVAL)
    assert len(Heartbeat(held=[ref] * 10_000).model_dump_json()) < MAX_MESSAGE_BYTES
