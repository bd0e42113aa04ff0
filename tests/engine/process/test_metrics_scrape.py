"""A model server's metrics page as one look at its load."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from rollyard.core.aio import running
from rollyard.engine.launch.launch_plan import LaunchPlan
from rollyard.engine.process.engine_supervisor import Supervisor
from rollyard.engine.process.metrics_scrape import LoadSample, read_load
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.wire.engine import EngineLoad
from tests.support.until import until

PAGE = Path(__file__).with_name("vllm-0.32-metrics.txt")
"""Page of a real vLLM 0.32 on CPU, with six requests in its batch: the series that are read, and some others."""


def series(**values: tuple[float, ...]) -> str:
    return "\n".join(f'vllm:{name}{{engine="{n}"}} {v}' for name, both in values.items() for n, v in enumerate(both))


def test_a_page_of_vllm_says_all() -> None:
    assert read_load(PAGE.read_text(), life=2, at=7.5) == LoadSample(
        running=6,
        waiting=0,
        kv_usage=0.0017091930167256741,
        totals=EngineLoad(
            life=2,
            at=7.5,
            generated_tokens=843,
            prompt_tokens=3020,
            prefix_queries=3020,
            prefix_hits=2304,
            preemptions=0,
            first_tokens=10,
            first_token_seconds=0.6269657611846924,
        ),
    )


def test_engines_behind_one_page_are_added_up_and_of_cache_use_the_mean_counts() -> None:
    page = series(
        num_requests_running=(3, 5), num_requests_waiting=(0, 7), kv_cache_usage_perc=(0.5, 0.9),
        generation_tokens_total=(100, 11), time_to_first_token_seconds_sum=(0.5, 0.25),
    )  # fmt: skip
    totals = EngineLoad(at=0, generated_tokens=111, first_token_seconds=0.75)
    assert read_load(page) == LoadSample(8, 7, 0.7, totals)


def test_older_versions_have_other_words_and_where_both_stand_the_new_one_counts() -> None:
    old = series(gpu_cache_usage_perc=(0.25,), gpu_prefix_cache_queries_total=(9,), gpu_prefix_cache_hits_total=(4,))
    found = read_load(old)
    assert found.totals is not None
    assert (found.kv_usage, found.totals.prefix_queries, found.totals.prefix_hits) == (0.25, 9, 4)
    assert read_load(old + "\n" + series(kv_cache_usage_perc=(0.5,))).kv_usage == 0.5


def test_what_is_not_said_is_not_nothing() -> None:
    assert read_load("") == LoadSample()
    gauges = read_load(series(num_requests_running=(0,)))
    assert gauges == LoadSample(running=0), "an engine that counts nothing has no totals"


def test_what_is_no_number_is_passed_over() -> None:
    page = "vllm:num_requests_running NaN\nvllm:num_requests_waiting many\nvllm:generation_tokens_total -1\nvllm:\n{"
    assert read_load(page) == LoadSample()


def test_a_label_may_hold_any_character() -> None:
    assert read_load('vllm:num_requests_running{model_name="a} b{ 9"} 3.0\n').running == 3


async def test_our_own_engine_counts_what_it_does(start_engine: Any) -> None:
    body = {"model": "policy", "prompt": list(range(10, 30)), "max_tokens": 5, "ignore_eos": True}
    async with start_engine().session() as http:
        for _ in range(3):
            async with http.post("/v1/completions", json=body) as answer:
                assert answer.status == 200
        async with http.get("/metrics") as answer:
            found = read_load(await answer.text())
    assert (found.running, found.waiting, found.totals is not None) == (0, 0, True)
    assert found.totals is not None
    assert (found.totals.generated_tokens, found.totals.prompt_tokens, found.totals.first_tokens) == (15, 60, 3)
    assert (found.totals.prefix_queries, found.totals.prefix_hits) == (60, 38), "all but the last token, twice"
    assert found.totals.preemptions == 0
    assert 0 < (found.totals.first_token_seconds or 0) < 60


async def test_each_start_of_an_engine_is_a_life_of_its_own(model_dir: Path, tmp_path: Path) -> None:
    spec = {"model": {"path": str(model_dir)}, "engine": {"embedded": {}}, "replicas": 1}
    uds = tmp_path / "e"
    supervisor = Supervisor(LaunchPlan(InferencePoolSpec.model_validate(spec), uds), uds)

    def load() -> EngineLoad | None:
        return supervisor.health.load

    async with running(supervisor.run()):
        first = await until(lambda: (now := load()) and now.life == 1 and now)
        second = await until(lambda: (now := load()) and now.at > first.at and now)
        assert evolve(second, at=first.at) == first
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and str(uds).encode() in command_line(entry):
                os.kill(int(entry.name), signal.SIGKILL)
        await until(lambda: (now := load()) and now.life == 2)


def command_line(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
