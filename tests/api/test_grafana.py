"""Grafana's dashboard asks only for metrics and labels that `/metrics` has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rollyard.kinds.rollout import RolloutError, Stage, Status
from tests.api.test_rollouts_waiting import pool
from tests.support.make import rollout
from tests.support.outside_api import Serve

DASHBOARD = json.loads((Path(__file__).parents[2] / "deploy/grafana/rollyard.json").read_text())
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def queries(part: Any) -> Iterator[str]:
    """Every query of the dashboard, those of its variables included."""
    if isinstance(part, dict):
        yield from (v for k, v in part.items() if k in ("expr", "query") and isinstance(v, str))
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from queries(item)


async def test_every_query_of_the_dashboard_asks_for_metrics_that_there_are(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await api.parts.metric_recorder.record()
        for reward, error in ((0.5, None), (None, RolloutError(stage=Stage.RUN, reason="SandboxLost", message="m"))):
            api.rollouts.ends.note(rollout("r", pool="swe", status=Status.COMPLETED, reward=reward, error=error))
        async with api.http.get(f"{api.url}/metrics") as answer:
            families = list(text_string_to_metric_families(await answer.text()))
    names = {f.name + suffix for f in families for suffix in SUFFIXES[f.type]}
    samples = {s.name: s.labels for f in families for s in f.samples}
    asked = [query for query in queries(DASHBOARD) if "rollyard_" in query]
    assert len(asked) > 30
    for query in asked:
        for name, braces in re.findall(r"\b(rollyard_[a-z_]+\b)(?!\()(\{[^}]*\})?", query):
            assert name in names, query
            if name in samples and braces:
                assert set(re.findall(r"(\w+)=", braces)) <= samples[name].keys(), query
    assert samples["rollyard_reward_count"].keys() == {"namespace", "pool", "kind"}
    assert samples["rollyard_rollouts_unscored_total"]["reason"] == "SandboxLost"
    assert samples["rollyard_rolloutpool_demand"] == {"namespace": "default", "pool": "swe"}


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
