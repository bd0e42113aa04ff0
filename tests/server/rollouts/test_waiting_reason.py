"""No rollout waits without a word: each row of the table, from objects as they stand."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rollyard.kinds.allocation import Allocation
from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutError, RolloutRequest, Stage, Status
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.server.rollouts.new_rollouts import expand
from rollyard.server.rollouts.waiting_reason import (
    LOOK_AHEAD_RECORDS,
    OF_MODEL_SERVERS,
    ROWS,
    ModelSupply,
    QueueView,
    explain,
    explain_parked,
)
from rollyard.server.routing.staleness import ServedVersions
from rollyard.store.base import GroupVersions, MissingImage, RolloutRecord
from tests.support import make

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC).timestamp()
AT = "2026-01-01T11:00:00Z"
"""Time of conditions and jobs."""
SINCE_AT, SINCE_QUEUED = "(since 2026-01-01 11:00:00 UTC)", "(since 2026-01-01 10:00:00 UTC)"


def record(**more: Any) -> RolloutRecord:
    asked = {k: more.pop(k) for k in ("budgets", "min_weights_version", "group_version", "group", "agent") if k in more}
    task = {"kind": "math", "problem": "?", "answer": "1"}
    request = RolloutRequest.model_validate({"id": "a", "pool": "swe", "task": task, **asked})
    (made,) = expand("default", request, NOW - 7200)
    return RolloutRecord(**({f: getattr(made, f) for f in made.__slots__} | {"seq": 7} | more))


def rollout_pool(status: dict[str, Any] | None = None, **spec: Any) -> RolloutPool:
    return make.rollout_pool(status=status, **({"inference": {"policy": "policy"}} | spec))


def inference_pool(status: dict[str, Any] | None = None, **spec: Any) -> InferencePool:
    return make.inference_pool(status=status, **spec)


def condition(type: str, status: str, reason: str = "Because", message: str = "") -> dict[str, Any]:
    return {"type": type, "status": status, "lastTransitionTime": AT, "reason": reason, "message": message}


def conditions(*found: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"conditions": list(found), **more}


def allocation(name: str, pool: str = "RolloutPool", **status: Any) -> Allocation:
    return make.allocation(name, pool=pool, created=AT, **status)


def agent(*kinds: str, init: int = 0, eval: int = 0, ends: float | None = None, **failed: str) -> ConnectedNodeAgent:
    free = {"free_init": init, "free_eval": eval}
    made = make.agent(PoolKey("default", "swe"), kinds=frozenset(kinds), failed_kinds=failed, **free)
    made.walltime_ends = ends
    return made


def missing(**more: Any) -> MissingImage:
    given = {"image": "docker://r/a:1", "since": NOW - 3600, "until": NOW + 9} | more
    message = "the image docker://r/a:1 cannot be used now: no"
    return MissingImage(PoolKey("default", "swe"), message=message, **given)


SERVING = ModelSupply("policy", "policy", inference_pool(), ready=1, count_with_room=1)
"""An InferencePool that has room."""


def view(**more: Any) -> QueueView:
    """All is well, unless a test says otherwise."""
    given = {"pool": rollout_pool(), "supplies": [SERVING], "node_agents": [agent("code", "math", ends=NOW + 1e6)]}
    return QueueView(**({"name": "swe", "now": NOW, "places": {Stage.INIT: {7: 0}}} | given | more))


def lacking(status: dict[str, Any] | None = None, *allocations: Allocation, **spec: Any) -> dict[str, Any]:
    """A RolloutPool without a node agent."""
    return {"node_agents": [], "pool": rollout_pool(status, **spec), "allocations": list(allocations)}


def unserved(status: dict[str, Any] | None = None, *allocations: Allocation, **spec: Any) -> dict[str, Any]:
    """An InferencePool without an endpoint that takes work."""
    return {"supplies": [ModelSupply("policy", "policy", inference_pool(status, **spec), allocations)]}


V7_SERVED = ServedVersions(make.weights("v7"), {"e": "v7"}, frozenset({"v7"}))
PENDING = {"jobState": "PENDING", "jobId": "123", "intents": 1, "intendedAt": AT}
RUNNING = {"jobState": "RUNNING", "jobId": "123", "node": "n1", "startTime": AT}
NOT_READY = condition("Ready", "False", "CrashLoop", "0 of 1 allocations ready; 3 failed in a row")
SUBMITTING = condition("Submitted", "False", "Submitting", "sbatch has not answered since 11:00")
FULL = condition("Admitting", "False", "EndpointsFull", "e1: its cache is 97% full")
UNREADABLE = condition("SlurmReachable", "False", "NoAnswer", "Slurm cannot be read since 11:00 (no answer)")

LOOKED_AT = dict.fromkeys(range(8, 8 + LOOK_AHEAD_RECORDS), 0)
CASES: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (
        "PoolSuspended", {}, {"pool": rollout_pool(conditions(condition("Suspended", "True")), suspend=True)},
        f"RolloutPool swe is suspended; `rollyard resume rp/swe` resumes it {SINCE_AT}",
    ),
    (
        "InferencePoolNotFound", {}, {"supplies": [ModelSupply("policy", "policy", None)]},
        f"role policy names InferencePool 'policy', which does not exist; create it {SINCE_QUEUED}",
    ),
    (
        "InferencePoolSuspended", {}, unserved(conditions(condition("Suspended", "True")), suspend=True),
        f"InferencePool policy is suspended; `rollyard resume ip/policy` resumes it {SINCE_AT}",
    ),
    (
        "UnknownTaskKind", {}, {"node_agents": [agent("code"), agent("code", "stem")]},
        "no node agent of RolloutPool swe has a handler for task kind 'math'; they have code, stem. "
        f"Install it in their Python, then restart them: `rollyard suspend rp/swe` and `rollyard resume rp/swe` {SINCE_QUEUED}",
    ),
    (
        "UnknownTaskKind", {}, {"node_agents": [agent("code", math="ImportError: no such name")]},
        "the node agents of RolloutPool swe cannot load the handler of task kind 'math': "
        f"ImportError: no such name {SINCE_QUEUED}",
    ),
    (
        "Backoff", {"not_before": NOW + 60, "attempt": 2, "error": RolloutError(reason="SandboxLost", message="it died")},
        {}, f"attempt 2 starts at 2026-01-01 12:01:00 UTC after SandboxLost: it died {SINCE_QUEUED}",
    ),
    (
        "WeightsVersion", {"min_weights_version": "v9"}, {"served": V7_SERVED},
        f"InferencePool policy has not served version 'v9' yet; it serves v7 {SINCE_QUEUED}",
    ),
    (
        "SlurmUnreachable", {}, lacking(conditions(UNREADABLE)),
        f"RolloutPool swe needs an allocation, but Slurm cannot be read since 11:00 (no answer) {SINCE_AT}",
    ),
    (
        "NoReplicas", {}, lacking(replicas=0),
        f"RolloutPool swe has 0 replicas; `rollyard scale rp/swe --replicas 1` starts one {SINCE_QUEUED}",
    ),
    (
        "NoReplicas", {}, unserved(replicas=0),
        f"InferencePool policy has 0 replicas; `rollyard scale ip/policy --replicas 1` starts one {SINCE_QUEUED}",
    ),
    (
        "NoReplicas", {}, lacking(conditions(condition("ScalingLimited", "True", "GpuHoursSpent", "9 GPU-hours are spent"))),
        f"RolloutPool swe has no allocation: 9 GPU-hours are spent {SINCE_AT}",
    ),
    (
        "SubmitUnanswered", {}, lacking(None, allocation("swe-rp-0", intents=1, **conditions(SUBMITTING))),
        f"RolloutPool swe needs an allocation, but for swe-rp-0 sbatch has not answered since 11:00 {SINCE_AT}",
    ),
    (
        "AllocationPending", {}, lacking(conditions(NOT_READY), allocation("swe-rp-0", reason="AssocMaxJobsLimit", **PENDING)),
        "RolloutPool swe waits for job 123 of allocation swe-rp-0, which is pending: AssocMaxJobsLimit (the account allows "
        f"no more running jobs) {SINCE_AT}",
    ),
    (
        "AllocationPending", {},
        unserved(None, allocation("policy-ip-0", "InferencePool", reason="Priority", startTime=NOW + 60, **PENDING)),
        "InferencePool policy waits for job 123 of allocation policy-ip-0, which is pending: Priority (other jobs have "
        f"a higher priority); Slurm expects it to start at 2026-01-01 12:01:00 UTC {SINCE_AT}",
    ),
    (
        "AllocationSuspended", {}, lacking(None, allocation("swe-rp-0", jobState="SUSPENDED", jobId="123")),
        f"RolloutPool swe waits for job 123 of allocation swe-rp-0: Slurm suspended it {SINCE_QUEUED}",
    ),
    (
        "AllocationFailed", {}, unserved(conditions(NOT_READY, failures=3)),
        f"InferencePool policy is not ready: CrashLoop: 0 of 1 allocations ready; 3 failed in a row {SINCE_AT}",
    ),
    (
        "AllocationStarting", {}, lacking(None, allocation("swe-rp-0", **RUNNING)),
        "RolloutPool swe is starting: job 123 of allocation swe-rp-0 runs on n1, but its node agent has not connected yet "
        f"{SINCE_AT}",
    ),
    (
        "AllocationStarting", {}, lacking(None, allocation("swe-rp-0", **RUNNING, readyAt=AT)),
        "RolloutPool swe has no node agent: job 123 of allocation swe-rp-0 runs on n1, but its node agent has lost "
        f"its connection {SINCE_QUEUED}",
    ),
    (
        "AllocationStarting", {},
        unserved(None, allocation("p-0", **RUNNING, **conditions(condition("Ready", "False", "Starting", "Loading")))),
        "InferencePool policy is starting: job 123 of allocation p-0 runs on n1, and its model server accepts no rollouts "
        f"yet: Loading {SINCE_AT}",
    ),
    (
        "Submitting", {}, lacking(None, allocation("swe-rp-0")),
        f"RolloutPool swe is about to submit allocation swe-rp-0 {SINCE_AT}",
    ),
    (
        "PoolNotReady", {}, unserved(conditions(condition("Ready", "False", "NoEndpointReady", "http://x: refused"))),
        f"InferencePool policy is not ready: NoEndpointReady: http://x: refused {SINCE_AT}",
    ),
    (
        "PoolNotReady", {}, lacking(),
        f"RolloutPool swe has no node agent yet; for details: `rollyard describe rp/swe` {SINCE_QUEUED}",
    ),
    (
        "WalltimeTooShort", {"budgets": {"init_seconds": 50, "run_seconds": 500, "eval_seconds": 50}},
        {"node_agents": [agent("math", ends=NOW + 300), agent("math", ends=NOW + 200)]},
        "it needs 605 s of walltime, but the last allocation of RolloutPool swe ends at 2026-01-01 12:05:00 UTC; "
        "no successor is submitted yet (since 2026-01-01 11:54:55 UTC)",
    ),
    (
        "WalltimeTooShort", {"budgets": {"init_seconds": 50, "run_seconds": 500, "eval_seconds": 50}},
        {
            "node_agents": [agent("math", ends=NOW + 300)],
            "allocations": [allocation("old", ready=True, **RUNNING), allocation("new", reason="Resources", **PENDING)],
        },
        "it needs 605 s of walltime, but the last allocation of RolloutPool swe ends at 2026-01-01 12:05:00 UTC; "
        "RolloutPool swe waits for job 123 of allocation new, which is pending: Resources (nodes that it could run on are "
        "busy) (since 2026-01-01 11:54:55 UTC)",
    ),
    (
        "WalltimeTooShort", {"saved_turns": 5},
        {"node_agents": [agent("math", ends=NOW + 300)]},
        "it needs 395 s of walltime, but the last allocation of RolloutPool swe ends at 2026-01-01 12:05:00 UTC; no successor "
        "is submitted yet; its 5 saved turns are kept (since 2026-01-01 11:58:25 UTC)",
    ),
    (
        "WalltimeTooShort", {"agent": {"resume": "never"}},
        {
            "pool": rollout_pool(allocation={"timeLimit": "00:20:00"}),
            "node_agents": [agent("math", ends=NOW + 300)],
        },
        "it needs 3005 s of walltime, but no allocation of RolloutPool swe has so much: set `allocation.timeLimit` to 00:50:35 "
        "or more, or lower its budgets to 1170 s (since 2026-01-01 11:14:55 UTC)",
    ),
    (
        "EndpointsFull", {},
        {"supplies": [ModelSupply("policy", "policy", inference_pool(conditions(FULL)), ready=1)]},
        "each model server of InferencePool policy is full: e1: its cache is 97% full "
        f"{SINCE_AT}",
    ),
    (
        "GroupVersion", {"group": "g", "group_version": "same"},
        {"served": V7_SERVED, "groups": {"g": GroupVersions(frozenset({"v6"}))}},
        f"its group is sampled from v6, but no endpoint that serves it is ready {SINCE_QUEUED}",
    ),
    (
        "NodeAgentForItself", {"losses": 3}, {"places": {Stage.INIT: {7: 12}}},
        f"3 node agents in a row were lost with it, so it waits for one without other work {SINCE_QUEUED}",
    ),
    (
        "NodeAgentForItself", {"losses": 3}, {"node_agents": [agent("math")] * 5, "exclusive": 2},
        "3 node agents in a row were lost with it, so it waits for one without other work; "
        f"2 of 5 node agents have such a rollout, and at most 2 may {SINCE_QUEUED}",
    ),
    (
        "ImageUnavailable", {"image": "docker://r/a:1"}, {"missing_images": {"docker://r/a:1": missing(failures=2)}},
        "the image docker://r/a:1 cannot be used now: no; it is tried again at 2026-01-01 12:00:09 UTC, and the rollout waits "
        f"for it until 2026-01-01 12:00:00 UTC {SINCE_AT}",
    ),
    (
        # queued again by the last try, and yet it has waited since the first
        "ImageUnavailable", {"image": "docker://r/a:1", "queued_at": NOW - 1},
        {"missing_images": {"docker://r/a:1": missing(failures=2, trying=True)}},
        f"the image docker://r/a:1 cannot be used now: no; a node agent tries it again now {SINCE_AT}",
    ),
    (
        "ImagePulled", {},
        {
            "missing_images": {"docker://r.example/a:1": missing(trying=True, image="docker://r.example/a:1")},
            "pool": rollout_pool(sandbox={"defaultImage": "docker://r.example/a:1"}),
        },
        f"a node of RolloutPool swe pulls the image docker://r.example/a:1 {SINCE_QUEUED}",
    ),
    (
        "ImagePulled", {"image": "docker://r/b:1", "eval_image": "docker://r/a:1"},
        {"missing_images": {"docker://r/a:1": missing(trying=True)}},
        f"a node of RolloutPool swe pulls the image docker://r/a:1 {SINCE_QUEUED}",
    ),
    ("InQueue", {}, {"places": {Stage.INIT: {7: 12}}}, f"12 rollouts for INIT are before it in RolloutPool swe {SINCE_QUEUED}"),
    (
        "InQueue", {}, {"places": {Stage.INIT: LOOKED_AT}},
        f"more than 10000 rollouts for INIT are before it in RolloutPool swe {SINCE_QUEUED}",
    ),
    (
        "InQueue", {}, {"places": {Stage.EVAL: LOOKED_AT}, "node_agents": [agent("math", init=1)]},
        f"it is next and starts in a moment {SINCE_QUEUED}",
    ),
    ("InQueue", {}, {"node_agents": [agent("math", init=1)]}, f"it is next and starts in a moment {SINCE_QUEUED}"),
    ("InQueue", {}, {}, f"it is next, but all INIT places of the 1 node agents of RolloutPool swe are busy {SINCE_QUEUED}"),
]  # fmt: skip


@pytest.mark.parametrize(("word", "asked", "seen", "sentence"), CASES, ids=[f"{i}-{c[0]}" for i, c in enumerate(CASES)])
def test_what_it_waits_for_is_said(word: str, asked: dict[str, Any], seen: dict[str, Any], sentence: str) -> None:
    assert explain(record(**asked), view(**seen)) == Reason(word, sentence)


def test_a_pool_that_is_missing_is_said() -> None:
    sentence = f"RolloutPool swe does not exist; create it, or cancel the rollout {SINCE_QUEUED}"
    assert explain(record(), None) == Reason("PoolNotFound", sentence)


def test_a_pool_that_goes_is_said() -> None:
    pool = json.loads(rollout_pool().model_dump_json(by_alias=True))
    pool["metadata"]["deletionTimestamp"] = AT
    found = explain(record(), view(pool=RolloutPool.model_validate(pool)))
    assert found == Reason("PoolDeleting", f"RolloutPool swe is being deleted {SINCE_AT}")


def test_each_row_is_tried() -> None:
    assert {word for word, _ in ROWS} == {case[0] for case in CASES} | {"PoolDeleting"}


def test_scoring_waits_for_no_model_server() -> None:
    found = explain(record(stage=Stage.EVAL), view(**unserved(suspend=True)))
    assert found is not None
    assert found.word == "InQueue"


def test_a_node_agent_that_has_not_said_its_kinds_may_know_this_one() -> None:
    found = explain(record(), view(node_agents=[agent("code"), agent()]))
    assert found is not None
    assert found.word == "InQueue"


@pytest.mark.parametrize("status", [s for s in Status if s is not Status.QUEUED])
def test_what_is_not_queued_waits_for_nothing(status: Status) -> None:
    assert explain(record(status=status), None) is None


def test_a_rollout_that_is_parked_in_run_says_what_its_model_servers_lack() -> None:
    assert {word for word, _ in ROWS} >= OF_MODEL_SERVERS
    running, since = record(status=Status.RUNNING), 1_767_265_200.0
    suspended = explain_parked(running, view(**unserved(suspend=True)), since)
    assert str(suspended).startswith("Parked: in RUN, its budget stands still: InferencePool policy is suspended; ")
    assert suspended.message.endswith("(since 2026-01-01 11:00:00 UTC)")
    assert (
        "does not exist"
        in explain_parked(running, view(supplies=[ModelSupply("policy", "policy", None)]), since).message
    )
    assert "no model server accepts it yet" in explain_parked(running, view(), since).message
