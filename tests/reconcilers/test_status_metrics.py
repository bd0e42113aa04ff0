"""The status of a pool has figures, and is not rewritten for them at every look."""

from __future__ import annotations

from typing import Any

from rollyard.kinds.endpoint_metrics import EndpointMetrics
from rollyard.kinds.pool import PoolKey
from rollyard.reconcilers.inference_pool import InferencePoolObserver
from rollyard.reconcilers.status_metrics import STATUS_METRICS_SECONDS
from rollyard.server.routing.endpoint_registry import STALE_SECONDS, EndpointRegistry
from rollyard.server.routing.session_index import SessionIndex
from rollyard.wire.engine import EngineLoad
from tests.support import make
from tests.support.manual_clock import ManualClock
from tests.support.reconciler_site import Site

KEY = PoolKey("default", "policy")
POOL = make.inference_pool(replicas=2)


class Server:
    """An engine that samples ten tokens more a second with each second."""

    def __init__(self, endpoints: EndpointRegistry, clock: ManualClock, name: str) -> None:
        self._endpoints, self._clock = endpoints, clock
        self._name, self._began = name, clock.now
        endpoints.register(KEY, make.identity(name), make.endpoint(f"default/{name}", f"https://{name}"))

    def beat(self, **more: float) -> None:
        at = self._clock.now - self._began
        load = EngineLoad(at=at, generated_tokens=int(5 * at * at))
        words = make.heartbeat(self._name, waiting=int(at), load=load, **({"running": 100} | more))
        assert self._endpoints.heartbeat(f"default/{self._name}", words)


async def test_figures_in_a_status_are_taken_anew_after_a_while_and_when_an_endpoint_comes_or_falls_silent(
    site: Site,
) -> None:
    clock = ManualClock()
    endpoints = EndpointRegistry(clock, SessionIndex())
    trade = InferencePoolObserver(endpoints, site.rollouts, list, lambda pool: 0, clock)

    async def details() -> dict[str, Any]:
        found = (await trade.observe(POOL, [])).status_update
        return {name: found[name] for name in ("endpoints", "load")}

    assert await details() == {"endpoints": [], "load": EndpointMetrics()}
    a = Server(endpoints, clock, "a")
    assert (await details())["load"] == EndpointMetrics(), "it has said nothing yet"
    a.beat()
    first = await details()
    assert first["endpoints"][0].waiting == 0
    for _ in range(int(STATUS_METRICS_SECONDS / 2) - 1):
        clock.turn(2)
        a.beat()
        assert await details() == first
    clock.turn(2)
    a.beat()
    second = await details()
    assert (second["endpoints"][0].waiting, second["load"].waiting) == (30, 30)
    assert second["load"].tokens_per_second == second["endpoints"][0].tokens_per_second > 100

    b = Server(endpoints, clock, "b")
    clock.turn(2)
    a.beat()
    b.beat()
    both = await details()
    assert [e.waiting for e in both["endpoints"]] == [32, 2]

    clock.turn(STALE_SECONDS + 1)
    b.beat()
    endpoints.expire()
    left = await details()
    assert [(e.ready, e.waiting) for e in left["endpoints"]] == [(False, None), (True, 11)]
    assert left["load"].waiting == 11


async def test_a_limit_is_shown_at_once_and_what_it_moves_by_later(site: Site) -> None:
    clock = ManualClock()
    endpoints = EndpointRegistry(clock, SessionIndex())
    trade = InferencePoolObserver(endpoints, site.rollouts, list, lambda pool: 0, clock)
    server = Server(endpoints, clock, "a")
    for i in range(3):
        endpoints.sessions.pin(f"s-{i}", frozenset(["default/a"]))

    async def shown() -> tuple[int | None, str, str | None]:
        look = await trade.observe(POOL, [])
        (endpoint,) = look.status_update["endpoints"]
        return endpoint.max_sessions, endpoint.full, look.why_not_admitting and look.why_not_admitting.message

    server.beat(kv_usage=0.5)
    assert await shown() == (None, "", None)
    server.beat(kv_usage=0.95)
    full = "its cache is 95% full"
    assert await shown() == (3, full, f"default/a: {full}")
    clock.turn(2)
    server.beat(kv_usage=0.97)
    assert await shown() == (3, full, f"default/a: {full}")
    clock.turn(STATUS_METRICS_SECONDS)
    server.beat(kv_usage=0.98)
    assert await shown() == (3, "its cache is 98% full", "default/a: its cache is 98% full")
