"""Sums of the profiles of many rollouts. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rollyard.kinds.rollout_profile import BandRow, ProfileView, Spread, TokenParts, ToolRow
from rollyard.store.rollout_search import RolloutWork

STAGES = ("queued", "init", "run", "eval")


def profile_sums(matching: int, found: Iterable[RolloutWork]) -> ProfileView:
    """Return the sums over rollouts. `matching`: number of all rollouts that match."""
    seconds, run, tokens = defaultdict[str, list[float]](list), defaultdict[str, float](float), Counter[str]()
    tools, bands = defaultdict[str, Counter[str]](Counter), defaultdict[int, Counter[str]](Counter)
    rollouts = profiled = scored = 0
    for work in found:
        summary: Mapping[str, Any] = json.loads(work.summary)
        rollouts, scored = rollouts + 1, scored + work.scored
        for stage in STAGES:
            if (value := work.queued if stage == "queued" else summary.get(stage)) is not None:
                seconds[stage].append(float(value))
        # A stored RolloutProfile without its defaults. It is read as it is: to make objects of 20,000 takes a second.
        if (profile := summary.get("profile")) is None:
            continue
        profiled += 1
        parts = {part: profile.get(part, 0.0) for part in ("model", "tools", "environment")}
        parts["other"] = max(0.0, (summary.get("run") or 0.0) - sum(parts.values()))
        for part, value in parts.items():
            run[part] += value
        _add(tokens, profile.get("tokens", {}))
        for use in profile.get("by_tool", []):
            _add(tools[use["tool"]], {**use, "rollouts": use.get("calls", 0) > 0, "tool": 0})
        for place, band in enumerate(profile.get("bands", [])):
            _add(bands[place], band)
    rows = [ToolRow.model_validate({**sums, "tool": tool}, extra="ignore") for tool, sums in tools.items()]
    return ProfileView(
        matching=matching,
        rollouts=rollouts,
        profiled=profiled,
        scored=scored,
        stages=[_spread(stage, sorted(seconds[stage])) for stage in STAGES],
        **{part: round(run[part], 3) for part in ("model", "tools", "environment", "other")},
        tokens=TokenParts.model_validate(tokens, extra="ignore"),
        by_tool=sorted(rows, key=lambda row: (-row.calls, row.tool)),
        bands=[
            BandRow.model_validate({**sums, "first": 2**i, "last": 2 ** (i + 1) - 1}, extra="ignore")
            for i, sums in sorted(bands.items())
        ],
    )


def _add(sums: Counter[str], more: Mapping[str, int]) -> None:
    for name, count in more.items():
        sums[name] += count


def _spread(stage: str, seconds: list[float]) -> Spread:
    """`seconds`: in ascending order."""
    return Spread.model_validate(
        {
            "stage": stage,
            "rollouts": len(seconds),
            "total": round(sum(seconds), 3),
            "p50": quantile(seconds, 0.5),
            "p95": quantile(seconds, 0.95),
        }
    )


def quantile(ascending: list[float], share: float) -> float | None:
    """Return the value below which this share of the values lies, interpolated; None without values."""
    if not ascending:
        return None
    place = share * (len(ascending) - 1)
    low = int(place)
    high = min(low + 1, len(ascending) - 1)
    return round(ascending[low] + (ascending[high] - ascending[low]) * (place - low), 6)
