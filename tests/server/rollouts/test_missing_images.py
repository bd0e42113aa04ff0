"""Held images over a real store: who waits for them, who does not, and what ends the wait."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rollyard.core.clock import as_text
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.reconcilers.rollout_pool import RolloutPoolObserver
from rollyard.server.rollouts import missing_images
from rollyard.server.rollouts.missing_image import FIRST_SECONDS
from rollyard.store.base import MissingImage, RolloutRecord
from rollyard.store.store import Store
from rollyard.wire.node import CapacityRequest, ImageChanges, ImageFault, Lease, LeaseRef, PrefetchImages
from tests.server.rollouts.test_service import KEY, Node, Yard, server
from tests.support.manual_clock import ManualClock

BAD, GOOD = "docker://r.example/bad:1", "docker://r.example/good:1"
SENTENCE = f"the image {BAD} cannot be used now: the registry r.example has no bad:1"
FAULT = ImageFault(image=BAD, message=SENTENCE, permanent=True)


def request(id: str, image: str | None = None, evaluator: dict[str, str] | None = None) -> RolloutRequest:
    task = {"kind": "math", "problem": "?", "answer": "1", "image": image, "evaluator": evaluator}
    return RolloutRequest.model_validate({"id": id, "pool": "swe", "task": task})


@pytest_asyncio.fixture
async def yard(tmp_path: Path) -> AsyncIterator[Yard]:
    clock = ManualClock()
    store = await Store.open(tmp_path, clock)
    async with server(store, tmp_path, clock) as parts:
        yard = Yard(parts, store, clock)
        await yard.declare()
        yield yard
    await yard.store.close()


async def submit(yard: Yard, *requests: RolloutRequest) -> None:
    await yard.rollouts.submit("default", requests)


async def granted(yard: Yard, node: Node, init: int) -> list[str]:
    """Offer this much room, and return the ids of the leases that follow. A round of dispatch has ended after it."""
    before = len(node.leases)
    yard.wants(node, init=init)
    await dispatched(yard)
    return [lease.id for lease in node.leases[before:]]


async def dispatched(yard: Yard) -> None:
    """One round of dispatch. No other round runs in these tests."""
    await yard.dispatcher._dispatch(KEY)


async def give_back(yard: Yard, node: Node, id: str, fault: ImageFault = FAULT) -> RolloutRecord:
    lease = next(lease for lease in reversed(node.leases) if lease.id == id)
    await yard.parts.images.hand_back(ref(lease), node.agent, fault)
    return await yard.rollouts.get("default", id)


def ref(lease: Lease) -> LeaseRef:
    return LeaseRef(namespace=lease.namespace, id=lease.id, fence=lease.fence, stage=lease.stage)


async def missing_images_of(yard: Yard) -> list[MissingImage]:
    return await yard.store.rollouts.missing_images(KEY)


async def test_the_rollouts_of_a_missing_image_wait_and_the_others_pass_them(yard: Yard) -> None:
    await submit(yard, *(request(f"bad-{i}", BAD) for i in range(5)), request("good", GOOD), request("plain"))
    node = yard.node()
    assert await granted(yard, node, 1) == ["bad-0"]
    record = await give_back(yard, node, "bad-0")
    assert (record.status, record.attempt, record.faults, record.losses) == (Status.QUEUED, 1, 0, 0)
    assert await granted(yard, node, 9) == ["good", "plain"]
    (missing,) = await missing_images_of(yard)
    assert (missing.image, missing.failures, missing.message) == (BAD, 1, SENTENCE)
    assert await yard.rollouts.queued(KEY) == {Stage.INIT: 5}
    assert await yard.rollouts.demand(KEY, None) == {Stage.INIT: 0}, "more workers would not help"


async def test_an_image_that_no_rollout_needs_any_more_has_no_time_of_a_next_try(yard: Yard) -> None:
    async def told(default: str = "") -> tuple[int, str]:
        (one,) = await yard.rollouts.failing_images(KEY, default)
        return one.waiting, one.next_try

    await submit(yard, request("bad-0", BAD), request("bad-1", None, {"image": BAD}), request("good", GOOD))
    node = yard.node()
    assert await granted(yard, node, 1) == ["bad-0"]
    await give_back(yard, node, "bad-0")
    (missing,) = await missing_images_of(yard)
    assert await told() == (2, f"at {as_text(missing.until)}")
    await yard.rollouts.cancel("default", "bad-1")
    yard.clock.turn(missing.until - yard.clock.time() + 0.01)
    assert await told() == (1, "as soon as a node has room")
    assert "bad-0" in await granted(yard, node, 1)
    assert await told() == (0, "now")
    await give_back(yard, node, "bad-0")
    await yard.rollouts.cancel("default", "bad-0")
    assert await told() == (0, "when a rollout needs it")
    assert (await told(BAD))[1] == "when a rollout needs it, or a node looks for the pool's default image"
    assert await images_condition(yard) == f"{SENTENCE}; it is tried again when a rollout needs it"
    await submit(yard, request("late", BAD))
    assert (await told())[0] == 1
    assert await images_condition(yard) == SENTENCE


async def images_condition(yard: Yard) -> str:
    """Message of the pool's condition ImagesReady."""
    observer = RolloutPoolObserver(yard.node_agents, yard.rollouts, lambda key: None)
    conditions = (await observer.observe(yard.pool, [])).conditions
    return next(one.message for one in conditions if one.type == "ImagesReady")


