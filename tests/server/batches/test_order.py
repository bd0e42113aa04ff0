"""The bench of the order within a step in short: the server's order beside those of a queue and of an oracle."""

from statistics import mean

from bench.order import Case, simulate
from simulation.steps import FIFO, ORACLE, OURS, SPREADS


def test_a_step_of_known_tasks_takes_hardly_longer_than_with_known_lengths() -> None:
    times = simulate(Case(next(iter(SPREADS)), slots=32, seed=0), steps=2)
    assert mean(times[OURS]) <= 1.05 * mean(times[ORACLE])
    assert mean(times[FIFO]) >= 1.05 * mean(times[OURS])
