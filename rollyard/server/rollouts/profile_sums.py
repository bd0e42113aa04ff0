"""Sums of the profiles of many rollouts. Pure."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from rollyard.kinds.rollout_profile import (
    BandRow,
    ProfileView,
    RolloutProfile,
    Spread,
    TokenParts,
    ToolRow,
    ToolUse,
    TurnBand,
    merged,
)
from rollyard.store.rollout_search import RolloutWork

STAGES = ("queued", "init", "run", "eval")


def profile_sums(matching: int, found: Iterable[RolloutWork]) -> ProfileView:
    """Return the sums over rollouts. `matching`: number of all rollouts that match."""
    seconds, run, tokens = defaultdict[str, list[float]](list), defaultdict[str, float](float), Counter[str]()
    tools, callers, bands = dict[str, ToolUse](), Counter[str](), list[TurnBand]()
    rollouts = profiled = scored = 0
    for work in found:
        summary: Mapping[str, Any] = json.loads(work.summary)
        rollouts, scored = rollouts + 1, scored + work.scored
        for stage in STAGES:
            if (value := work.queued if stage == "queued" else summary.get(stage)) is not None:
                seconds[stage].append(float(value))
        if (stored := summary.get("profile")) is None:
            continue
        profile = RolloutProfile.model_validate(stored, extra="ignore")
        profiled += 1
        parts = {"model": profile.model, "tools": profile.tools, "environment": profile.environment}
        parts["other"] = max(0.0, float(summary.get("run") or 0.0) - sum(parts.values()))
        for part, value in parts.items():
            run[part] += value
        tokens.update(profile.tokens.model_dump())
        callers.update(use.tool for use in profile.by_tool if use.calls)
        for use in profile.by_tool:
            tools[use.tool] = tools[use.tool].plus(use) if use.tool in tools else use
        bands = merged(bands, profile.bands)
    rows = [ToolRow(rollouts=callers[use.tool], **use.model_dump()) for use in tools.values()]
    return ProfileView(
        matching=matching,
        rollouts=rollouts,
        profiled=profiled,
        scored=scored,
        stages=[_spread(stage, sorted(seconds[stage])) for stage in STAGES],
        **{part: round(run[part], 3) for part in ("model", "tools", "environment", "other")},
        tokens=TokenParts(**tokens),
        by_tool=sorted(rows, key=lambda row: (-row.calls, row.tool)),
        bands=[BandRow(first=2**i, last=2 ** (i + 1) - 1, **band.model_dump()) for i, band in enumerate(bands)],
    )


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
