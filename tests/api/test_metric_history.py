"""`/v1/history` over HTTP: what was recorded is there, and what was not is null."""

from __future__ import annotations

import time

import pytest

from rollyard.cli.batches import stepped
from rollyard.kinds.metric_history import POOL_METRICS, BatchHistory
from rollyard.server_process import metric_recorder
from rollyard.store.metric_buckets import sample, start_of
from rollyard.store.metric_tables import StoredDecision, TrackKey
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool

SWE = TrackKey("RolloutPool", "default", "swe")


def last(column: list[float | None]) -> float | None:
    """The value of the last bucket that has one; the clock may have gone on to the next bucket since."""
    return next(value for value in reversed(column[-3:]) if value is not None)


async def test_a_sample_has_the_values_of_pools_and_endpoints(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        body = {"pool": "swe", "task": {"kind": "quiz"}, "n": 3}
        assert (await api.ask("POST", "/v1/rollouts", body))[0] == 202
        api.serve("e1", "http://127.0.0.1:1/v1", version="v7")
        await api.parts.metric_recorder.record()
        status, found = await api.ask("GET", "/v1/history/pools/default/swe")
        assert status == 200, found
        assert (found["kind"], found["step"], found["until"] - found["since"]) == (
            "RolloutPool",
            10,
            10 * len(found["times"]),
        )
        metrics = found["metrics"]
        assert metrics["mean"].keys() == set(POOL_METRICS["RolloutPool"])
        assert sum(metrics["samples"]) == 1
        for name, value in {"queued": 3, "demand": 3, "in_flight": 0, "init_queued": 3, "run_width": 0}.items():
            assert last(metrics["mean"][name]) == last(metrics["max"][name]) == value
        assert len([v for v in metrics["mean"]["queued"] if v is None]) == len(found["times"]) - 1, "a gap is null"
        status, found = await api.ask("GET", "/v1/history/pools/default/policy?kind=InferencePool&step=60")
        assert (status, found["step"]) == (200, 60)
        assert "v7" in found["metrics"]["weights_version"]
        assert last(found["metrics"]["mean"]["sessions"]) == 0
        assert set(found["metrics"]["mean"]["waiting"]) == {None}, "no engine has reported"
        status, found = await api.ask("GET", "/v1/history/endpoints/default/policy")
        assert (status, found["not_recorded"]) == (200, 0)
        (endpoint,) = found["endpoints"]
        assert (endpoint["id"], last(endpoint["metrics"]["mean"]["ready"])) == ("e1", 1)


async def test_a_long_time_comes_in_wider_buckets_and_a_deleted_pool_keeps_its_history(serving: Serve) -> None:
    now = time.time()
    hours = [now - 3600 * i for i in range(30, 0, -1)]
    async with serving() as api:
        for at in hours:
            decision = StoredDecision(*SWE[:3], at, 2, "busy")
            await api.store.metrics.record(at, [(SWE, sample([2, 2, 2, 2, 5]))], [decision])
        since = hours[0] - 600
        status, found = await api.ask("GET", f"/v1/history/pools/default/swe?since={since}&step=60")
        assert (status, found["step"]) == (200, 600), "one minute is kept for a day"
        assert sum(found["metrics"]["samples"]) == 30
        assert [v for v in found["metrics"]["mean"]["demand"] if v is not None] == [5] * 30
        assert [one["message"] for one in found["decisions"]] == ["busy"] * 30
        assert found["times"][0] == start_of(since, 600)
        status, found = await api.ask("GET", f"/v1/history/pools/default/swe?since={hours[20]}&until={hours[22] + 1}")
        assert (status, found["step"], sum(found["metrics"]["samples"])) == (200, 60, 3)
        status, found = await api.ask("GET", "/v1/history/pools/default/swe?since=0")
        assert (status, len(found["times"]) <= 2000, sum(found["metrics"]["samples"])) == (200, True, 30)


async def test_the_steps_of_a_batch_and_of_its_series(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        for id in ("a", "b"):
            tasks = [{"kind": "math", "problem": f"{i}+0=?", "answer": str(i)} for i in range(9)]
            body = {"id": id, "pool": "swe", "n": 2, "target": 2, "tasks": tasks, "series": "s"}
            assert (await api.ask("POST", "/v1/batches", body))[0] == 201
            await PlayedPool(api.parts).play(lambda record: Played(reward=float(record.sample_index)))
        status, found = await api.ask("GET", "/v1/history/batches/b")
        assert (status, found["series"], found["pool"]) == (200, "s", "swe")
        (step,) = found["steps"]
        assert (step["batch"], step["step"], step["groups"], step["reward_mean"], step["reward_std"]) == (
            "b",
            1,
            2,
            0.5,
            0.5,
        )
        status, found = await api.ask("GET", "/v1/history/batches/b?series=true")
        assert [step["batch"] for step in found["steps"]] == ["a", "b"]
        table, (mean, share, *_) = (lines := stepped(BatchHistory.model_validate(found)))[:3], lines[3:]
        assert [line.split()[:5] for line in table[1:]] == [
            ["0", "a", "2", "0.500", "±0.500"],
            ["1", "b", "2", "0.500", "±0.500"],
        ]
        assert mean.startswith(
            f"mean reward 0.500 over {2 * found['steps'][0]['judged_rollouts']} rollouts of the steps shown"
        )
        assert share == "informative share 100% (4 of 4 groups)"
        for series, ids in ("s", ["b", "a"]), ("b", []):
            status, listed = await api.ask("GET", f"/v1/batches?series={series}")
            assert [batch["id"] for batch in listed["batches"]] == ids


async def test_impossible_questions_say_what_is_possible(serving: Serve) -> None:
    async with serving() as api:
        former = TrackKey("RolloutPool", "default", "policy")
        await api.store.metrics.record(time.time(), [(former, sample([1]))])

        async def refusal(path: str) -> tuple[int, str]:
            status, found = await api.ask("GET", f"/v1/history/{path}")
            return status, found["message"]

        assert await refusal("pools/default/none") == (
            404,
            "there is no pool 'none' in namespace 'default', and no metrics of it are kept",
        )
        assert (await refusal("pools/default/policy"))[0] == 400
        assert "add kind=RolloutPool" in (await refusal("pools/default/policy"))[1]
        assert "not 'Pool'" in (await refusal("pools/default/policy?kind=Pool"))[1]
        assert (
            "since must be before until" in (await refusal("pools/default/policy?kind=RolloutPool&since=5&until=4"))[1]
        )
        assert (await refusal("pools/default/policy?kind=RolloutPool&step=0"))[0] == 400
        assert (await refusal("endpoints/default/none"))[0] == 404
        assert (await refusal("batches/none"))[0] == 404


async def test_only_some_endpoints_of_a_pool_are_recorded_and_they_stay_the_same(
    serving: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metric_recorder, "MAX_ENDPOINTS", 2)
    async with serving() as api:
        for id in ("e2", "e3", "e1"):
            api.serve(id, "http://127.0.0.1:1/v1")
            await api.parts.metric_recorder.record()
        assert await recorded(api) == (["e2", "e3"], 1)
        api.endpoints.remove_unlisted(("default", "policy"), {"e3", "e1"})
        await api.parts.metric_recorder.record()
        assert await recorded(api) == (["e1", "e2", "e3"], 0)


async def recorded(api: Api) -> tuple[list[str], int]:
    status, found = await api.ask("GET", "/v1/history/endpoints/default/policy")
    assert status == 200
    return [one["id"] for one in found["endpoints"]], found["not_recorded"]
