"""The comparison of the page with the world notices what is not true."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.shown import UNKNOWN, QueuedJob, World, _allocations, _overview, _servers

END = 1_900_000_000.0
WORLD = World(
    jobs={"1": QueuedJob("RUNNING", "", END, "n1"), "2": QueuedJob("PENDING", "Resources", None, ""),
          "3": QueuedJob("PREEMPTED", "", END - 100, "n2")},
    agents={"RolloutPool": {"demo-rp-0"}, "InferencePool": set()},
    counts=dict.fromkeys(("Queued", "INIT", "RUN", "EVAL", "Completed", "Truncated", "Failed", "InfraFailed", "Cancelled"), 3),
)  # fmt: skip


def row(name: str, job: str, state: str, says: str, node: str, ends: str, reason: str = "") -> dict[str, str]:
    words = ("Allocation", "Job", "State", "Slurm says", "Node", "Ends", "Reason")
    return dict(zip(words, (name, job, state, says, node, ends, reason), strict=True))


TRUE: dict[str, Any] = {
    "facts": {word: str(number) for word, number in WORLD.counts.items()},
    "tables": {
        "Allocations": [
            row("demo-rp-0", "1", "ready", "RUNNING", "n1", "2030-03-17T17:46:40Z"),
            row("demo-rp-1", "2", "pending", "PENDING", UNKNOWN, UNKNOWN, "Resources"),
            row("demo-rp-2", "3", "ended", "PREEMPTED", "n2", "2030-03-17T17:45:00Z", "preempted"),
        ],
        "RolloutPools": [{"RolloutPool": "demo", "State": "WaitingForSlurm", "Ready": "1/2"}],
        "Jobs that wait in Slurm's queue": [{"Job": "2", "Slurm's reason": "Resources (no room)"}],
    },
}


def wrong(shown: dict[str, Any]) -> list[str]:
    return [*_allocations(shown, WORLD), *_overview(shown, WORLD), *_servers(shown, WORLD)]


def test_what_is_true_passes() -> None:
    assert wrong(TRUE) == []


@pytest.mark.parametrize(
    ("table", "place", "changed"),
    [
        ("Allocations", 0, {"Node": "n3"}),
        ("Allocations", 0, {"Slurm says": "SUSPENDED"}),
        ("Allocations", 0, {"Ends": "2030-03-17T17:40:00Z"}),
        ("Allocations", 0, {"State": "ended"}),
        ("Allocations", 1, {"State": "ready"}),
        ("Allocations", 1, {"Reason": "Priority"}),
        ("Allocations", 1, {"Job": "9"}),
        ("Allocations", 2, {"Slurm says": "FAILED"}),
        ("RolloutPools", 0, {"Ready": "2/2"}),
        ("RolloutPools", 0, {"State": "Ready"}),
        ("Jobs that wait in Slurm's queue", 0, {"Job": "1"}),
        ("Jobs that wait in Slurm's queue", 0, {"Slurm's reason": "Priority"}),
    ],
)
def test_a_cell_that_is_not_true_is_found(table: str, place: int, changed: dict[str, str]) -> None:
    shown = copy.deepcopy(TRUE)
    shown["tables"][table][place] |= changed
    assert wrong(shown)


def test_a_wrong_number_and_a_server_without_a_process_are_found() -> None:
    assert wrong({**TRUE, "facts": {**TRUE["facts"], "RUN": "4"}})
    assert wrong({**TRUE, "facts": {}})
    servers = {"Model servers": [{"Endpoint": "policy-ip-0", "State": "Ready"}]}
    assert wrong({**TRUE, "tables": {**TRUE["tables"], **servers}})