async def test_a_rollout_waits_for_the_image_of_its_evaluator_before_it_begins(yard: Yard) -> None:
    """Its agent would work for nothing otherwise."""
    fault = FAULT.model_copy(update={"evaluator": True})
    requests = [request(f"eval-{i}", GOOD, {"image": BAD}) for i in range(3)]
    await submit(yard, *requests, request("good", GOOD), request("both", GOOD, {"image": GOOD}))
    node = yard.node()
    await yard.parts.image_prefetcher.prefetch(KEY)
    assert prefetched(node) == [[GOOD, BAD]]
    assert await granted(yard, node, 1) == ["eval-0"]
    record = await give_back(yard, node, "eval-0", fault)
    assert (record.image, record.eval_image, record.attempt) == (GOOD, BAD, 1)
    assert await granted(yard, node, 9) == ["good", "both"]
    assert await yard.rollouts.demand(KEY, None) == {Stage.INIT: 0}
    assert await yard.store.rollouts.images_needed() == {GOOD, BAD}
    (missing,) = await missing_images_of(yard)
    yard.clock.turn(missing.until - yard.clock.time() + 0.01)
    assert await yard.rollouts.demand(KEY, None) == {Stage.INIT: 1}, "one may try"
    assert await granted(yard, node, 9) == ["eval-0"]
    await yard.parts.images.report(node.agent, ImageChanges(ready=[BAD]))
    assert await granted(yard, node, 9) == ["eval-1", "eval-2"]


async def test_a_rollout_whose_evaluator_has_no_image_for_too_long_ends_with_the_sentence(yard: Yard) -> None:
    await submit(yard, request("eval", None, {"image": BAD}))
    node = yard.node()
    assert await granted(yard, node, 1) == ["eval"]
    await give_back(yard, node, "eval", FAULT.model_copy(update={"evaluator": True}))
    yard.clock.turn(3601.0)
    assert await yard.parts.images.give_up() == 1
    record = await yard.rollouts.get("default", "eval")
    assert record.error is not None
    assert (record.error.reason, record.error.message) == ("ImageUnavailable", SENTENCE)


async def test_one_rollout_tries_the_image_again_and_the_others_wait_for_its_outcome(yard: Yard) -> None:
    await submit(yard, *(request(f"bad-{i}", BAD) for i in range(5)))
    node = yard.node()
    assert await granted(yard, node, 2) == ["bad-0", "bad-1"]
    for id in ("bad-0", "bad-1"):
        await give_back(yard, node, id)
    delays = []
    for failures in (1, 2, 3):
        (missing,) = await missing_images_of(yard)
        assert missing.failures == failures
        delays.append(missing.until - yard.clock.time())
        yard.clock.turn(delays[-1] - 0.01)
        assert await granted(yard, node, 9) == []
        yard.clock.turn(0.02)
        assert await yard.rollouts.demand(KEY, None) == {Stage.INIT: 1}, "one may try"
        assert await granted(yard, node, 9) == ["bad-0"]
        assert await granted(yard, node, 9) == []
        await give_back(yard, node, "bad-0")
    assert FIRST_SECONDS * 0.75 <= delays[0] < delays[1] < delays[2]


