"""Tables of `rollyard top`."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.cli.top import select_pools
from rollyard.cli.top_table import lines
from rollyard.core.errors import NotFound
from rollyard.kinds.top import TopView

BUSY: dict[str, Any] = {
    "tokensPerSecond": 1234.0,
    "promptTokensPerSecond": 87.5,
    "running": 12,
    "waiting": 0,
    "kvUsage": 0.431,
    "prefixHitRate": 0.876,
    "firstTokenSeconds": 0.0634,
    "preemptionsPerSecond": 0.02,
}


def endpoint(number: int, **more: Any) -> dict[str, Any]:
    given = {"ready": True, "weightsVersion": "3f2ab1c09d8e7f6a5b4c", "sessions": number}
    return {"id": f"default/policy-ip-{number}", "url": "https://n1:1", **given, **more}


def serving(*endpoints: dict[str, Any], **more: Any) -> dict[str, Any]:
    given = {"namespace": "default", "name": "policy", "reason": "AllReady", "replicas": {"ready": 2, "desired": 2}}
    own = {"sessions": 3, "weightsVersions": ["3f2ab1c09d8e7f6a5b4c"], "load": BUSY, "endpoints": endpoints}
    return {**given, **own, **more}


def running(**more: Any) -> dict[str, Any]:
    given = {"namespace": "default", "name": "demo", "reason": "AllReady", "replicas": {"ready": 1, "desired": 1}}
    stages = {"INIT": {"queued": 40, "inFlight": 1, "width": 2}, "EVAL": {"queued": 2, "inFlight": 0, "width": 4}}
    ended = {"Completed": 10.0, "Truncated": 1.5, "InfraFailed": 0.5, "Cancelled": 7.0}
    sandboxes = {"ready": 2, "warm": 3, "cold": 1}
    return {**given, "stages": stages, "sandboxes": sandboxes, "endedPerMinute": ended, **more}


def top(*inference: dict[str, Any], rollouts: tuple[dict[str, Any], ...] = ()) -> TopView:
    return TopView.model_validate({"inferencePools": inference, "rolloutPools": rollouts})


def cells(found: TopView, height: int | None = None) -> list[list[str]]:
    return [line.text.split() for line in lines(found, height)]


def test_pools_have_their_endpoints_below_them_and_stages_beside() -> None:
    lost = endpoint(1, ready=False, weightsVersion="", reason="Ejected: no heartbeat for 8 s")
    assert cells(top(serving(endpoint(0, **BUSY), lost), rollouts=(running(),)))[1:] == [
        ["policy", "2/2", "3", "12", "0", "43%", "1234", "87.5", "88%", "63ms", "0.02", "3f2ab1c09d8e", "AllReady"],
        ["policy-ip-0", "yes", "0", "12", "0", "43%", "1234", "87.5", "88%", "63ms", "0.02", "3f2ab1c09d8e"],
        ["policy-ip-1", "no", "1", *["-"] * 9, "Ejected:", "no", "heartbeat", "for", "8", "s"],
        [],
        ["ROLLOUT", "POOL", "READY", "QUEUED", "INIT", "RUN", "EVAL", "WARM", "DONE/MIN", "FAILED/MIN", "REASON"],
        ["demo", "1/1", "42", "1/2", "0/0", "0/4", "75%", "11.5", "0.5", "AllReady"],
    ]


def test_what_is_not_ready_stands_out() -> None:
    shown = lines(top(serving(endpoint(0), endpoint(1, ready=False))))
    assert [line.style for line in shown] == ["bold", "", "", "red"]


def test_on_a_small_terminal_what_needs_a_look_comes_first_and_the_rest_is_counted() -> None:
    many = [endpoint(n, ready=n != 500) for n in range(1000)]
    found = top(serving(*many), rollouts=(running(),))
    shown = cells(found, height=10)
    assert len(shown) == 10
    assert [row[0] for row in shown if row] == [
        "INFERENCE", "policy", "policy-ip-500", "policy-ip-999", "policy-ip-998", "policy-ip-997", "and", "ROLLOUT", "demo",
    ]  # fmt: skip
    assert shown[6] == ["and", "996", "more"]
    assert len(lines(found)) == 1005
    assert len(lines(top(serving(*many[:3])), height=5)) == 5
    assert len(lines(found, height=1)) == 6, "a pool is never left out"


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_on_a_narrow_terminal_the_columns_that_do_not_fit_are_named(width: int) -> None:
    lost = endpoint(1, ready=False, weightsVersion="", reason="Ejected: no heartbeat for 8 s, since 12:00:01 UTC")
    shown = [line.text for line in lines(top(serving(endpoint(0, **BUSY), lost), rollouts=(running(),)), None, width)]
    header, *rows = shown[:4]
    assert all(len(line) <= width for line in shown)
    assert ("PREEMPT/S" in header) == (width >= 200)
    assert all(name in header for name in ("INFERENCE POOL", "READY", "SESSIONS", "TOKENS/S", "REASON"))
    assert any("Ejected: no" in row for row in rows)
    told = " ".join(line.strip() for line in shown[3:])
    assert (f"the terminal's {width} columns leave no room for PREEMPT/S" in told) == (width < 200)
    for name in ("PREEMPT/S", "HITS", "KV USE", "WAITING"):
        assert (name in header) != (name in told), "a column is shown or named, and not cut"


def test_rollouts_in_line_are_told_from_busy_stage_workers() -> None:
    stages = {"EVAL": {"queued": 0, "inFlight": 28, "width": 8}, "RUN": {"queued": 0, "inFlight": 3, "width": 8}}
    assert cells(top(rollouts=(running(stages=stages),)))[1][3:7] == ["0/0", "3/8", "8/8", "+20"]


def test_namespaces_are_named_where_there_are_several() -> None:
    found = cells(top(serving(), serving(namespace="ml"), rollouts=(running(endedPerMinute=None),)))
    assert [row[0] for row in found if row] == ["INFERENCE", "default/policy", "ml/policy", "ROLLOUT", "default/demo"]
    assert found[-1][-3:] == ["-", "-", "AllReady"]


def test_nothing_is_no_table() -> None:
    assert lines(TopView()) == []


def test_words_choose() -> None:
    found = top(serving(), rollouts=(running(), running(name="swe")))

    def names(*words: str) -> list[str]:
        picked = select_pools(found, words)
        return [pool.name for pool in (*picked.inference_pools, *picked.rollout_pools)]

    assert names() == ["policy", "demo", "swe"]
    assert names("rollouts") == ["demo", "swe"]
    assert names("inference", "swe") == ["policy", "swe"]
    with pytest.raises(NotFound, match="no pool 'swee'; write inference or rollouts, or one of: demo, policy, swe"):
        names("swee")
    with pytest.raises(NotFound, match="or one of: no pools"):
        select_pools(TopView(), ("swe",))
