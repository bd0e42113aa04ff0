"""Updates of weights through the API and the controllers, to engines that speak the real wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import pytest

from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.inference_pool import InferencePool
from tests.support.reconciler_site import Site
from tests.support.weights_site import BASE, MODEL, Disk, WeightsYard

SPEC = "aaaaaaaaaaaa"


@pytest.fixture
async def yard(site: Site) -> AsyncIterator[WeightsYard]:
    async with aiohttp.ClientSession() as http:
        made = WeightsYard(site, http)
        await made.open()
        yield made
        await made.close()


async def test_an_update_reaches_every_engine_and_is_told_from_start_to_end(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    yard.write("v7")
    status, body = await yard.update("v7", mode="Drain")
    assert (status, body["operation"]["phase"], body["operation"]["target"]["version"]) == (202, "Pending", "v7")
    await yard.serve("v7", 2)
    pool = await yard.pool()
    assert [r.version for r in pool.status.weights.history] == [SPEC, "v7"]
    assert [e.weights_version for e in pool.status.endpoints] == ["v7", "v7"]
    fact = await yard.condition("WeightsCurrent")
    assert fact is not None
    assert (fact.status, fact.message) == ("True", "2 of 2 endpoints serve v7")
    started, ended = await yard.event("WeightsUpdateStarted"), await yard.event("WeightsUpdated")
    assert started.message == "v7 from path /weights/v7 on 2 endpoints, mode Drain"
    assert ended.message.startswith("v7 was served by 2 of 2 endpoints after ")
    assert (await yard.update("v7", mode="Drain"))[0] == 200, "there is nothing to begin"
    _, shown = await yard.call("GET", f"{BASE}/policy/weights")
    assert shown["current"]["version"] == "v7"
    assert [e.orders for e in yard.engines.values()] == [["v7"], ["v7"]], "each was told once"


async def test_an_update_of_a_pool_without_endpoints_waits_for_the_first_one_and_says_so(yard: WeightsYard) -> None:
    await yard.pool_of(1)
    yard.write("v1")
    (engine,) = yard.engines.values()
    await engine.crash()

    async def resize(replicas: int) -> None:
        pool = await yard.pool()
        meta = evolve(pool.metadata, resource_version="")  # its status may move meanwhile
        await yard.site.store.objects.update(
            evolve(pool, spec=evolve(pool.spec, replicas=replicas), metadata=meta), "spec"
        )

    await resize(0)
    await yard.site.running(0)
    await yard.update("v1")

    async def waits() -> bool:
        fact = await yard.condition("WeightsCurrent")
        return fact is not None and fact.reason == "NoEndpoint"

    await yard.until(waits)
    fact = await yard.condition("WeightsCurrent")
    assert fact is not None
    assert fact.message.startswith("v1 waits for the pool's first endpoint, which shows whether v1 can be served")
    assert fact.message.endswith("; spec.replicas is 0")
    assert (await yard.pool()).status.weights.operation.phase == "Pending"  # type: ignore[union-attr]
    await resize(1)
    (running,) = await yard.site.running(1)
    yard.engine(running).start()
    await yard.serve("v1", 1)


async def test_a_drain_goes_on_serving(yard: WeightsYard) -> None:
    await yard.pool_of(3)
    yard.write("v1")
    for engine in yard.engines.values():
        engine.hold.clear()
    await yard.update("v1", mode="Drain")
    for done in range(3):
        await yard.until(lambda: sum(e.phase == "Draining" for e in yard.engines.values()) == 1)
        (at_it,) = [e for e in yard.engines.values() if e.phase == "Draining"]
        await yard.until(lambda at_it=at_it: at_it.id not in yard.heap(), "it takes nothing new while it loads")
        assert sorted(yard.heap().values()) == [SPEC] * (2 - done) + ["v1"] * done
        fact = await yard.condition("WeightsCurrent")
        assert fact is not None
        assert (fact.status, fact.reason, fact.message) == ("False", "Updating", f"{done} of 3 endpoints serve v1")
        at_it.hold.set()
        await yard.until(lambda at_it=at_it: yard.heap().get(at_it.id) == "v1")
    await yard.serve("v1", 3)


async def test_what_was_accepted_survives_the_server(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    yard.write("v1")
    held = list(yard.engines.values())
    for engine in held:
        engine.hold.clear()
    assert (await yard.update("v1", mode="Drain"))[0] == 202
    await yard.site.stop()  # the controllers die right after the answer, or after whatever else they wrote by then
    await yard.restart()
    await yard.until(lambda: sum(e.phase == "Draining" for e in held) == 1)
    held[0].hold.set()
    held[1].hold.set()
    await yard.serve("v1", 2)
    await yard.restart()
    await yard.serve("v1", 2)
    assert [e.orders for e in held] == [["v1"], ["v1"]], "nobody reloads because a server was started"


async def test_a_new_and_a_restarted_endpoint_enter_with_the_current_version_only(yard: WeightsYard) -> None:
    await yard.pool_of(1)
    yard.write("v1")
    await yard.update("v1")
    await yard.serve("v1", 1)
    (engine,) = yard.engines.values()
    await engine.crash()
    engine.start()
    await yard.until(lambda: engine.orders == ["v1", "v1"], "the welcome says it")
    await yard.serve("v1", 1)
    pool = await yard.pool()
    meta = evolve(pool.metadata, resource_version="")  # its status may move meanwhile
    await yard.site.store.objects.update(evolve(pool, spec=evolve(pool.spec, replicas=2), metadata=meta), "spec")
    running = await yard.site.running(2)
    new = yard.engine(running[1])
    new.disk_fails = True
    new.start()

    async def unavailable() -> bool:
        state = yard.site.endpoints.get(new.id)
        return state is not None and state.reason is not None and state.reason.word == "WeightsUnavailable"

    await yard.until(unavailable)
    await yard.until(lambda: list(yard.heap()) == [engine.id])

    async def told() -> bool:
        ready, fact = await yard.condition("Ready"), await yard.condition("WeightsCurrent")
        return (
            ready is not None
            and fact is not None
            and (ready.reason, fact.status) == ("WeightsUnavailable", "False")
            and "1 of 2 endpoints serve v1" in fact.message
            and "/weights/v1 cannot be read" in fact.message
        )

    await yard.until(told)
    await new.crash()
    new.disk_fails = False
    new.start()
    await yard.serve("v1", 2)


async def test_one_that_fails_leaves_with_its_reason_and_can_be_tried_again(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    yard.write("v1")
    bad, good = yard.engines.values()
    bad.disk_fails = True
    await yard.update("v1")
    await yard.until(lambda: yard.heap() == {good.id: "v1"})

    async def over() -> bool:
        operation = (await yard.pool()).status.weights.operation
        return operation is not None and operation.phase == "Complete"

    await yard.until(over)
    failed = await yard.event("WeightsUpdateFailed")
    assert (failed.type, failed.message) == ("Warning", f"v1 on {bad.id}: /weights/v1 cannot be read")
    state = yard.site.endpoints.get(bad.id)
    assert state is not None
    assert state.reason == Reason("WeightsFailed", "v1: /weights/v1 cannot be read")
    bad.disk_fails = False
    assert (await yard.update("v1"))[0] == 202, "the same again tries those that failed"
    await yard.serve("v1", 2)
    assert good.orders == ["v1"]


async def test_one_that_holds_another_content_is_told_which_when_it_is_tried_again(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    yard.write("v1", "111111111111")
    good, bad = yard.engines.values()
    bad.disk = Disk({MODEL: SPEC, "/weights/v1": "222222222222"})
    await yard.update("v1", mode="Drain")

    async def without() -> bool:
        fact = await yard.condition("WeightsCurrent")
        return fact is not None and fact.reason == "EndpointsWithout"

    await yard.until(without)
    fact = await yard.condition("WeightsCurrent")
    assert fact is not None
    assert "1 of 2 endpoints serve v1" in fact.message
    weights = (await yard.pool()).status.weights
    assert weights.current is not None
    if weights.current.proven == "222222222222":  # it was the first, and so it is right
        good, bad = bad, good
    first, second = (e.order for e in (good, bad))
    assert first is not None
    assert first.checksum is None, "what it holds is what the version means"
    bad.disk.folders["/weights/v1"] = good.checksum
    assert (await yard.update("v1", mode="Drain"))[0] == 202
    await yard.serve("v1", 2)
    assert bad.order is not None
    assert second is not None
    assert (bad.order.checksum, bad.order.attempt) == (good.checksum, second.attempt + 1)
    assert good.orders == ["v1"]


async def test_when_all_fail_the_old_version_stays(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    assert (await yard.update("v1", path="/nowhere"))[0] == 202

    async def failed() -> bool:
        fact = await yard.condition("WeightsCurrent")
        return fact is not None and fact.status == "True" and "update failed" in fact.message

    await yard.until(failed)
    fact = await yard.condition("WeightsCurrent")
    assert fact is not None
    assert fact.reason == "Current", "it is true for all: the failure is the update's"
    assert fact.message.startswith("2 of 2 endpoints serve aaaaaaaaaaaa; the last update failed: ")
    assert "v1 failed on 2 of 2 endpoints and no endpoint serves it; aaaaaaaaaaaa stays" in fact.message
    assert "/nowhere cannot be read" in fact.message
    await yard.until(lambda: sorted(yard.heap().values()) == [SPEC, SPEC])
    yard.write("v1")
    assert (await yard.update("v1"))[0] == 202, "nobody has served it, so it may be somewhere else"
    await yard.serve("v1", 2)


async def test_bad_orders_say_what_one_can_do(yard: WeightsYard) -> None:
    await yard.pool_of(1)
    yard.write("v1")
    (engine,) = yard.engines.values()
    engine.hold.clear()
    await yard.update("v1")
    for body, status, words in (
        ({"version": "v1", "path": "/else", "mode": "Pause"}, 409, "send the same body to attach"),
        ({"version": "v1"}, 422, "exactly one of `path`"),
        ({"version": "v1", "path": "/a", "adapter": "/b"}, 422, "exactly one of `path`"),
        ({"version": "a b", "path": "/a"}, 422, "version"),
        ({"version": "v2", "path": "relative"}, 422, "absolute path"),
        ({"version": "v2", "path": "/a", "mode": "Now"}, 422, "mode"),
        ({"version": "v2", "path": "/a", "transferred": True}, 422, "transferred"),
    ):
        found, answer = await yard.call("POST", f"{BASE}/policy/weights", json=body)
        assert (found, words in answer["message"]) == (status, True), answer
    assert (await yard.call("POST", f"{BASE}/none/weights", json={"version": "v", "path": "/a"}))[0] == 404
    external = {
        "metadata": {"name": "theirs"},
        "spec": {"model": {"path": MODEL}, "engine": {"external": {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}}},
    }
    await yard.site.store.objects.create(InferencePool.model_validate(external))
    found, answer = await yard.call("POST", f"{BASE}/theirs/weights", json={"version": "v", "path": "/a"})
    assert found == 422
    assert "load the weights there" in answer["message"]
    engine.hold.set()
    await yard.serve("v1", 1)


async def test_a_newer_update_takes_the_place_of_the_one_under_way(yard: WeightsYard) -> None:
    await yard.pool_of(2)
    yard.write("v1")
    yard.write("v2")
    for engine in yard.engines.values():
        engine.hold.clear()
    await yard.update("v1")
    await yard.until(lambda: all(e.orders == ["v1"] for e in yard.engines.values()))
    assert (await yard.update("v2"))[1]["operation"]["supersedes"] == "v1"
    await yard.until(lambda: all(e.orders == ["v1", "v2"] for e in yard.engines.values()))
    for engine in yard.engines.values():
        engine.hold.set()
    await yard.serve("v2", 2)
    assert [r.version for r in (await yard.pool()).status.weights.history] == [SPEC, "v2"], "and no endpoint serves it"


async def test_neither_writer_loses_what_the_other_wrote(yard: WeightsYard) -> None:
    """Orders come while the controller writes its status all the time."""
    await yard.pool_of(2)
    for n in range(12):
        yard.write(f"v{n}")
        assert (await yard.update(f"v{n}"))[0] == 202
        for _ in range(3):
            yard.site.manager.add((await yard.pool()).key)
    await yard.serve("v11", 2)
    pool = await yard.pool()
    assert pool.status.replicas.ready == 2
    assert pool.status.next_index == 2


async def test_another_model_in_the_spec_begins_anew(yard: WeightsYard) -> None:
    await yard.pool_of(1)
    yard.write("v1")
    await yard.update("v1")
    await yard.serve("v1", 1)
    pool = await yard.pool()
    model = evolve(pool.spec.model, path="/models/other")
    yard.disk.folders["/models/other"] = "bbbbbbbbbbbb"
    anew = {"spec": evolve(pool.spec, model=model)}
    anew["metadata"] = evolve(pool.metadata, resource_version="")  # its status may move meanwhile
    await yard.site.store.objects.update(evolve(pool, **anew), "spec")
    running = await yard.site.running(2)
    (old,) = yard.engines.values()
    assert yard.heap() == {old.id: "v1"}, "it serves until its successor is ready"
    new = yard.engine(running[1])
    yard.disk.folders[MODEL] = "bbbbbbbbbbbb"  # what an engine without an order loads here
    new.start()
    await yard.until(lambda: yard.heap().get(new.id) == "bbbbbbbbbbbb")

    async def current() -> bool:
        found = (await yard.pool()).status.weights.current
        return found is not None and (found.version, found.path) == ("bbbbbbbbbbbb", "/models/other")

    await yard.until(current)
    assert "spec.model.path is now /models/other" in (await yard.event("WeightsReset")).message


async def test_a_rollout_that_waits_for_a_version_says_so(yard: WeightsYard) -> None:
    await yard.pool_of(1)
    await yard.site.apply(replicas=0, inference={"policy": "policy"})
    task = {"kind": "math", "problem": "?", "answer": "1"}
    body = {"id": "a", "pool": "swe", "task": task, "min_weights_version": "v1"}
    status, answer = await yard.call("POST", "/v1/rollouts", json=body)
    assert status == 202, answer

    async def waits(words: str) -> str | None:
        _, found = await yard.call("GET", "/v1/rollouts/a")
        sentence = str(found["rollout"]["waiting"])
        return sentence if sentence.startswith(words) else None

    before = f"WeightsVersion: InferencePool policy has not served version 'v1' yet; it serves {SPEC} (since "
    await yard.until(lambda: waits(before))
    yard.write("v1")
    await yard.update("v1")
    await yard.serve("v1", 1)  # the routing learns of it a moment later
    sentence = await yard.until(lambda: waits("NoReplicas: RolloutPool swe has 0 replicas"), "no more for its weights")
    _, listed = await yard.call("GET", "/v1/rollouts")
    assert [r["waiting"] for r in listed["rollouts"]] == [sentence]


async def test_versions_of_engines_that_are_not_ours_cannot_be_asked_for(yard: WeightsYard) -> None:
    spec = {"model": {"path": MODEL}, "engine": {"external": {"endpoints": [{"url": "http://127.0.0.1:1/v1"}]}}}
    await yard.site.store.objects.create(InferencePool.model_validate({"metadata": {"name": "theirs"}, "spec": spec}))
    await yard.site.apply(replicas=0, inference={"policy": "theirs"})
    await yard.site.apply(replicas=0, name="alone")
    task = {"kind": "math", "problem": "?", "answer": "1"}
    for pool, asks, words in (
        ("swe", {"max_staleness": 1}, "are external"),
        ("alone", {"min_weights_version": "v1"}, "has no InferencePool for the role 'policy'"),
        ("swe", {"group_version": "same"}, "needs a group"),
    ):
        status, answer = await yard.call("POST", "/v1/rollouts", json={"pool": pool, "task": task} | asks)
        assert (status, words in answer["message"]) == (422, True), answer
    assert (await yard.call("POST", "/v1/rollouts", json={"pool": "swe", "task": task}))[0] == 202
