"""The comparison of the page with the world notices what is not true."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from tests.support.shown import UNKNOWN, _accounts, _allocations, _overview, _pool, _rollout, _servers
from tests.support.world import Account, QueuedJob, World

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


def test_the_words_of_an_end_are_those_of_accounting() -> None:
    rows = [row("demo-rp-2", "3", "failed", "FAILED", "n2", "2030-03-17T17:45:00Z", "killed (exit code 137)")]
    shown = {"tables": {"Allocations": rows}}
    run = Account("FAILED", END - 100, "n2", 137)
    assert _accounts(shown, WORLD) == [], "without accounting nothing is known"
    assert _accounts(shown, replace(WORLD, accounts={"3": [Account("REQUEUED", END - 900, "n1", 0), run]})) == []
    for wrong in ({"state": "CANCELLED"}, {"end": END}, {"node": "n1"}, {"exit_code": 1}, {"end": None}):
        assert _accounts(shown, replace(WORLD, accounts={"3": [replace(run, **wrong)]}))
    assert _accounts(shown, replace(WORLD, accounts={}))
    rows[0]["Slurm says"] = "PREEMPTED"
    assert _accounts(shown, replace(WORLD, accounts={"3": [replace(run, state="REQUEUED")]}))
    preempted = replace(run, state="PREEMPTED", exit_code=0)
    assert _accounts(shown, replace(WORLD, accounts={"3": [preempted]})) == []
    rows[0] |= {"Slurm says": "CANCELLED", "Reason": "requeued, not by Rollyard (restart 1); that run was ended"}
    assert _accounts(shown, replace(WORLD, accounts={"3": [replace(run, state="REQUEUED", exit_code=0)]})) == []


POOL_WORLD = replace(WORLD, conditions={("RolloutPool", "demo"): {"Ready": ("False", "WaitingForSlurm")}})
POOL: dict[str, Any] = {
    "facts": {"State": "WaitingForSlurm", "Ready": "1"},
    "unknown": [],
    "tables": {
        "Allocations": TRUE["tables"]["Allocations"],
        "Conditions": [{"Condition": "Ready", "Status": "False", "Reason": "WaitingForSlurm"}],
        "Stages": [
            {"Stage": s, "Queued": "3" if s == "INIT" else "0", "In flight": "3"} for s in ("INIT", "RUN", "EVAL")
        ],
    },
}


def test_a_pools_own_view_agrees_with_its_jobs_and_the_store() -> None:
    def wrong(changed: dict[str, Any]) -> list[str]:
        return _pool({**POOL, **changed}, TRUE, POOL_WORLD, "RolloutPool", "demo")

    assert wrong({}) == []
    assert wrong({"facts": {"State": "Ready", "Ready": "1"}})
    assert wrong({"facts": {"State": "WaitingForSlurm", "Ready": "2"}})
    assert wrong({"unknown": ["Not known: load."]})
    for table in POOL["tables"]:
        assert wrong({"tables": {name: rows for name, rows in POOL["tables"].items() if name != table}}), table


def test_a_rollouts_own_view_agrees_with_its_row() -> None:
    stored = {
        "id": "r", "status": "Running", "stage": "RUN", "reward": None, "pool": "demo", "node": "n1", "turns": None,
        "attempt": 2, "finished_at": None, "history": "{}\n{}\n",
    }  # fmt: skip
    facts = {
        "Status": "Running in RUN", "Reward": UNKNOWN, "Pool": "demo", "Node": "n1", "Attempt": "2", "Ended": UNKNOWN
    }  # fmt: skip
    shown = {"facts": facts, "unknown": [], "tables": {"History": [{}, {}, {}]}}  # it was queued before what is stored
    assert _rollout(shown, stored) == []
    for word, value in (
        ("Status", "Queued in RUN"),
        ("Reward", "0"),
        ("Node", UNKNOWN),
        ("Attempt", "21"),
        ("Ended", "2030-03-17T17:45:00Z"),
    ):
        assert _rollout({**shown, "facts": {**facts, word: value}}, stored), word
    assert _rollout({**shown, "tables": {"History": [{}, {}]}}, stored)
    ended = stored | {"status": "Completed", "reward": 0.0, "turns": 3, "finished_at": END}
    right = facts | {"Status": "Completed", "Reward": "0", "Turns": "3", "Ended": "2030-03-17T17:46:40Z"}
    assert _rollout({**shown, "facts": right}, ended) == []
    assert _rollout({**shown, "facts": right | {"Reward": UNKNOWN}}, ended)
