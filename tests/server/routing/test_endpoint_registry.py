"""The registry on a clock that is turned: who takes work, who is out, who is new, and where a session goes on."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rollyard.kinds.base import Reason
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.kinds.pool import PoolKey
from rollyard.kinds.rollout import RolloutKey
from rollyard.server.routing.endpoint_choice import CLEARED_SECONDS
from rollyard.server.routing.endpoint_registry import STALE_SECONDS
from rollyard.server.routing.endpoint_state import SLOW_START_SECONDS, EndpointState
from rollyard.server.routing.rebalance import Rebalancer
from rollyard.server.routing.session_index import Session
from rollyard.server_process.parts_and_wakeups import Routing
from rollyard.wire.base import Identity
from rollyard.wire.tool_proof import ToolProof
from tests.support import make
from tests.support.manual_clock import ManualClock

POOL = PoolKey("default", "policy")


class Yard:
    """Endpoints, and sessions on them that a test sets."""

    def __init__(self, *names: str) -> None:
        self.clock = ManualClock()
        parts = Routing(self.clock)
        self.endpoints, self.choice, self.index = parts.endpoints, parts.choice, parts.sessions
        self.rebalancer = parts.rebalancer(ask_external=lambda session, endpoint, urgent: False)
        self.probes = 0
        self.endpoints.endpoint_suspected.connect(self._suspected)
        for name in names:
            self.register(name)
            self.beat(name)
        self.clock.turn(SLOW_START_SECONDS)
        for name in names:
            self.beat(name)

    def _suspected(self, endpoint: str) -> None:
        self.probes += 1

    def register(self, name: str, port: int = 1, capacity: float = 1.0, tokenizer: str = "") -> None:
        endpoint = make.endpoint(name, f"https://{name}:{port}", version="", tokenizer=tokenizer)
        self.endpoints.register(POOL, identity(name), endpoint, capacity=capacity)

    def beat(self, name: str, *, ready: bool = True, **load: Any) -> None:
        state = self.endpoints.get(name)
        assert state is not None
        beat = make.heartbeat(name, url=state.endpoint.url, ready=ready, **load)
        assert self.endpoints.heartbeat(name, beat)

    def sessions(self, **counts: int) -> None:
        for name, count in counts.items():
            for i in range(max(count, self.index.count(name))):
                self.index.pin(f"{name}-{i}", frozenset([name] if i < count else []))

    def state(self, name: str) -> EndpointState:
        found = self.endpoints.get(name)
        assert found is not None
        return found

    def choose(self, n: int = 1) -> Counter[str]:
        """Each in a burst of its own, and put into the books."""
        taken: Counter[str] = Counter()
        for _ in range(n):
            found = self.choice.burst(POOL).checkout()
            if found is not None:
                taken[found.id] += 1
                self.sessions(**{found.id: self.index.count(found.id) + 1})
        return taken


def test_the_sessions_of_an_endpoint_with_a_new_token_are_asked_to_get_it() -> None:
    yard, asked = Yard("a", "b"), []
    yard.sessions(a=2, b=1)

    def ask(session: Any, endpoint: str, urgent: bool) -> bool:
        asked.append((session, endpoint, urgent))
        return True

    rebalancer = Rebalancer(yard.endpoints, yard.choice, yard.index, ask, ask)
    yard.endpoints.token_renewed.connect(rebalancer.ask_all)
    for _ in range(2):
        yard.endpoints.renew_token("a", "new")
    yard.endpoints.renew_token("gone", "new")
    assert asked == [("a-1", "a", False), ("a-0", "a", False)], "once"
    yard.beat("a")
    assert [yard.state(name).endpoint.token for name in ("a", "b")] == ["new", make.endpoint("b").token]


def identity(name: str) -> Identity:
    return make.identity(name, node=f"n-{name}")


def test_a_new_one_among_busy_ones_takes_its_share_by_and_by() -> None:
    yard = Yard("a", "b")
    yard.sessions(a=20, b=20)
    yard.register("c")
    yard.beat("c")
    assert yard.choose(8)["c"] <= 3, "not all of them"
    yard.clock.turn(SLOW_START_SECONDS / 2)
    yard.beat("a"), yard.beat("b"), yard.beat("c")
    assert 7 <= yard.index.count("c") + yard.choose(10)["c"] <= 13
    yard.clock.turn(SLOW_START_SECONDS)
    yard.choose(60)
    assert max(yard.index.counts().values()) - min(yard.index.counts().values()) <= 1


def test_after_a_restart_of_the_server_who_has_sessions_is_not_new() -> None:
    yard = Yard()
    yard.sessions(a=5)
    yard.register("a")
    yard.beat("a")
    assert yard.state("a").capacity_share(yard.clock.monotonic()) == 1.0


def test_a_drained_silent_or_unwell_one_gets_nothing() -> None:
    yard = Yard("a", "b", "c", "d")
    yard.endpoints.drain("a")
    yard.beat("b", ready=False, **{})
    yard.clock.turn(STALE_SECONDS + 1)
    yard.beat("d")
    yard.endpoints.expire()
    assert set(yard.choose(8)) == {"d"}
    assert str(yard.state("c").reason).startswith("Ejected: no heartbeat")
    yard.beat("c")
    assert yard.state("c").ready


def test_who_waits_at_one_that_fell_silent_is_stranded_and_who_waits_for_one_that_loads_is_not() -> None:
    yard = Yard("a", "b", "c", "d")
    yard.sessions(a=1, b=1, c=1)
    yard.beat("a", ready=False, reason="Unhealthy: TimeoutError")
    yard.beat("b", ready=False, reason="Loading")
    yard.endpoints.probed("c", Reason("Unreachable"))
    assert yard.rebalancer.stranded() == {"a": True, "c": True}
    yard.beat("d", ready=False, reason="Loading")
    assert yard.rebalancer.stranded() == {"a": False, "c": False}, "there is nowhere to go"
    yard.beat("a")
    assert yard.rebalancer.stranded() == {"c": True}


def test_a_heartbeat_does_not_bring_back_what_was_ejected_and_a_probe_does() -> None:
    yard = Yard("a", "b")
    yard.endpoints.complain("a", "n1", "refused")
    assert yard.state("a").ready, "one complaint is no verdict"
    assert (yard.probes, [s.endpoint.id for s in yard.endpoints.suspected_endpoints()]) == (1, ["a"])
    yard.endpoints.probed("a", Reason("Unreachable", "refused"))
    yard.beat("a")
    assert (yard.state("a").ready, yard.state("a").reason) == (False, Reason("Ejected", "Unreachable: refused"))
    assert set(yard.choose(4)) == {"b"}
    assert yard.endpoints.suspected_endpoints() == []
    yard.clock.turn(2.5)
    assert [s.endpoint.id for s in yard.endpoints.suspected_endpoints()] == ["a"], (
        "half-open: one probe and nothing else"
    )
    yard.endpoints.probed("a", None)
    assert yard.state("a").ready
    assert yard.state("a").capacity_share(yard.clock.monotonic()) < 1, "and it starts slowly"


def test_the_start_of_an_engine_that_died_does_not_make_its_ejection_longer() -> None:
    yard = Yard("a", "b")
    for voter in ("n1", "n2"):
        yard.endpoints.complain("a", voter, "the connection broke")
    yard.beat("a", ready=False, reason="Loading")
    yard.clock.turn(100.0)
    assert yard.endpoints.suspected_endpoints() == [], "its probes would fail"
    yard.beat("a")
    assert not yard.state("a").ready
    assert [s.endpoint.id for s in yard.endpoints.suspected_endpoints()] == ["a"]
    yard.endpoints.probed("a", None)
    assert yard.state("a").ready


def test_a_process_that_was_started_anew_begins_with_our_trust() -> None:
    yard = Yard("a")
    yard.endpoints.probed("a", Reason("Unreachable"))
    yard.register("a", port=2)
    yard.beat("a")
    assert yard.state("a").ready


def test_it_goes_on_elsewhere_and_on_the_same_only_when_a_probe_cleared_it() -> None:
    yard = Yard("a", "b")
    yard.sessions(a=3, b=9)
    yard.endpoints.complain("a", "n1", "refused")
    found = yard.choice.choose_again(POOL, "a", "a", "")
    assert found is not None
    assert found.id == "b"
    yard.endpoints.forget("b")
    assert yard.choice.choose_again(POOL, "a", "a", "") is None, "the probe is still out"
    yard.endpoints.probed("a", None)
    found = yard.choice.choose_again(POOL, "a", "a", "")
    assert found is not None
    assert found.id == "a"
    yard.endpoints.complain("a", "n1", "refused")
    assert yard.choice.choose_again(POOL, "a", "a", "") is not None, (
        "another complaint right after does not undo the probe"
    )
    yard.clock.turn(CLEARED_SECONDS)
    assert yard.choice.choose_again(POOL, "a", "a", "") is None


def test_who_asks_again_stays_unless_it_should_go() -> None:
    yard = Yard("a", "b")
    yard.sessions(a=10, b=9)

    def again() -> str:
        found = yard.choice.choose_again(POOL, "a", "", "")
        assert found is not None
        return found.id

    assert again() == "a"
    yard.sessions(a=30)
    assert yard.rebalancer.to_move() == {"a": 3}
    assert again() == "b"
    yard.sessions(a=12, b=10)
    yard.endpoints.drain("a")
    assert yard.rebalancer.to_move() == {"a": 12}
    assert again() == "b"
    yard.endpoints.drain("b")
    assert again() == "a", "there is nowhere better, and it still answers"


def test_rollouts_and_external_sessions_count_together_and_the_youngest_are_asked_to_move_first() -> None:
    yard, asked = Yard("a", "b"), list[Session]()

    def ask(session: Session, endpoint: str, urgent: bool) -> bool:
        asked.append(session)
        return session != "s9"  # which has a call

    for i in range(10):
        yard.index.pin(RolloutKey("default", f"r{i}"), frozenset(["a"]))
        yard.index.pin(f"s{i}", frozenset(["a"]))
    rebalancer = Rebalancer(yard.endpoints, yard.choice, yard.index, ask, ask)
    assert rebalancer.to_move() == {"a": 2}
    rebalancer.rebalance()
    assert asked == ["s9", RolloutKey("default", "r9"), "s8"]
    yard.index.pin("s8", frozenset(["b"]))
    assert yard.index.counts() == {"a": 19, "b": 1}


def test_a_session_that_has_to_go_on_is_not_turned_away_by_a_full_cache() -> None:
    yard = Yard("a", "b")
    yard.sessions(a=4, b=4)
    for name in ("a", "b"):
        yard.beat(name, running=4, waiting=0, kv_usage=0.99)
    assert yard.choose(3) == {}
    found = yard.choice.choose_again(POOL, "a", "a", "")
    assert found is not None
    assert found.id == "b"


def test_rooms_are_told_when_a_full_one_takes_more() -> None:
    yard = Yard("a")
    told: list[object] = []
    yard.endpoints.capacity_freed.connect(told.append)
    yard.sessions(a=30)
    yard.beat("a", running=30, waiting=0, kv_usage=0.99)
    assert (yard.state("a").admission.limit, told) == (30, [])
    yard.beat("a", running=30, waiting=0, kv_usage=0.5)
    assert (yard.state("a").admission.limit, told) == (33, [POOL])
    assert yard.choose(5) == {"a": 3}


def test_one_with_other_weights_is_out_and_says_why_after_what_is_worse() -> None:
    yard = Yard("a", "b")
    moved: list[tuple[str, str]] = []
    yard.endpoints.weights_changed.connect(moved.append)
    yard.endpoints.follow_weights(POOL, make.weights("w"))
    assert set(yard.choose(4)) == {"a", "b"}
    yard.endpoints.follow_weights(POOL, make.weights("w", "x"))
    assert (yard.choose(4), moved) == ({}, [POOL, POOL])
    yard.endpoints.probed("a", Reason("Unreachable", "refused"))
    yard.beat("b", ready=False)
    assert yard.state("a").reason == Reason("Ejected", "Unreachable: refused")
    assert yard.state("b").reason == Reason("WeightsUpdating"), "the engine itself gave no reason"
    yard.clock.turn(2.5)
    yard.endpoints.probed("a", None)
    assert (yard.state("a").ready, yard.state("a").reason) == (False, Reason("WeightsUpdating"))
    yard.clock.turn(STALE_SECONDS)
    yard.endpoints.expire()
    yard.endpoints.follow_weights(POOL, make.weights("w"))
    assert not yard.state("a").ready, "its weights are right again, and it says nothing"
    yard.beat("a")
    assert (yard.state("a").ready, yard.endpoints.served_versions(POOL).ready) == (True, {"w"})


def test_a_session_never_goes_on_with_weights_that_it_may_not_have() -> None:
    yard = Yard("a", "b", "c")
    yard.sessions(a=9, b=0, c=3)
    yard.beat("b", version="other")

    def goes_to(failed: str) -> str | None:
        found = yard.choice.choose_again(POOL, "a", failed, "", lambda endpoint: endpoint.weights_version == "w")
        return found.id if found is not None else None

    yard.beat("c", running=3, waiting=0, kv_usage=0.99)
    assert (goes_to("a"), goes_to("")) == ("c", "c"), "full rather than of other weights"
    yard.endpoints.drain("c")
    assert goes_to("a") is None
    assert goes_to("") == "a"
    yard.beat("a", version="other")
    assert goes_to("") is None, "the one in use has changed under it"


def test_patience_of_the_pool_reaches_its_endpoints() -> None:
    yard = Yard("a")
    spec = {"model": {"path": "/m"}, "engine": {"embedded": {}}, "replicas": 1, "patience": {"connectSeconds": 3}}
    yard.endpoints.follow_spec(POOL, InferencePoolSpec.model_validate(spec))
    yard.register("b")
    yard.beat("b")
    assert [s.endpoint.patience.connect_seconds for s in yard.endpoints.of_pool(POOL)] == [3, 3]


def test_a_proof_counts_for_the_present_parser_and_template_of_the_pool_and_is_told_once() -> None:
    yard = Yard("a")
    told: list[str] = []
    yard.endpoints.endpoint_changed.connect(lambda state: told.append(state.endpoint.id))

    def spec(**model: str) -> InferencePoolSpec:
        found = make.inference_pool(model={"path": "/m", **model}).spec
        yard.endpoints.follow_spec(POOL, found)
        return found

    def proof(parser: str | None) -> ToolProof:
        return ToolProof(status="True", reason="ReadBack", parser=parser)

    spec(tokenizer="/t")
    yard.register("a", tokenizer="/t")
    yard.beat("a", tools=proof(None))
    assert yard.endpoints.proofs(POOL) == [proof(None)]
    spec(tokenizer="/other")
    assert yard.endpoints.proofs(POOL) == []
    spec(tokenizer="/t", toolParser="hermes")
    assert yard.state("a").endpoint.tool_parser == "hermes"
    assert yard.endpoints.proofs(POOL) == []
    yard.endpoints.note_proof("/other", proof("hermes"))
    assert yard.endpoints.proofs(POOL) == []
    told.clear()
    for _ in range(2):
        yard.endpoints.note_proof("/t", proof("hermes"))
    assert (yard.endpoints.proofs(POOL), told) == ([proof("hermes")], ["a"])
    yard.endpoints.follow_weights(POOL, None)
    assert yard.endpoints.proofs(POOL) == []


def test_an_endpoint_has_the_context_that_its_engine_last_reported() -> None:
    site = Yard("a")
    assert site.state("a").endpoint.context is None
    for length in (4096, 8192):
        assert site.endpoints.heartbeat("a", make.heartbeat("a", url="https://a:1", context=length))
        assert site.state("a").endpoint.context == length
