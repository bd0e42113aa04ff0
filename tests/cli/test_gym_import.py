"""`rollyard tasks import gym`, where the library is not installed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result

from rollyard.cli.main import cli
from rollyard.kinds.gym_task import GymTask
from rollyard.kinds.task import Task
from rollyard.tasks.gym import library


@pytest.fixture(autouse=True)
def not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "find_spec", lambda name: None)


def invoke(*words: str) -> Result:
    return CliRunner().invoke(cli, ["tasks", "import", "gym", *words])


def test_entries_become_tasks_that_climb_through_the_levels() -> None:
    words = "chain_sum --count 5 --first 3 --seed 7 --level num_terms=2 --difficulty 0 --difficulty 2"
    done = invoke(*words.split(), "--config", "max_digits=4")
    assert done.exit_code == 0, done.output
    assert "not installed here" in done.stderr
    tasks = [Task.model_validate_json(line) for line in done.stdout.splitlines()]
    found = [task.fields_as(GymTask) for task in tasks]
    assert [(one.index, one.difficulty) for one in found] == [(3, 0), (4, 0), (5, 0), (6, 2), (7, 2)]
    assert {(one.seed, json.dumps(one.config), one.level["num_terms"]) for one in found} == {
        (7, '{"max_digits": 4}', 2)
    }
    assert tasks[-1].metadata == {"dataset": "chain_sum", "difficulty": 2}


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("Chain-Sum",), "dataset"), (("gcd", "--level", "numbers"), "write NAME=VALUE"),
        (("gcd", "--config", "a=x"), "write NAME=VALUE"),
        (("gcd", "--level", "numbers=0", "--level", "numbers=2"), "numbers is given twice; import once for each value"),
    ],
)  # fmt: skip
def test_what_is_no_task_is_refused(words: tuple[str, ...], why: str) -> None:
    done = invoke(*words)
    assert done.exit_code != 0
    assert why in done.output + str(done.exception)
