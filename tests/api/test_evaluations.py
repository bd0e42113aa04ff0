"""Evaluations over HTTP: their results, their statistics and their comparison, with a pool that the test plays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rollyard.client.async_client import AsyncClient
from rollyard.core.aio import running
from rollyard.core.errors import BadRequest, Conflict, Invalid, NotFound
from rollyard.kinds.evaluation import EvaluationState, EvaluationView, RunPlace
from rollyard.kinds.rollout import RolloutRequest, Sampling, Status
from rollyard.kinds.task import Task
from rollyard.store.base import RolloutRecord
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool

TASKS = [
    Task.model_validate(
        {"kind": "math", "problem": f"{i} + 1?", "answer": str(i + 1), "metadata": {"level": i % 2, "id": f"t{i}"}}
    )
    for i in range(4)
]
NUMBERS = {task.digest: i for i, task in enumerate(TASKS)}
Play = Callable[[int, int], Played]
"""Number of the task, and number of the rollout."""


def numbers(record: RolloutRecord) -> tuple[int, int]:
    _, digest, _, number = RunPlace.of(record.id).run.split(".")
    return NUMBERS[digest], int(number)


async def evaluated(api: Api, client: AsyncClient, name: str, play: Play, **more: Any) -> EvaluationView:
    """Evaluate while a node agent plays what is queued."""

    async def played() -> None:
        while True:
            await PlayedPool(api.parts).play(lambda record: play(*numbers(record)))
            await asyncio.sleep(0.01)

    async with running(played()):
        return await client.evaluate(more.pop("tasks", TASKS), pool="swe", k=4, name=name, **more)


def solves(*counts: int) -> Play:
    """Task i is solved by its first rollouts, so many."""
    return lambda task, number: Played(reward=float(number < counts[task]))


async def test_faults_change_nothing_but_their_count_and_two_evaluations_are_compared(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        whole = await evaluated(api, client, "old", solves(0, 1, 2, 4), sampling=Sampling(max_tokens=64))
        assert (whole.state, whole.ended, whole.scored, whole.faults) == (EvaluationState.COMPLETED, 16, 16, {})
        assert whole.request.sampling.max_tokens == 64
        assert whole.weights_versions == {"v1": 16}
        found = whole.statistics
        assert found.mean is not None
        assert found.mean.value == found.pass_at[1].value == whole.mean_reward == 7 / 16
        assert found.pass_at[2].value == pytest.approx((0 + 1 / 2 + 5 / 6 + 1) / 4)
        assert [found.pass_at[4].value, found.pass_all[4].value] == [0.75, 0.25]
        assert 0 <= found.mean.low < found.mean.value < found.mean.high <= 1

        def faulty(task: int, number: int) -> Played:
            """The last rollout of task 1 and all of task 0 end without a reward."""
            bad = Played(status=Status.FAILED)
            return bad if (task, number) == (1, 3) or task == 0 else solves(0, 1, 3, 2)(task, number)

        new = await evaluated(api, client, "new", faulty)
        assert (new.ended, new.scored, new.faults) == (16, 11, {"Test": 5})
        assert new.statistics.mean is not None
        assert new.statistics.mean.value == pytest.approx((1 / 3 + 3 / 4 + 2 / 4) / 3)
        tasks = [new.statistics.mean.tasks, *(one.tasks for one in new.statistics.pass_at.values())]
        assert tasks == [3, 3, 3, 2]
        assert (new.statistics.tasks_short, new.statistics.tasks_unscored) == (1, 1)

        by_level = await client.evaluation("new", by="level")
        assert [(g.value, g.tasks, g.scored, g.faults) for g in by_level.groups] == [("0", 2, 4, 4), ("1", 2, 7, 1)]
        assert [g.value for g in (await client.evaluation("new", by="kind")).groups] == ["math"]
        easy = await client.evaluation("new", solved_at=0.0)
        assert easy.statistics.pass_at[1].value == 1.0
        with pytest.raises(BadRequest, match="solved_at must be a number"):
            await client.evaluation("new", solved_at=float("nan"))

        compared = await client.compare_evaluations("old", "new")
        assert (compared.tasks, compared.only_first, compared.only_second) == (3, 1, 0)
        assert [(c.metadata["id"], c.first, c.second) for c in compared.better] == [
            ("t2", [1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]),
            ("t1", [1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0]),
        ]
        assert [(c.metadata["id"], c.difference) for c in compared.worse] == [("t3", -0.5)]
        assert compared.notes == [
            f"the two have different values of `sampling.max_tokens`: 64 and {Sampling().max_tokens}",
            "the same weights sampled both: v1",
        ]
        assert compared.mean is not None
        assert compared.mean.difference == pytest.approx((1 / 4 + 1 / 12 - 1 / 2) / 3)
        assert compared.mean.p_value == 1.0, "no other signs give a smaller sum"
        listed = await client.evaluations()
        assert [(one.request.name, one.scored, one.mean_reward) for one in listed] == [
            ("new", 11, pytest.approx(new.statistics.mean.value)),
            ("old", 16, 7 / 16),
        ]


async def test_results_outlive_the_rollouts_and_a_new_evaluation_takes_those_that_are_there(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        first = await evaluated(api, client, "e", solves(1, 1, 1, 1))
        await client.delete_evaluation("e")
        with pytest.raises(NotFound, match="evaluation 'e' not found"):
            await client.evaluation("e")
        assert await client.evaluations() == []
        # Nothing plays now: the ended rollouts count again.
        again = await client.evaluate(TASKS[::-1], pool="swe", k=4, name="e", source="another file")
        assert again.statistics == first.statistics

        stranger = RolloutRequest(id="stranger", pool="swe", task=TASKS[0], mode="eval", group="e")
        await client.submit([stranger])
        await PlayedPool(api.parts).play(lambda record: Played(reward=9.0))
        assert await api.store.rollouts.prune(lambda key: api.parts.clock.time() + 1) >= 15
        kept = await client.evaluation("e")
        assert (kept.ended, kept.statistics) == (16, first.statistics)
        tasks = await client.evaluated_tasks("e")
        assert [(task.rewards, len(task.rollouts)) for task in tasks] == [([1.0, 0.0, 0.0, 0.0], 4)] * 4
        assert (await client.evaluate(TASKS, pool="swe", k=4, name="e")).created_at == kept.created_at, "nothing is run"


async def test_what_did_not_count_is_repeated_once_and_an_interrupted_repeat_goes_on(serving: Serve) -> None:
    played = list[str]()

    def play(lost: set[tuple[int, int]]) -> Play:
        def one(task: int, number: int) -> Played:
            played.append(f"{task}.{number}")
            bad = (task, number) in lost
            return Played(status=Status.FAILED) if bad else Played(reward=float(task))

        return one

    async with serving() as api, client_of(api) as client:
        await pool(api)
        first = await evaluated(api, client, "e", play({(1, 0), (1, 2), (3, 3)}))
        assert (first.ended, first.scored, first.faults, first.repeated) == (16, 13, {"Test": 3}, 0)
        played.clear()
        assert (await client.evaluate(TASKS, pool="swe", k=4, name="e")).scored == 13, "only on demand"

        # One of the three is repeated and fails again, one ends well, and the third is still on its way when the client ends.
        repeat = asyncio.create_task(client.evaluate(TASKS, pool="swe", k=4, name="e", rerun_faulty=True))
        while len([view async for view in client.rollouts(status=["Queued"])]) < 3:
            await asyncio.sleep(0.01)
        part = await client.evaluation("e")
        assert (part.state, part.ended, part.faults, part.repeated) == (EvaluationState.RUNNING, 13, {}, 3)
        repeat.cancel()
        await PlayedPool(api.parts).play(lambda record: play({(1, 2)})(*numbers(record)), 2)
        # The same command again, before the third ends: it does not begin with the second once more.
        status, found = await api.ask("POST", "/v1/evaluations/e/repeat")
        assert (status, found["state"], found["ended"], found["repeated"]) == (200, "Running", 15, 3)
        whole = await evaluated(api, client, "e", play(set()))
        assert sorted(played) == ["1.0", "1.2", "3.3"], "each of the three was repeated once"
        assert (whole.state, whole.ended, whole.faults, whole.repeated) == (
            EvaluationState.COMPLETED,
            16,
            {"Test": 1},
            3,
        )

        again = await evaluated(api, client, "e", play(set()), rerun_faulty=True)
        assert (played[3:], again.scored, again.faults, again.repeated) == (["1.2"], 16, {}, 4)
        (task,) = [one for one in await client.evaluated_tasks("e") if NUMBERS[one.task] == 1]
        begin = f"e.{task.task}.eval"
        assert (task.rewards, task.repeated) == ([1.0] * 4, [f"{begin}.0", f"{begin}.2", f"{begin}.2.1"])
        assert task.rollouts == [f"{begin}.0.1", f"{begin}.1", f"{begin}.2.2", f"{begin}.3"]
        nothing = await client.evaluate(TASKS, pool="swe", k=4, name="e", rerun_faulty=True)
        assert (nothing.repeated, len(played)) == (4, 4), "there is nothing to repeat"
        await client.delete_evaluation("e")
        taken = await client.evaluate(TASKS, pool="swe", k=4, name="e")
        assert (taken.ended, taken.repeated, taken.statistics) == (16, 4, again.statistics)


async def test_a_name_stands_for_one_evaluation_and_other_weights_do_not_count(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await client.put_dataset("d", TASKS)
        assert await client.dataset_tasks("d") == TASKS
        found = await evaluated(api, client, "e", solves(4, 4, 4, 4), tasks="d")
        assert (found.request.dataset, found.request.tasks) == ("d", 4)
        with pytest.raises(Conflict, match=r"evaluation 'e' exists with other tasks .* rollyard eval delete e"):
            await client.evaluate(TASKS[:3], pool="swe", k=4, name="e")
        with pytest.raises(Invalid, match="are external"):
            await client.evaluate(TASKS, pool="swe", name="pinned", weights_version="v1")
        assert [one.request.name for one in await client.evaluations()] == ["e"]
        part = await client.create_evaluation(found.request.model_copy(update={"name": "part"}))
        assert (part.state, part.ended, part.mean_reward) == (EvaluationState.RUNNING, 0, None)
        assert (await client.evaluation("part")).statistics.tasks_unscored == 4
        assert (await client.compare_evaluations("e", "part")).mean is None


async def test_rollouts_are_searched_and_summed_up(serving: Serve) -> None:
    async with serving() as api, client_of(api) as client:
        await pool(api)
        await evaluated(api, client, "e", lambda task, number: Played(reward=number / 4, tokens=10 * task + number))
        top = [view async for view in client.rollouts(search={"sort": "-tokens"}, limit=2)]
        assert [(view.tokens, view.turns, view.seconds) for view in top] == [(33, 1, 1.0), (32, 1, 1.0)]
        assert len([view async for view in client.rollouts(search={"kind": "math"}, limit=7)]) == 7
        found = [
            v async for v in client.rollouts(metadata={"level": "1"}, search={"min_reward": "0.75", "mode": "eval"})
        ]
        assert {view.task for view in found} == {TASKS[1].digest, TASKS[3].digest}
        rows = await client.summarize("task", search={"since": str(api.parts.clock.time() - 60)})
        assert [(row.rollouts, row.mean_reward, row.best_reward, row.informative) for row in rows] == [
            (4, 0.375, 0.75, 1)
        ] * 4
        (whole,) = await client.summarize("group")
        assert (whole.value, whole.groups, whole.informative) == ("e", 4, 4), "each task of an evaluation is a group"
        (node,) = await client.nodes()
        assert (node.node, node.rollouts, node.faults, node.init_median, node.run_median) == ("node", 16, {}, None, 1.0)
        assert await client.nodes(since=api.parts.clock.time() + 9) == []
        for parameter in ({"sort": "size"}, {"min_reward": "many"}, {"since": "yesterday"}):
            with pytest.raises(BadRequest, match="must be"):
                [view async for view in client.rollouts(search=parameter)]
        with pytest.raises(BadRequest, match="by must be one of reason, kind, pool"):
            await client.summarize("size")