async def test_an_image_that_a_node_agent_has_at_last_frees_all_its_rollouts(yard: Yard) -> None:
    await submit(yard, *(request(f"bad-{i}", BAD) for i in range(3)))
    node = yard.node()
    assert await granted(yard, node, 1) == ["bad-0"]
    await give_back(yard, node, "bad-0", ImageFault(image=BAD, message="a node still pulls it", pulling=True))
    assert await granted(yard, node, 9) == []
    await yard.parts.images.report(node.agent, ImageChanges(ready=[BAD]))
    assert await missing_images_of(yard) == []
    await dispatched(yard)
    assert [lease.id for lease in node.leases] == ["bad-0", "bad-0", "bad-1", "bad-2"]


async def test_images_that_wait_for_their_registry_are_tried_when_another_image_of_it_is_there(yard: Yard) -> None:
    node, now = yard.node(), yard.clock.time()
    down = [
        ImageFault(image=image, message="503", registry_down=True) for image in ("docker://r/a:1", "docker://other/a:1")
    ]
    alone = ImageFault(image="docker://r/alone:1", message="503", registry_down=False)
    await yard.parts.images.report(node.agent, ImageChanges(failed=[*down, alone]))
    await yard.parts.images.report(node.agent, ImageChanges(ready=["docker://r/b:1"]))
    assert {missing.image: missing.until <= now for missing in await missing_images_of(yard)} == {
        "docker://r/a:1": True, "docker://other/a:1": False, "docker://r/alone:1": False,
    }  # fmt: skip


async def test_the_last_failure_says_whether_an_image_waits_for_its_registry(yard: Yard) -> None:
    node = yard.node()
    for down in (True, False):
        fault = ImageFault(image=BAD, message="503", registry_down=down)
        await yard.parts.images.report(node.agent, ImageChanges(failed=[fault]))
        (missing,) = await missing_images_of(yard)
        assert missing.registry_down is down


async def test_a_rollout_that_waited_too_long_ends_with_the_sentence(yard: Yard) -> None:
    await yard.declare(sandbox=yard.pool.spec.sandbox.model_copy(update={"default_image": BAD}))
    await submit(yard, request("named", BAD), request("unnamed"))
    node = yard.node()
    assert await granted(yard, node, 1) == ["named"]
    await give_back(yard, node, "named", FAULT.model_copy(update={"default": False}))
    assert await granted(yard, node, 9) == [], "the image is the pool's default too"
    yard.clock.turn(3599.0)
    assert await yard.parts.images.give_up() == 0
    await submit(yard, request("late", BAD))
    yard.clock.turn(2.0)
    assert await yard.parts.images.give_up() == 2
    for id in ("named", "unnamed"):
        record = await yard.rollouts.get("default", id)
        assert record.error is not None
        assert (record.status, record.error.reason, record.error.message) == (
            Status.INFRA_FAILED,
            "ImageUnavailable",
            SENTENCE,
        )
    assert (await yard.rollouts.get("default", "late")).status is Status.QUEUED
    yard.clock.turn(7200.0)
    await yard.parts.images.give_up()
    assert await missing_images_of(yard) == []


async def test_what_is_missing_outlives_the_server(yard: Yard, tmp_path: Path) -> None:
    await submit(yard, request("bad", BAD), request("other", BAD))
    node = yard.node()
    assert await granted(yard, node, 1) == ["bad"]
    await give_back(yard, node, "bad")
    before = await missing_images_of(yard)
    await yard.store.close()
    yard.store = await Store.open(tmp_path, yard.clock)
    async with server(yard.store, tmp_path, yard.clock) as parts:
        again = Yard(parts, yard.store, yard.clock)
        assert await granted(again, again.node("u2"), 9) == []
        assert await missing_images_of(again) == before


