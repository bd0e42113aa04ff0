"""Submits that are refused because they could only wait or fail, and the API's reasons for everything that waits."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rollyard.kinds.base import KindObject, ObjectKey, evolve
from rollyard.kinds.failure_table import ENDINGS
from rollyard.kinds.pool import PoolKey, Replicas
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.server.rollouts.connected_node_agents import ConnectedNodeAgent
from rollyard.store.base import MissingImage
from tests.api.test_columns import leased
from tests.api.test_hostile_node_agents import hostile
from tests.support import make
from tests.support.outside_api import Api, Serve

KEY = PoolKey("default", "swe")


async def pool(api: Api, **spec: Any) -> None:
    given = {"replicas": 1, "inference": {"policy": "policy"}, **spec}
    body = {"apiVersion": "rollyard.dev/v1alpha1", "kind": "RolloutPool", "metadata": {"name": "swe"}, "spec": given}
    path = "/apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools"
    status, answer = await api.ask("POST", path, body)
    assert status == 201, answer


async def change(api: Api, **spec: Any) -> None:
    path = f"{api.url}/apis/rollyard.dev/v1alpha1/namespaces/default/rolloutpools/swe"
    headers = {"Content-Type": "application/merge-patch+json"}
    async with api.http.patch(path, json={"spec": spec}, headers=headers) as answer:
        assert answer.status == 200, await answer.text()


async def submit(api: Api, *ids: str, kind: str = "math", **more: Any) -> tuple[int, Any]:
    task = {"kind": kind, "problem": "?", "answer": "1"}
    return await api.ask("POST", "/v1/rollouts", [{"id": id, "pool": "swe", "task": task, **more} for id in ids])


async def waiting(api: Api) -> dict[str, str]:
    """Word of each that waits, the same in the list and alone."""
    status, listed = await api.ask("GET", "/v1/rollouts")
    assert status == 200, listed
    found = {r["id"]: r["waiting"] for r in listed["rollouts"]}
    for id, sentence in found.items():
        _, alone = await api.ask("GET", f"/v1/rollouts/{id}")
        assert alone["rollout"]["waiting"] == sentence
    return {id: str(sentence).partition(":")[0] for id, sentence in found.items() if sentence is not None}


async def settled(api: Api, replicas: int) -> None:
    """As its reconciler says when all its allocations are ready."""
    found = await _stored(api)
    size = Replicas(desired=replicas, requested=replicas, observed=replicas, ready=replicas)
    update = {"replicas": size, "observed_generation": found.metadata.generation}
    await api.store.objects.update(evolve(found, status=evolve(found.status, **update)), "status")


async def _stored(api: Api) -> RolloutPool:
    found = await api.store.objects.get(ObjectKey(kind="RolloutPool", namespace="default", name="swe"))
    assert isinstance(found, RolloutPool)
    return found


def connect(api: Api, *kinds: str, uid: str = "u", **failed: str) -> ConnectedNodeAgent:
    agent = make.agent(KEY, uid, kinds=frozenset(kinds), failed_kinds=failed)
    api.node_agents.connect(agent)
    return agent


async def test_nothing_waits_without_a_word(serving: Serve) -> None:
    async with serving() as api:
        await pool(api, replicas=0)
        assert (await submit(api, "a", "b"))[0] == 202
        assert await waiting(api) == {"a": "NoReplicas", "b": "NoReplicas"}
        await change(api, suspend=True)
        assert await waiting(api) == {"a": "PoolSuspended", "b": "PoolSuspended"}
        await change(api, suspend=False, replicas=1)
        assert set((await waiting(api)).values()) == {"PoolNotReady"}, "of the InferencePool, which has no endpoint"
        api.serve("e1", "http://127.0.0.1:1/v1")
        found = (await api.ask("GET", "/v1/rollouts/b"))[1]["rollout"]["waiting"]
        assert found.startswith("PoolNotReady: RolloutPool swe has no node agent yet; "), found
        await api.store.objects.create(await _allocation(api))
        assert set((await waiting(api)).values()) == {"AllocationPending"}
        connect(api, "math")
        found = (await api.ask("GET", "/v1/rollouts/b"))[1]["rollout"]["waiting"]
        assert found.startswith("InQueue: 1 rollouts for INIT are before it in RolloutPool swe (since "), found
        await api.ask("DELETE", "/v1/rollouts/b")
        assert await waiting(api) == {"a": "InQueue"}, "what has ended waits for nothing"


async def _allocation(api: Api) -> KindObject:
    owner = {"kind": "RolloutPool", "name": "swe", "uid": (await _stored(api)).metadata.uid}
    status = {
        "job_state": "PENDING",
        "job_id": "7",
        "reason": "Resources",
        "intents": 1,
        "intended_at": datetime.now(UTC),
    }
    return make.allocation("swe-rp-0", spec={"pool": owner}, **status)


async def test_a_kind_that_no_node_agent_knows_is_refused_where_that_is_certain(serving: Serve) -> None:
    async with serving() as api:
        await pool(api, replicas=2)
        assert (await submit(api, "early", kind="quiz"))[0] == 202, "nobody is there who could say"
        connect(api, "code", "math", uid="u1")
        await settled(api, 2)
        assert (await submit(api, "half", kind="quiz"))[0] == 202, "one has not said it yet"
        connect(api, "code", "math", uid="u2", quiz="ImportError: no haiku (/x/quiz.py:1)")
        status, answer = await submit(api, "late", kind="quiz")
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "rollouts[0].task.kind")
        assert "ImportError: no haiku (/x/quiz.py:1)" in answer["message"]
        assert await waiting(api) == {"early": "UnknownTaskKind", "half": "UnknownTaskKind"}
        assert (await submit(api, "built-in"))[0] == 202
        connect(api, "code", "math", "quiz", uid="u3")
        assert (await submit(api, "now", kind="quiz"))[0] == 202


async def test_a_pool_without_a_policy_is_refused_at_submit(serving: Serve) -> None:
    async with serving() as api:
        await pool(api, inference={})
        status, answer = await submit(api, "a")
        assert status == 422
        assert "RolloutPool 'swe' has no InferencePool for the role 'policy'" in answer["message"]
        assert "add `inference: {policy: <InferencePool>}` to its spec" in answer["message"]
        check = {"mode": "check", "agent": {"type": "nothing"}}
        assert (await submit(api, "b", **check))[0] == 202, "a check has no policy"
        assert await waiting(api) == {"b": "PoolNotReady"}
        assert (await submit(api, "c", min_weights_version="v1", **check))[0] == 422


async def test_an_open_answer_needs_a_pool_with_a_judge(serving: Serve) -> None:
    """Each of its rollouts ended without a reward, long after the submit."""
    fields = {"kind": "stem", "question": "Why?", "form": "open", "answer": "tidal locking"}
    rollout = {"id": "a", "pool": "swe", "task": fields}
    async with serving() as api:
        await pool(api, inference={"policy": "p"})
        status, answer = await api.ask("POST", "/v1/rollouts", [rollout])
        assert (status, answer["details"]["causes"][0]["field"]) == (422, "rollouts[0].task.form")
        assert "add `judge: <InferencePool>` to `inference` of the RolloutPool" in answer["message"]
        check = {"mode": "check", "agent": {"type": "nothing"}}
        assert (await api.ask("POST", "/v1/rollouts", [{**rollout, **check}]))[0] == 202
        await change(api, inference={"policy": "p", "judge": "j"})
        assert (await api.ask("POST", "/v1/rollouts", [{**rollout, "id": "b"}]))[0] == 202


async def test_a_rollout_in_init_says_what_its_node_makes_once(serving: Serve) -> None:
    async with serving() as api, hostile(api) as agent:
        (connected,) = api.parts.node_agents.all()
        await leased(api, "r", holder=connected.holder)
        assert await waiting(api) == {}
        await agent.say(preparing="copies Python")
        found = (await api.ask("GET", "/v1/rollouts/r"))[1]["rollout"]["waiting"]
        assert found == f"Preparing: node {connected.identity.node} copies Python"
        assert await waiting(api) == {"r": "Preparing"}
        await agent.say()
        assert await waiting(api) == {}, "it is made"


async def test_the_failure_table_is_there_to_read(serving: Serve) -> None:
    async with serving() as api:
        status, answer = await api.ask("GET", "/v1/endings")
        assert status == 200
        found = {row["reason"]: row for row in answer["endings"]}
        assert found.keys() == ENDINGS.keys()
        lost = found["SandboxLost"]
        assert (lost["status"], lost["fault"], lost["again"], lost["trainable"]) == (
            "InfraFailed", "Infrastructure", "Counted", False,
        )  # fmt: skip
        assert (lost["stages"], lost["harbor"], lost["nemo_gym"]) == (
            ["INIT", "RUN", "EVAL"],
            "sandbox_failed",
            "session_lost",
        )


async def test_all_missing_images_are_listed_with_their_reasons(serving: Serve) -> None:
    async with serving() as api:
        images = [MissingImage(KEY, f"docker://r/{i}", f"why {i}", failures=i, since=1.0, until=2.0) for i in range(3)]
        await api.store.rollouts.transact(lambda tx: [tx.put_missing_image(one) for one in images])
        _, found = await api.ask("GET", "/v1/images")
        assert [(one["pool"], one["image"], one["message"]) for one in found["missing"]] == [
            ("swe", "docker://r/1", "why 1"),
            ("swe", "docker://r/2", "why 2"),
        ], "an image that is pulled for the first time is not missing"
        assert {one["next_try"] for one in found["missing"]} == {"when a rollout needs it"}
