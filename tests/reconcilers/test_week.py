"""A simulated week: the bounds hold, nothing flaps, nobody busy is killed, and the demand is served."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.week import (
    DAY,
    HOUR,
    Bursts,
    Mishaps,
    Summary,
    Trace,
    Trainer,
    draw,
    inference_pool,
    patterns,
    rollout_pool,
    run,
    write_csv,
)
from rollyard.reconcilers.autoscaler import FLAP_BUDGET
from simulation.yard import Yard

pytestmark = pytest.mark.slow(30)

LOOK_SECONDS = 60.0


def check(found: Summary) -> None:
    assert found.served == found.submitted
    assert (found.above_max, found.below_min, found.busy_killed) == (0.0, 0.0, 0), found
    assert found.turns <= FLAP_BUDGET, found


@pytest.mark.parametrize(
    ("name", "days"),
    [("office", 2), *(pytest.param(name, 7, marks=pytest.mark.long) for name in ("office", "weekend", "sweeps"))],
)
def test_a_week_as_trainers_make_it(name: str, days: int) -> None:
    yard = Yard(inference_pool(), rollout_pool(), seed=7, look_seconds=LOOK_SECONDS)
    check(run([*patterns(days)[name], Mishaps(11 * HOUR, 7 * HOUR)], days=days, yard=yard))


@pytest.mark.parametrize("name", ["trainer", pytest.param("two-trainers", marks=pytest.mark.long), "sawtooth"])
def test_some_busy_hours(name: str, tmp_path: Path) -> None:
    yard = Yard(inference_pool(), rollout_pool(), seed=3, look_seconds=16.0)
    trace = Trace(every=60.0)
    check(run([*patterns(0.25)[name], Mishaps(2 * HOUR, HOUR)], days=0.25, yard=yard, trace=trace))
    assert max(sample.node_agents[2] for sample in trace.samples) > 1
    write_csv(tmp_path / "trace.csv", trace.samples)
    draw(tmp_path / "trace.svg", name, trace.samples)
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == len(trace.samples) + 1
    assert ElementTree.parse(tmp_path / "trace.svg").getroot().tag.endswith("svg")


BOUNDS = st.integers(0, 3).flatmap(
    lambda low: st.fixed_dictionaries(
        {
            "minReplicas": st.just(low),
            "maxReplicas": st.integers(max(1, low), low + 6),
            "idleTimeoutSeconds": st.sampled_from([0, 60, 900]),
            "behavior": st.fixed_dictionaries(
                {
                    "scaleDown": st.fixed_dictionaries(
                        {"stabilizationWindowSeconds": st.sampled_from([0, 60, 300])},
                        optional={"policies": st.just([{"type": "Percent", "value": 50, "periodSeconds": 60}])},
                    ),
                    "scaleUp": st.fixed_dictionaries({"stabilizationWindowSeconds": st.sampled_from([0, 60])}),
                }
            ),
        }
    )
)
BURSTS = st.lists(st.tuples(st.floats(0, 0.25 * DAY), st.integers(1, 150)), max_size=12).map(Bursts)
TRAINERS = st.builds(
    Trainer, st.floats(0, 2 * HOUR), st.floats(2 * HOUR, 6 * HOUR), st.integers(1, 120), st.sampled_from([0.0, 600.0])
)
MISHAPS = st.builds(Mishaps, st.sampled_from([600.0, 2 * HOUR]), st.sampled_from([HOUR, 4 * HOUR]))


@given(
    BOUNDS, BOUNDS, st.lists(BURSTS | TRAINERS, min_size=1, max_size=2), MISHAPS, st.integers(0, 99),
    st.sampled_from([4, 64]), st.sampled_from([0.0, 30.0, 1200.0]),
)  # fmt: skip
@settings(max_examples=12, deadline=None)
def test_whatever_is_submitted_to_whatever_bounds(
    engines: dict[str, Any],
    node_agents: dict[str, Any],
    demands: list[Any],
    mishaps: Mishaps,
    seed: int,
    jobs: int,
    wait: float,
) -> None:
    """Also where Slurm has too few places, or takes a long time."""
    inference, rollouts = inference_pool(**engines), rollout_pool(**node_agents)
    yard = Yard(inference, rollouts, seed=seed, jobs=jobs, wait_seconds=wait, look_seconds=LOOK_SECONDS)
    check(run([*demands, mishaps], days=0.25, yard=yard))
