"""The plan of an update of weights: a table of what endpoints say, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rollyard.core.errors import Conflict
from rollyard.kinds.base import Reason, evolve
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate
from rollyard.server.weights.engine_target import EndpointWeights, target_for, why_not_routable
from rollyard.server.weights.pool_update import WeightsStep, advance, begin
from rollyard.wire.engine import WeightsReport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MODEL = "/m"


def update(version: str = "v1", **more: Any) -> WeightsUpdate:
    given = {"path": f"/w/{version}"} | more
    return WeightsUpdate.model_validate({"version": version, **given})


def later(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


class Pool:
    """A pool of engines that do at once what they are told, unless a test says otherwise."""

    def __init__(self, count: int, version: str = "spec") -> None:
        self.weights = WeightsStatus()
        self.members = {f"e{i}": serving(f"e{i}", version) for i in range(count)}
        self.said: list[str] = []
        self.step()

    def step(self, now: datetime = NOW) -> WeightsStep:
        step = advance(self.weights, MODEL, list(self.members.values()), now)
        self.weights = step.weights
        self.said += [s.reason for s in step.events]
        return step

    def begin(self, wanted: WeightsUpdate, now: datetime = NOW) -> bool:
        self.weights, new = begin(self.weights, MODEL, wanted, now)
        return new

    def say(self, id: str, **more: Any) -> None:
        member = self.members[id]
        facts = {name: more.pop(name) for name in more.keys() & WeightsReport.model_fields.keys()}
        self.members[id] = replace(member, report=evolve(member.report, **facts), **more)

    def ordered(self) -> list[str]:
        return [id for id, p in self.endpoints.items() if p.phase == "Ordered"]

    def takes(self, id: str) -> None:
        """It does what it was told."""
        order = target_for(self.weights, id)
        assert order is not None
        self.say(id, version=order.version, checksum=order.checksum or "c", phase="", error="", acknowledged=order)

    def refuses(self, id: str, error: str = "no such folder") -> None:
        self.say(id, phase="Failed", error=error, acknowledged=target_for(self.weights, id))

    def heap(self) -> list[str]:
        return [id for id, m in self.members.items() if m.is_serving and not why_not_routable(self.weights, m)]

    @property
    def endpoints(self) -> dict[str, Any]:
        assert self.weights.operation is not None
        return self.weights.operation.endpoints

    @property
    def phase(self) -> str:
        assert self.weights.operation is not None
        return self.weights.operation.phase

    @property
    def current(self) -> str | None:
        return self.weights.current.version if self.weights.current is not None else None

    @property
    def versions(self) -> list[str]:
        return [r.version for r in self.weights.history]


def serving(id: str, version: str, **more: Any) -> EndpointWeights:
    report = WeightsReport(**{"version": version, "checksum": version, **more})
    return EndpointWeights(id, report, is_heard=True, healthy=True)


def carry_out(pool: Pool, rounds: int = 40) -> list[int]:
    """Every engine does what it is told; answers how many were at it at once, round by round."""
    at_once = []
    for _ in range(rounds):
        pool.step()
        if pool.phase not in ("Pending", "Updating"):
            return at_once
        at_once.append(len(pool.ordered()))
        for id in pool.ordered():
            pool.takes(id)
    raise AssertionError(f"still {pool.phase}")


# the ordinary course


@pytest.mark.parametrize(
    ("mode", "count", "most"), [("Drain", 8, 2), ("Drain", 3, 1), ("Drain", 1, 1), ("Pause", 8, 8), ("Abort", 3, 3)]
)
def test_as_many_at_once_as_the_mode_allows(mode: str, count: int, most: int) -> None:
    pool = Pool(count)
    assert (pool.current, pool.versions) == ("spec", ["spec"]), "called as the first engine found it"
    assert pool.begin(update(mode=mode))
    at_once = carry_out(pool)
    assert max(at_once) == most
    assert (pool.phase, pool.current, pool.versions) == ("Complete", "v1", ["spec", "v1"])
    assert pool.said == ["WeightsUpdateStarted", "WeightsUpdated"]
    assert len(pool.heap()) == count


def test_while_it_drains_those_that_wait_serve_the_old_version_and_those_that_have_it_the_new_one() -> None:
    pool = Pool(4)
    pool.begin(update())
    assert len(pool.heap()) == 4, "nothing has begun"
    pool.step()
    (first,) = pool.ordered()
    assert sorted(pool.heap()) == [id for id in pool.members if id != first]
    pool.say(first, phase="Loading")
    pool.step()
    assert pool.ordered() == [first]
    pool.takes(first)
    assert len(pool.heap()) == 4
    pool.step()
    assert first not in pool.ordered()
    assert len(pool.ordered()) == 1
    assert pool.current == "spec", "until the operation is over"
    assert pool.versions == ["spec", "v1"], "tokens of both are sampled by now"


def test_who_serves_nothing_is_told_at_once() -> None:
    pool = Pool(4)
    pool.say("e3", healthy=False, version="")
    pool.begin(update())
    pool.step()
    assert set(pool.ordered()) == {"e0", "e3"}


def test_what_has_not_been_heard_since_the_servers_start_keeps_its_place() -> None:
    pool = Pool(4)
    pool.begin(update())
    pool.step()
    pool.takes("e0")
    pool.step()
    assert pool.ordered() == ["e1"]
    known = dict(pool.members)
    pool.members = {id: EndpointWeights(id) for id in known}
    pool.step()
    assert pool.ordered() == ["e1"]
    assert pool.endpoints["e0"].phase == "Done"
    pool.members = known
    carry_out(pool)
    assert pool.phase == "Complete"


def test_an_engine_that_was_started_anew_loads_the_target_and_counts_again() -> None:
    pool = Pool(2)
    pool.begin(update())
    pool.step()
    pool.takes("e0")
    pool.step()
    pool.say("e0", healthy=False, version="")
    pool.step()
    assert pool.endpoints["e0"].phase == "Ordered"
    assert target_for(pool.weights, "e0", fresh=True).version == "v1"  # type: ignore[union-attr]
    carry_out(pool)
    assert pool.phase == "Complete"


def test_without_an_endpoint_an_update_is_not_complete_and_says_what_it_waits_for() -> None:
    pool = Pool(0)
    pool.begin(update())
    pool.step()
    assert (pool.phase, pool.current, pool.said) == ("Pending", None, [])
    assert pool.weights.operation is not None
    assert "waits for the pool's first endpoint" in pool.weights.operation.message
    assert target_for(pool.weights, "e0", fresh=True).path == "/w/v1"  # type: ignore[union-attr]
    pool.members["e0"] = EndpointWeights("e0", is_heard=True)
    pool.step()
    assert (pool.phase, pool.ordered(), pool.weights.operation.message) == ("Updating", ["e0"], "")
    pool.say("e0", healthy=True)
    carry_out(pool)
    assert (pool.phase, pool.current) == ("Complete", "v1")


def test_a_typo_does_not_become_the_target_of_endpoints_to_come() -> None:
    pool = Pool(0)
    pool.begin(update("typo"))
    pool.step()
    pool.members["e0"] = EndpointWeights("e0", is_heard=True)
    pool.step()
    pool.refuses("e0")
    pool.step()
    assert (pool.phase, pool.current) == ("Failed", None)
    assert target_for(pool.weights, "e1", fresh=True) is None, "it serves the model of the spec"
    assert target_for(pool.weights, "e0", fresh=True) is None


def test_an_endpoint_that_goes_meanwhile_is_not_waited_for() -> None:
    pool = Pool(2)
    pool.begin(update())
    pool.step()
    del pool.members["e0"]
    carry_out(pool)
    assert pool.phase == "Complete"
    assert pool.weights.operation is not None
    assert (pool.weights.operation.done, pool.weights.operation.total) == (1, 1)


def test_when_all_go_meanwhile_the_next_one_shows_whether_it_can_be_served() -> None:
    pool = Pool(1)
    pool.begin(update("typo"))
    pool.step()
    del pool.members["e0"]
    pool.step(later(10))
    assert (pool.phase, pool.current) == ("Updating", "spec"), "nobody has proven it"
    assert target_for(pool.weights, "e1", fresh=True).version == "typo"  # type: ignore[union-attr]
    pool.members["e1"] = EndpointWeights("e1", is_heard=True)
    pool.step(later(20))
    pool.refuses("e1")
    pool.step(later(21))
    assert (pool.phase, pool.current) == ("Failed", "spec")
    assert pool.begin(update("v1"), later(30))
    pool.step(later(30))
    del pool.members["e1"]
    pool.step(later(31))
    pool.members["e2"] = EndpointWeights("e2", is_heard=True, healthy=True)
    carry_out(pool)
    assert (pool.phase, pool.current) == ("Complete", "v1")


# failures


def test_who_failed_stays_out_and_says_why_and_the_others_go_on() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Pause"))
    pool.step()
    pool.takes("e0")
    pool.refuses("e1", "its disk is full")
    pool.step()
    assert (pool.phase, pool.current, pool.heap()) == ("Complete", "v1", ["e0"])
    assert why_not_routable(pool.weights, pool.members["e1"]) == Reason("WeightsFailed", "v1: its disk is full")
    assert pool.said == ["WeightsUpdateStarted", "WeightsUpdateFailed", "WeightsUpdated"]
    assert pool.weights.operation is not None
    assert "1 of 2 endpoints" in pool.weights.operation.message
    pool.takes("e1")
    pool.step()
    assert pool.heap() == ["e0", "e1"]
    assert not pool.endpoints, "it is not remembered against it"


def test_when_all_failed_the_old_version_stays_and_they_come_back() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Abort"))
    pool.step()
    assert pool.heap() == []
    pool.refuses("e0")
    pool.step()
    assert pool.phase == "Updating"
    pool.refuses("e1")
    pool.step()
    assert (pool.phase, pool.current, pool.versions) == ("Failed", "spec", ["spec"])
    assert pool.heap() == ["e0", "e1"], "they still have it"
    order = target_for(pool.weights, "e0")
    assert order is not None
    assert (order.version, order.path) == ("spec", MODEL), "and one that lost it is told to load it"
    assert pool.begin(update(path="/elsewhere")), "a version that nobody served may mean something else"


def test_a_drain_that_fails_everywhere_it_is_tried_spares_the_rest() -> None:
    pool = Pool(12)
    pool.begin(update())
    for _ in range(3):
        pool.step()
        for id in pool.ordered():
            pool.refuses(id)
    pool.step()
    assert pool.phase == "Failed"
    assert pool.said.count("WeightsUpdateFailed") == 3
    assert len(pool.heap()) == 12


def test_a_failure_of_the_order_before_is_none_of_this_one() -> None:
    pool = Pool(1)
    pool.begin(update("v1"))
    pool.step()
    pool.refuses("e0")
    pool.step()
    assert pool.phase == "Failed"
    pool.begin(update("v2"))
    pool.step()
    pool.step()
    assert (pool.phase, pool.ordered()) == ("Updating", ["e0"]), "it has not spoken of v2 yet"
    pool.refuses("e0")
    pool.step()
    assert pool.phase == "Failed"


def test_who_does_not_do_it_in_time_has_failed_and_may_still_come() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Pause", timeoutSeconds=60))
    pool.step()
    pool.takes("e0")
    pool.say("e1", phase="Draining")
    pool.step(later(60))
    assert pool.phase == "Updating"
    pool.step(later(61))
    assert (pool.phase, pool.current) == ("Complete", "v1")
    assert pool.endpoints["e1"].reason == "not done after 60 s: it is Draining"
    pool.takes("e1")
    pool.step(later(90))
    assert pool.heap() == ["e0", "e1"]


def test_in_a_drain_the_time_of_one_begins_with_its_turn() -> None:
    pool = Pool(2)
    pool.begin(update(timeoutSeconds=60))
    pool.step()
    pool.step(later(59))
    pool.takes("e0")
    pool.step(later(59))
    pool.step(later(100))
    assert pool.ordered() == ["e1"]


def test_the_time_of_what_is_silent_begins_when_it_was_heard_last_or_the_server_came_back() -> None:
    pool = Pool(3)
    pool.begin(update(timeoutSeconds=60))
    pool.step()
    assert pool.ordered() == ["e0"]
    members = dict(pool.members)
    pool.members = {id: EndpointWeights(id, known_for=1) for id in members}
    pool.step(later(1000))
    assert [p.phase for p in pool.endpoints.values()] == ["Ordered", "Waiting", "Waiting"], "just started"
    pool.members = {id: replace(m, known_for=9) for id, m in members.items()}
    pool.members["e2"] = EndpointWeights("e2", known_for=8)
    pool.step(later(1008))
    assert pool.ordered() == ["e0"], "it has been told only now"
    assert pool.endpoints["e2"].phase == "Waiting", "silent for a moment"
    pool.takes("e0")
    pool.members["e2"] = EndpointWeights("e2", known_for=61)
    pool.step(later(1061))
    assert pool.endpoints["e2"].reason == "not done after 60 s: it no longer reports"
    assert pool.ordered() == ["e1"]


def test_another_content_under_the_same_version_is_refused() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Pause"))
    pool.step()
    pool.say("e0", version="v1", checksum="aaa", acknowledged=target_for(pool.weights, "e0"))
    pool.say("e1", version="v1", checksum="bbb", acknowledged=target_for(pool.weights, "e1"))
    pool.step()
    assert pool.phase == "Complete"
    assert pool.heap() == ["e0"]
    assert "its folder has checksum bbb, not aaa" in str(why_not_routable(pool.weights, pool.members["e1"]))
    assert pool.begin(update(mode="Pause"))
    pool.step()
    assert pool.ordered() == ["e1"], "what it says yet is about the first time"
    order = target_for(pool.weights, "e1")
    assert order is not None
    assert order.checksum == "aaa", "so that it looks again, though it serves something by this name"
    pool.say("e1", acknowledged=order)
    pool.step()
    assert pool.ordered() == ["e1"], "it is looking"
    pool.takes("e1")
    pool.step()
    assert (pool.phase, pool.heap()) == ("Complete", ["e0", "e1"])


def test_what_came_late_from_another_folder_is_not_what_is_asked_for_now() -> None:
    pool = Pool(2)
    pool.begin(update("v1", path="/a", timeoutSeconds=60))
    pool.step()
    pool.say("e0", phase="Loading", acknowledged=target_for(pool.weights, "e0"))
    pool.refuses("e1")
    pool.step(later(61))
    pool.refuses("e1")
    pool.step(later(62))
    pool.step(later(130))
    assert pool.phase == "Failed"
    before = pool.members["e0"].acknowledged
    pool.begin(update("v1", path="/b"), later(140))
    pool.say("e0", version="v1", checksum="aaa", phase="", acknowledged=before)
    pool.step(later(140))
    assert pool.endpoints["e0"].phase == "Ordered"
    assert "e0" not in pool.heap()
    pool.say("e0", checksum="bbb", acknowledged=target_for(pool.weights, "e0"))
    pool.step(later(141))
    assert pool.endpoints["e0"].phase == "Done"
    assert pool.weights.operation is not None
    assert pool.weights.operation.target.proven == "bbb"


def test_the_same_again_after_failures_tries_those_once_more() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Pause"))
    pool.step()
    pool.takes("e0")
    before = target_for(pool.weights, "e0")
    pool.refuses("e1")
    pool.step()
    assert pool.begin(update(mode="Pause"), later(100))
    pool.step(later(100))
    assert (pool.phase, pool.ordered()) == ("Updating", ["e1"])
    assert target_for(pool.weights, "e0") == before, "who has it is told nothing new"
    again = target_for(pool.weights, "e1")
    assert again is not None
    assert again.attempt == 2
    pool.takes("e1")
    pool.step(later(101))
    assert (pool.phase, pool.heap()) == ("Complete", ["e0", "e1"])
    assert target_for(pool.weights, "e1") == again, "nor is who has done it since"
    assert not pool.begin(update(mode="Pause")), "nothing is left to do"


# one version, one meaning


def test_the_same_body_attaches_and_another_one_is_a_conflict() -> None:
    pool = Pool(2)
    assert pool.begin(update())
    assert not pool.begin(update())
    for other in (
        update(path="/else"),
        update(mode="Abort"),
        update(path=None, adapter="/w/v1"),
        update(timeoutSeconds=5),
        update(transfer=True),
    ):
        with pytest.raises(Conflict, match="is being loaded from path /w/v1 in mode Drain"):
            pool.begin(other)
    carry_out(pool)
    assert not pool.begin(update())
    with pytest.raises(Conflict, match="use another version name for other weights"):
        pool.begin(update(path="/else"))
    with pytest.raises(Conflict, match="with checksum c; use another version name"):
        pool.begin(update(checksum="0123456789ab"))


def test_a_new_one_supersedes_what_is_under_way() -> None:
    pool = Pool(4)
    pool.begin(update("v1"))
    pool.step()
    pool.takes("e0")
    pool.step()
    pool.begin(update("v2"))
    started = pool.step()
    assert "instead of the update to v1" in started.events[0].message
    assert "e0" in pool.heap() or "e0" in pool.ordered(), "what has v1 by now serves until its turn"
    carry_out(pool)
    assert (pool.current, pool.versions) == ("v2", ["spec", "v1", "v2"])


def test_going_back_makes_an_old_version_the_newest() -> None:
    pool = Pool(1)
    for wanted in (update("v1"), update("v2"), update("v1")):
        assert pool.begin(wanted)
        carry_out(pool)
    assert pool.versions == ["spec", "v2", "v1"]
    assert pool.weights.at_least("v1", "v2")
    assert not pool.weights.at_least("v2", "v1")
    assert (pool.weights.behind("v2"), pool.weights.behind("spec"), pool.weights.behind("v1")) == (1, 2, 0)


def test_versions_that_are_not_known_are_neither_early_nor_late() -> None:
    pool = Pool(1)
    assert not pool.weights.at_least("spec", "v9")
    assert not pool.weights.at_least("v9", "spec")
    assert pool.weights.behind("v9") == 0


# the model of the spec


def test_without_an_update_an_engine_is_told_nothing() -> None:
    pool = Pool(2)
    assert target_for(pool.weights, "e0") is None
    assert target_for(pool.weights, "e9", fresh=True) is None


def test_a_first_update_that_comes_late_is_not_taken_for_the_model_of_the_spec() -> None:
    pool = Pool(0)
    pool.members = {id: EndpointWeights(id, is_heard=True) for id in ("e0", "e1")}
    pool.begin(update(timeoutSeconds=60))
    pool.step()
    pool.step(later(61))
    assert (pool.phase, pool.current) == ("Failed", None)
    pool.say("e0", healthy=True, version="v1", checksum="c")
    pool.step(later(90))
    assert (pool.phase, pool.current, pool.heap()) == ("Complete", "v1", ["e0"])
    order = target_for(pool.weights, "e1", fresh=True)
    assert order is not None
    assert (order.version, order.path) == ("v1", "/w/v1")
    assert not pool.begin(update(timeoutSeconds=60)), "it is what was asked for"


def test_what_is_called_by_a_name_of_its_own_is_not_the_model_of_the_spec() -> None:
    pool = Pool(0)
    pool.weights = WeightsStatus(model=MODEL)
    pool.members = {"e0": serving("e0", "v1", checksum="c"), "e1": serving("e1", "spec")}
    pool.step()
    assert pool.current == "spec"


def test_a_folder_that_was_written_over_is_not_served_under_a_name_that_means_something_else() -> None:
    pool = Pool(2)
    pool.say("e1", version="other", checksum="c")
    assert pool.heap() == ["e0"]
    assert "--version other --path /m" in str(why_not_routable(pool.weights, pool.members["e1"]))
    pool.begin(update("other", path=MODEL))
    carry_out(pool)
    assert pool.current == "other"
    assert pool.heap() == ["e0", "e1"]


def test_another_model_in_the_spec_begins_anew() -> None:
    pool = Pool(2)
    pool.begin(update("v1"))
    carry_out(pool)
    pool.begin(update("v2"))
    pool.step()
    pool.members = {}
    step = advance(pool.weights, "/other", [], NOW)
    assert [s.reason for s in step.events] == ["WeightsReset"]
    assert step.weights.current is None
    assert step.weights.operation is not None
    assert step.weights.operation.phase == "Superseded"
    assert target_for(step.weights, "new", fresh=True) is None, "it serves the folder in the spec"
    after = advance(step.weights, "/other", [serving("new", "o")], NOW).weights
    assert after.current is not None
    assert (after.current.version, after.current.path) == ("o", "/other")
    assert after.at_least("o", "v1")


@pytest.mark.parametrize("crash_after", range(12))
def test_what_is_in_the_status_is_all_that_is_needed(crash_after: int) -> None:
    """Wherever the server dies: what it has written, read back, goes on to the same end."""
    pool = Pool(4)
    pool.begin(update())
    for step in range(40):
        if step == crash_after:
            pool.weights = WeightsStatus.model_validate_json(pool.weights.model_dump_json(by_alias=True))
            heard, pool.members = pool.members, {id: EndpointWeights(id) for id in pool.members}
            pool.step()
            pool.members = heard
        pool.step()
        if pool.phase == "Complete":
            break
        for id in pool.ordered():
            pool.takes(id)
    assert (pool.phase, pool.current) == ("Complete", "v1")
    assert len(pool.heap()) == 4


# weights that the trainer moves itself


def test_who_waits_for_the_trainer_is_said_once_all_whose_turn_it_is_wait() -> None:
    pool = Pool(3)
    pool.begin(update(mode="Pause", transfer=True))
    pool.step()
    for id, phase, note in [("e0", "Transferring", ""), ("e1", "Draining", ""), ("e2", "Loading", "NoTransfer: old")]:
        order = target_for(pool.weights, id)
        assert order is not None
        assert order.transfer
        pool.say(id, phase=phase, note=note, acknowledged=order)
    pool.step()
    assert [pool.endpoints[id].transferring for id in ("e0", "e1", "e2")] == [True, False, False]
    assert receivers(pool) == [], "e1 will wait for the same broadcast; e2 reads the folder"
    pool.say("e1", phase="Transferring")
    pool.step()
    assert receivers(pool) == ["e0", "e1"]
    pool.say("e1", healthy=False, phase="Loading")
    pool.step()
    assert receivers(pool) == ["e0"], "e1 was killed, and nobody knows when it will be back"
    pool.say("e1", healthy=True, phase="Transferring")
    pool.takes("e0")
    pool.step()
    assert receivers(pool) == ["e1"]
    assert (pool.endpoints["e0"].phase, pool.endpoints["e0"].transferring) == ("Done", False)


def receivers(pool: Pool) -> list[str]:
    assert pool.weights.operation is not None
    return pool.weights.operation.receivers


@pytest.mark.parametrize(
    ("note", "words"),
    [
        ("", ""),
        ("TransferLost: silent", "TransferLost: silent"),
        (None, "its release of Rollyard does not support transfers"),
    ],
)
def test_an_update_says_who_read_the_folder_instead(note: str | None, words: str) -> None:
    pool = Pool(1)
    pool.begin(update(transfer=True))
    pool.step()
    pool.takes("e0")
    pool.say("e0", note=note)
    pool.step()
    assert (pool.phase, pool.current) == ("Complete", "v1")
    assert pool.weights.operation is not None
    said = pool.weights.operation.message
    assert (f"1 of them without a transfer (e0: {words})" in said) == bool(words), said


def test_nobody_waits_for_a_trainer_when_the_update_is_over_and_whoever_asks_again_is_there_again() -> None:
    pool = Pool(2)
    pool.begin(update(mode="Pause", transfer=True))
    pool.step()
    pool.takes("e0")
    pool.refuses("e1")
    pool.step()
    assert pool.phase == "Complete"
    order = target_for(pool.weights, "e1")
    assert order is not None
    assert not order.transfer, "it reads the folder"
    for transfer in (True, False):
        assert pool.begin(update(mode="Pause", transfer=transfer))
        pool.step()
        order = target_for(pool.weights, "e1")
        assert order is not None
        assert order.transfer == transfer
        pool.refuses("e1")
        pool.step()


def test_a_transfer_needs_a_folder_that_can_be_read_again() -> None:
    with pytest.raises(ValueError, match="`transfer` needs `path`"):
        update(path=None, adapter="/w/a", transfer=True)
