"""Metrics of model servers in `/metrics`, as Prometheus's own parser reads them."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from rollyard.api.metrics import endpoint_metrics
from rollyard.kinds.base import evolve
from rollyard.kinds.pool import PoolKey
from rollyard.server.routing.endpoint_registry import EndpointRegistry
from rollyard.server.routing.session_index import SessionIndex
from rollyard.wire.engine import EngineLoad
from tests.support import make
from tests.support.manual_clock import ManualClock

KEY = PoolKey("default", "policy")


def read(endpoints: EndpointRegistry, sessions: Mapping[str, int]) -> dict[tuple[str, str], float]:
    """(name without our prefix, endpoint) -> value."""
    families = list(text_string_to_metric_families(endpoint_metrics(endpoints.all(), sessions)))
    assert all(family.documentation for family in families)
    samples = [sample for family in families for sample in family.samples]
    assert all((s.labels["namespace"], s.labels["pool"]) == KEY for s in samples)
    return {(s.name.removeprefix("rollyard_endpoint_"), s.labels["endpoint"]): s.value for s in samples}


def test_each_endpoint_has_what_it_said_and_no_more_and_goes_without_a_trace() -> None:
    endpoints = EndpointRegistry(ManualClock(), SessionIndex())
    made = make.endpoint("default/a", "https://a", version="")
    endpoints.register(KEY, make.identity(), made)
    strange = evolve(made, id='default/policy/http://n"1\\2\n3')
    endpoints.add_external(KEY, strange, 1.0)
    endpoints.probed(strange.id, None)
    for at in (0, 2, 4):
        load = EngineLoad(at=at, generated_tokens=1 + 10 * at, first_tokens=at, first_token_seconds=at / 4)
        endpoints.heartbeat("default/a", make.heartbeat(version="v7", running=2, waiting=0, load=load))
    found = read(endpoints, {"default/a": 5})
    assert {name: value for (name, id), value in found.items() if id == "default/a"} == {
        "weights_info": 1,
        "ready": 1,
        "sessions": 5,
        "requests_running": 2,
        "requests_waiting": 0,
        "tokens_per_second": 10,
        "first_token_seconds": 0.25,
        "generated_tokens_total": 41,
        "first_tokens_total": 4,
        "first_tokens_seconds_total": 1,
    }
    others = {name for name, id in found if id == strange.id}
    assert others == {"weights_info", "ready", "sessions"}
    endpoints.forget("a")
    endpoints.remove_unlisted(KEY, set())
    assert read(endpoints, {"default/a": 5}) == {}