async def test_another_nodes_fault_makes_no_image_missing_that_a_node_has(yard: Yard) -> None:
    await submit(yard, *(request(f"r-{i}", BAD) for i in range(3)))
    has, lacks = yard.node("u1"), yard.node("u2")
    assert await granted(yard, lacks, 1) == ["r-0"]
    await yard.parts.images.report(has.agent, ImageChanges(ready=[BAD]))
    record = await give_back(yard, lacks, "r-0")
    assert await missing_images_of(yard) == []
    assert record.not_before > yard.clock.time(), "the rollout itself waits a little"
    assert await granted(yard, has, 9) == ["r-1", "r-2"]


async def test_a_rollout_whose_node_pulls_what_another_has_waits_for_seconds(yard: Yard) -> None:
    await submit(yard, request("r-0", BAD))
    has, lacks = yard.node("u1"), yard.node("u2")
    assert await granted(yard, lacks, 1) == ["r-0"]
    await yard.parts.images.report(has.agent, ImageChanges(ready=[BAD]))
    record = await give_back(yard, lacks, "r-0", FAULT.model_copy(update={"permanent": False, "pulling": True}))
    await yard.parts.images.report(lacks.agent, ImageChanges(ready=[BAD]))
    assert 0 < record.not_before - yard.clock.time() <= FIRST_SECONDS, "no report ends this wait"


async def test_with_too_many_missing_images_the_others_are_not_tried_without_end(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(missing_images, "MOST_MISSING", 1)
    await submit(yard, request("bad", BAD), request("further", GOOD))
    node = yard.node()
    assert await granted(yard, node, 2) == ["bad", "further"]
    await give_back(yard, node, "bad")
    await give_back(yard, node, "further", FAULT.model_copy(update={"image": GOOD}))
    assert [missing.image for missing in await missing_images_of(yard)] == [BAD]
    assert await granted(yard, node, 9) == []
    yard.clock.turn(FIRST_SECONDS)
    assert "further" in await granted(yard, node, 9)


async def test_a_node_that_has_the_image_is_preferred(yard: Yard) -> None:
    has, roomy = yard.node("u1"), yard.node("u2")
    await yard.parts.images.report(has.agent, ImageChanges(ready=[GOOD]))
    yard.node_agents.request_capacity(roomy.agent, capacity(8))
    yard.node_agents.request_capacity(has.agent, capacity(2))
    await submit(yard, *(request(f"g-{i}", GOOD) for i in range(3)), request("plain"))
    await dispatched(yard)
    assert [lease.id for lease in has.leases] == ["g-0", "g-1"]
    assert {lease.id for lease in roomy.leases} == {"g-2", "plain"}, "a preference, not a condition"
    reasons = [entry.reason for entry in (await yard.rollouts.history("default", "g-0")).entries]
    assert "HasImage" in reasons


def capacity(init: int) -> CapacityRequest:
    return CapacityRequest(init=init, kinds=["math"])


def prefetched(node: Node) -> list[list[str]]:
    return [message.images for message in node.sent if isinstance(message, PrefetchImages)]


async def test_node_agents_are_told_the_images_of_the_queue_without_those_that_are_missing(yard: Yard) -> None:
    await submit(yard, request("bad", BAD), request("good", GOOD), request("folder", "/images/root"), request("plain"))
    node = yard.node()
    assert await granted(yard, node, 1) == ["bad"]
    await give_back(yard, node, "bad")
    for _ in range(2):
        await yard.parts.image_prefetcher.prefetch(KEY)
    assert prefetched(node) == [[GOOD]], "once"
    (missing,) = await missing_images_of(yard)
    yard.clock.turn(missing.until - yard.clock.time() + 0.01)
    await yard.parts.image_prefetcher.prefetch(KEY)
    await yard.parts.images.report(node.agent, ImageChanges(ready=[GOOD]))
    await yard.parts.image_prefetcher.prefetch(KEY)
    assert prefetched(node)[1:] == [[BAD, GOOD], [BAD]]
