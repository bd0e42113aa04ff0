"""Grafana's dashboard asks only for metrics and labels that `/metrics` has."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from rollyard.core.telemetry import REGISTRY
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


def targets(part: Any) -> Iterator[tuple[str, str]]:
    """Every query with the legend of its lines."""
    if isinstance(part, dict):
        if isinstance(part.get("expr"), str):
            yield part["expr"], part.get("legendFormat", "")
        part = list(part.values())
    if isinstance(part, list):
        for item in part:
            yield from targets(item)


def declared_labels() -> dict[str, set[str]]:
    """Labels of the metrics that have no sample yet, by the names of their samples."""
    found = {}
    for metric, names in REGISTRY._collector_to_names.items():
        labels = {*getattr(metric, "_labelnames", ())}
        found |= {name: labels | ({"le"} if name.endswith("_bucket") else set()) for name in names}
    return found


async def test_every_query_of_the_dashboard_asks_for_metrics_that_there_are(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await api.parts.metric_recorder.record()
        api.serve("e", "http://127.0.0.1:1")
        for reward, error in ((0.5, None), (None, RolloutError(stage=Stage.RUN, reason="SandboxLost", message="m"))):
            api.rollouts.ends.note(rollout("r", pool="swe", status=Status.COMPLETED, reward=reward, error=error))
        async with api.http.get(f"{api.url}/metrics") as answer:
            families = list(text_string_to_metric_families(await answer.text()))
    types = {f.name + suffix: f.type for f in families for suffix in SUFFIXES[f.type]}
    samples = {s.name: s.labels for f in families for s in f.samples}
    labels = declared_labels() | {name: {*found} for name, found in samples.items()}
    # Batches and inference pools have samples only while there are some, and a model server those that it reports.
    labels |= {name: {"namespace", "pool"} for name in types if re.match("rollyard_(batches|inferencepool)_", name)}
    labels |= {name: labels["rollyard_endpoint_ready"] for name in types if name.startswith("rollyard_endpoint_")}
    buckets = {(s.name, s.labels["le"]) for f in families for s in f.samples if "le" in s.labels}
    asked = [query for query in queries(DASHBOARD) if "rollyard_" in query and "__name__" not in query]
    assert len(asked) > 30
    for query in asked:
        for name, braces in re.findall(r"\b(rollyard_[a-z_]+\b)(?!\()(\{[^}]*\})?", query):
            assert name in types, query
            if name in labels and braces:
                assert set(re.findall(r"(\w+)=", braces)) <= labels[name], query
            for le in re.findall(r'le="([^"]*)"', braces):
                assert (name, le) in buckets, f"{query}: there is no bucket {le}"
        for function, name in re.findall(r"\b(rate|increase)\((rollyard_[a-z_]+)", query):
            assert types[name] in ("counter", "histogram"), f"{query}: {function} of a {types[name]}"
        for name in re.findall(r"histogram_quantile\([^,]*, sum by \([^)]*\) \(rate\((\w+)", query):
            assert name.endswith("_bucket"), query
    for query, legend in targets(DASHBOARD):
        names = re.findall(r"\brollyard_[a-z_]+\b", query)
        grouped = [group.replace(" ", "").split(",") for group in re.findall(r"\bby \(([^)]*)\)", query)]
        for group in grouped:
            assert all({*group} <= labels[name] for name in names), query
        shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
        kept = (
            set.intersection(*({*group} for group in grouped))
            if grouped
            else set.intersection(*(labels[n] for n in names))
        )
        assert shown <= ({*kept} if not re.match(r"sum\(", query) else set()), f"{legend}: {query}"
    assert samples["rollyard_reward_count"].keys() == {"namespace", "pool", "kind"}
    unscored = {s.labels["reason"] for f in families for s in f.samples if s.name == "rollyard_rollouts_unscored_total"}
    assert "SandboxLost" in unscored
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
