"""Checks of tasks, old results that are scored again, without any model server; then evaluations, with one."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient, rollout_client
from rollyard.client.repeated_runs import RepeatedRuns, Variant
from rollyard.client.task_report import TaskReport
from rollyard.core.errors import Invalid
from rollyard.kinds.evaluation import EvaluationState
from rollyard.kinds.rollout import RolloutRequest, RolloutView, Status
from rollyard.kinds.task import Task
from tests.support import planted_tasks
from tests.support.live_weights import other_weights
from tests.support.yard import MODEL, ROOT, Yard, end

pytestmark = [pytest.mark.slow(20), pytest.mark.asyncio(loop_scope="module")]

FAULTS = ["sound", "broken", "free", "flaky", "slow", "no-verdict", "unsolved"]
LIMIT = {"eval": {"timeoutSeconds": 2 * planted_tasks.SLOW_SECONDS - 1}}
SQUARE = {
    "kind": "code",
    "problem": "Write f(x), the square of x, into /workspace/f.py.",
    "solution": "/workspace/f.py",
    "cases": [{"call": "f(3)", "expect": "9"}],
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def yard(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Yard]:
    """A yard without a model server."""
    made = Yard(tmp_path_factory.mktemp("yard"))
    made.env["PYTHONPATH"] = planted_tasks.install(made.folder / "plugin")
    made.start()
    async with made.client() as client:
        await made.apply(client, policy={"replicas": 0}, demo={"replicas": 1, "stages": LIMIT})
    yield made
    await end(made)


def _file(folder: Path, tasks: list[dict[str, Any]]) -> Path:
    (file := folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return file


async def _rollouts(client: AsyncClient, group: str) -> dict[str, RolloutView]:
    return {view.id: view async for view in client.rollouts(group=group)}


async def test_a_check_that_is_killed_half_way_finds_each_planted_fault_and_runs_nothing_twice(
    yard: Yard, tmp_path: Path
) -> None:
    gate, report = tmp_path / "gate", tmp_path / "report.jsonl"
    planted = [{"kind": "planted", "fault": fault} for fault in FAULTS]
    code = {**SQUARE, "reference": "def f(x): return x * x\n"}
    gated = {"kind": "planted", "fault": "sound", "gate": str(gate)}
    file = _file(tmp_path, [*planted, code, gated, planted[0]])
    (wrong := tmp_path / "lazy.sh").write_text("echo 7 > /workspace/number; echo 'def f(x): return x' > f.py")
    words = ["tasks", "check", str(file), "--pool", "demo", "--wrong", str(wrong), "-o", str(report)]
    ungated, whole = 8 * 3 * 3, 9 * 3 * 3

    checking = subprocess.Popen(
        [sys.executable, "-m", "rollyard.cli.main", *words], env=yard.user_env, cwd=ROOT, stderr=subprocess.DEVNULL
    )
    async with yard.client() as client:

        async def half_way() -> dict[str, RolloutView] | None:
            ended = {id: view for id, view in (await _rollouts(client, "check-demo")).items() if view.status.terminal}
            return ended if len(ended) == ungated else None

        before = await yard.until(half_way)
        checking.kill()
        await asyncio.to_thread(checking.wait)
        yard.kill()
        yard.start()
        gate.touch()
        out, err = await yard.rollyard(*words, code=1)
        after = await _rollouts(client, "check-demo")
        assert f"{whole} rollouts are there, and do not run again" in err
        assert len(after) == whole
        assert {id: view for id, view in after.items() if id in before} == before
        assert {view.mode for view in after.values()} == {"check"}

        checked = TaskReport.read(report).tasks
        assert [task.verdict for task in checked] == [*FAULTS[:6], "no-verdict", "sound", "sound"], out
        assert checked[0].lines == [1, 10]
        why = {task.verdict: task.why[0] for task in checked[1:6]}
        assert why["broken"] == "the reference solution gets 0; the number is 41"
        assert why["free"] == "nothing at all gets 0.5; the number is None"
        assert sorted(why["flaky"].partition("; ")[0].removeprefix("the reference solution gets ").split(", ")) == [
            *("0", "1", "1")
        ]
        assert why["slow"].startswith("EVAL took 6")
        assert "the evaluator's data are gone" in why["no-verdict"]
        assert "nobody has solved it yet" in checked[6].why[0]
        assert out.splitlines()[-1] == "9 tasks: 3 sound, 1 broken, 1 free, 1 flaky, 1 slow, 2 no-verdict"

        stream = client.stream(after=0)
        first = asyncio.ensure_future(anext(stream))
        ids = await client.submit([RolloutRequest.model_validate({"id": "plain", "pool": "demo", "task": SQUARE})])
        assert (await client.cancel(ids[0])).status is Status.CANCELLED
        assert (await first)[1].id == "plain", "a trainer's stream has no checks"
        await stream.aclose()

        out, err = await yard.rollyard(
            *("submit", "-f", str(file), "--pool", "demo", "--report", str(report), "--id-prefix", "train", "-o", "id")
        )
        assert out.split() == ["train-1", "train-8", "train-9", "train-10"]
        assert "6 tasks are left out: 1 broken, 1 flaky, 1 free, 2 no-verdict, 1 slow" in err
        await yard.rollyard("rollouts", "cancel", "--prefix", "train-")
        put = ("datasets", "put", "chosen", str(file), "--report", str(report), "--only", "sound", "--only", "slow")
        assert "dataset/chosen has 5 tasks" in (await yard.rollyard(*put))[0]


async def test_a_program_that_ends_early_attaches_to_what_it_submitted_and_adds_the_rest(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_client, "UNFINISHED", 2)
    monkeypatch.setattr(rollout_client, "SUBMITTED_TOGETHER", 1)
    tasks = [Task.model_validate({"kind": "planted", "fault": "sound", "number": number}) for number in range(3)]
    variants = [Variant(word, {"mode": "check", "agent": {"type": word}}) for word in ("solve", "nothing")]
    whole = RepeatedRuns("early", "demo", tasks, variants, 1)
    async with yard.client() as client:
        async with contextlib.aclosing(whole.ended(client)) as ended:
            first, _ = await anext(ended)
        begun = await _rollouts(client, "early")
        assert 1 <= len(begun) <= 3
        found = {run: (trajectory.reward, trajectory.attempt) async for run, trajectory in whole.ended(client)}
        assert found == {run: (float(run.variant == "solve"), 1) for run, _ in whole.runs()}
        assert first in found
        assert len(await _rollouts(client, "early")) == len(whole) == 6
        changed = Task.model_validate({"kind": "planted", "fault": "sound", "number": 3})
        assert await dataclasses.replace(whole, tasks=[*tasks[:2], changed]).there(client) == 4


async def test_an_answer_in_words_is_scored_though_no_model_has_said_it(yard: Yard) -> None:
    agents = {
        "right": {"type": "solve"},
        "wrong": {"type": "script", "script": "pwd; echo 41"},
        "broken": {"type": "script", "script": "kill -9 -1; exit 3"},
        "silent": {"type": "nothing"},
    }
    task = {"kind": "planted", "fault": "words"}
    requests = [
        {"id": id, "pool": "demo", "task": task, "mode": "check", "agent": agent} for id, agent in agents.items()
    ]
    async with yard.client() as client:
        ids = await client.submit([RolloutRequest.model_validate(request) for request in requests])
        right, wrong, broken, silent = await yard.gather(client, ids)
    assert [one.reward for one in (right, wrong, broken, silent)] == [1.0, 0.0, 0.0, 0.0]
    assert [turn.text for turn in right.turns + silent.turns] == ["It is 42"]
    assert wrong.turns[0].text.splitlines() == ["/workspace", "41"]
    assert right.segments == wrong.segments == []


async def test_an_artifact_is_scored_again_by_another_evaluator_and_the_old_record_stays(
    yard: Yard, tmp_path: Path
) -> None:
    task = {"kind": "planted", "fault": "sound", "note": "regrade"}
    async with yard.client() as client:
        request = {"pool": "demo", "task": task, "mode": "check", "agent": {"type": "solve"}}
        ids = [f"old-{number}" for number in range(2)]
        await client.submit([RolloutRequest.model_validate({"id": id, **request}) for id in ids])
        old = await yard.gather(client, ids)
        assert [(one.status, one.reward, one.segments) for one in old] == [(Status.COMPLETED, 1.0, [])] * 2
        now = json.dumps({**task, "expected": "43"})
        words = ("tasks", "regrade", *ids, "--task", now, "--name", "again", "-o", str(tmp_path / "rewards.jsonl"))
        out, _ = await yard.rollyard(*words)
        assert out.splitlines()[-1] == "2 rollouts: 2 down; mean reward 1.000 -> 0.000"
        views = [view async for view in client.rollouts()]
        assert (await yard.rollyard(*words))[0] == out
        assert [view async for view in client.rollouts()] == views, "the same name runs nothing again"
        lines = [json.loads(line) for line in (tmp_path / "rewards.jsonl").read_text().splitlines()]
        assert [(one["rollout"], one["old"], one["new"], one["notes"]) for one in lines] == [
            (id, 1.0, 0.0, ["the number is 42"]) for id in ids
        ]
        _, new = await client.rollout("again.old-0")
        assert new is not None
        assert (new.regrade_of, new.mode, new.timings.run) == ("old-0", "check", old[0].timings.run)
        assert await yard.gather(client, ids) == old

        for wrong, message in (
            ({"regrade_of": "nonesuch", "mode": "check"}, "'nonesuch' is unknown"),
            ({"regrade_of": "old-0"}, "`mode: check` goes with `regrade_of`"),
            ({"agent": {"type": "nothing"}}, "`mode: check` goes with"),
            ({"mode": "check"}, "`mode: check` goes with"),
        ):
            with pytest.raises((Invalid, ValueError), match=message):
                await client.submit([RolloutRequest.model_validate({"pool": "demo", "task": task, **wrong})])


async def test_the_agents_files_are_scored_again(yard: Yard) -> None:
    task = {**SQUARE, "eval_from_snapshot": True}
    helped = "echo 'def g(x): return x * x' > /workspace/helper.py; echo 'from helper import g as f' > /workspace/f.py"
    request = {
        "id": "files",
        "pool": "demo",
        "task": task,
        "mode": "check",
        "agent": {"type": "script", "script": helped},
    }
    async with yard.client() as client:
        (old,) = await yard.gather(client, await client.submit([RolloutRequest.model_validate(request)]))
    assert (old.status, old.reward) == (Status.COMPLETED, 1.0), old.error
    more = json.dumps({**task, "cases": [{"call": "f(5)", "expect": "25"}]})
    out, _ = await yard.rollyard("tasks", "regrade", "files", "--task", more, "--name", "more")
    assert out.splitlines()[-1] == "1 rollouts: 1 same; mean reward 1.000 -> 1.000", out
    wrong = json.dumps({**task, "cases": [{"call": "f(5)", "expect": "26"}]})
    out, _ = await yard.rollyard("tasks", "regrade", "more.files", "--task", wrong, "--name", "wrong")
    assert out.splitlines()[-1] == "1 rollouts: 1 down; mean reward 1.000 -> 0.000", out


# Evaluations, with a model server for the same pools.

SHORT = ("--sampling", "max_tokens=8", "--temperature", "0")
NOTHING_WRITTEN = "None"
"""The model writes nothing, so a task that expects this is solved."""


def _planted(fault: str, **more: Any) -> dict[str, Any]:
    return {"kind": "planted", "fault": fault, **more}


SOLVED = _planted("sound", expected=NOTHING_WRITTEN, metadata={"level": "easy"})
UNSOLVED = _planted("sound", metadata={"level": "hard"})
HALF = _planted("free", metadata={"level": "hard"})


def _begin(yard: Yard, words: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rollyard.cli.main", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=yard.user_env, cwd=ROOT, stdout=pipe, stderr=pipe, text=True)


async def test_a_killed_evaluation_goes_on_and_a_fault_changes_nothing_but_the_number_of_faults(
    yard: Yard, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gated = {**SOLVED, "gate": str(gate)}
    file = _file(tmp_path, [SOLVED, UNSOLVED, HALF, gated, SOLVED])
    given = f"--dataset {file} --pool demo --k 2 --name night --by level"
    words = ["eval", "run", *given.split(), *SHORT]
    async with yard.client() as client:
        await yard.apply(client, policy={"replicas": 1}, demo={"replicas": 1, "stages": LIMIT})
        await yard.ready(client)
        evaluating = _begin(yard, words)

        async def half_way() -> dict[str, RolloutView] | None:
            found = await _rollouts(client, "night")
            ended = {id: view for id, view in found.items() if view.status.terminal}
            return ended if (len(ended), len(found)) == (6, 8) else None

        before = await yard.until(half_way)
        evaluating.kill()
        await asyncio.to_thread(evaluating.communicate)
        yard.kill()
        yard.start()
        running = await client.evaluation("night")
        assert (running.state, running.ended) == (EvaluationState.RUNNING, 6), "the results are on the server"
        faulty = f"night.{Task.model_validate(gated).digest}.eval.0"
        await client.cancel(faulty)
        evaluating = _begin(yard, words)
        assert evaluating.stderr is not None
        opening = await asyncio.to_thread(evaluating.stderr.readline)
        assert "4 tasks x 2 = 8 rollouts, 1 left. If it is interrupted, the same command goes on" in opening
        gate.touch()
        out, _ = await asyncio.to_thread(evaluating.communicate)
        after = await _rollouts(client, "night")
        assert (len(after), {view.mode for view in after.values()}) == (8, {"eval"})
        assert {id: view for id, view in after.items() if id in before} == before, "nothing ran twice"
        lines = [line.split() for line in out.splitlines()]
        assert "7 with a reward, 1 faults (Cancelled 1)" in out
        assert ["mean", "reward", "0.625"] in [line[:3] for line in lines], out
        assert ["easy", "2", "3", "1", "1.000"] in [line[:5] for line in lines]
        assert ["hard", "2", "4", "0", "0.250"] in [line[:5] for line in lines]

        view = await client.evaluation("night")
        assert (view.state, view.faults) == (EvaluationState.COMPLETED, {"Cancelled": 1})
        assert [view.statistics.pass_at[1].value, view.statistics.pass_at[2].tasks] == [0.5, 3]
        again, err = await yard.rollyard(*words)
        assert (again, "which have all ended earlier" in err) == (out, True)
        out, _ = await yard.rollyard("eval", "show", "night", "--tasks")
        assert [line.split()[2] for line in out.splitlines()[-4:]] == ["0.000", "0.500", "1.000", "1.000"], out

        out, err = await yard.rollyard(*words, "--rerun-faulty")
        assert "8 rollouts, 1 left" in err
        assert "8 with a reward, 0 faults; 1 others did not count and were repeated" in out
        assert await _rollouts(client, "night") == {**after, f"{faulty}.1": (await client.rollout(f"{faulty}.1"))[0]}, (
            "nothing else ran again"
        )


async def test_weights_versions_are_evaluated_one_after_the_other_and_compared(yard: Yard, tmp_path: Path) -> None:
    """Runs after the test above, which has started a model server."""
    async with yard.client() as client:
        await client.put_dataset("three", [SOLVED, UNSOLVED, HALF])
        other = other_weights(MODEL, tmp_path / "other")
        words = ("eval", "run", "--dataset", "three", "--pool", "demo", "--k", "1", *SHORT, "--name", "w")
        await client.submit(
            [RolloutRequest(id="busy", pool="demo", task=Task(kind="planted", fault="x", gate="/nowhere"))]
        )
        _, err = await yard.rollyard(*words, "--weights", f"one={MODEL},two={other}", code=1)
        assert "has unfinished rollouts of others (1 in rolloutpool/demo)" in err
        await client.cancel("busy")
        _, err = await yard.rollyard(*words, "--weights", "nonesuch", code=1)
        assert "has never served weights 'nonesuch'; write nonesuch=FOLDER" in err
        out, _ = await yard.rollyard(*words, "--weights", f"one={MODEL},two={other}")
        assert "w-one and w-two: 3 tasks with a reward in both" in out
        found = {one.request.name: one for one in await client.evaluations()}
        assert [found[f"w-{version}"].weights_versions for version in ("one", "two")] == [{"one": 3}, {"two": 3}]
        assert found["w-one"].mean_reward == found["w-two"].mean_reward == 0.5
        assert (await client.weights_status("default", "policy")).current.version == "two"  # type: ignore[union-attr]
        out, _ = await yard.rollyard("eval", "compare", "w-one", "night", "-o", "json")
        assert [json.loads(out)[word] for word in ("tasks", "only_first", "only_second", "same")] == [3, 0, 1, 3]
        listed, _ = await yard.rollyard("eval", "list")
        assert [line.split()[0] for line in listed.splitlines()] == ["NAME", "w-two", "w-one", "night"]
        words = ("rollouts", "list", "--mode", "eval", "--group", "w-two", "--since", "1h", "--sort", "-reward")
        out, _ = await yard.rollyard(*words, "-o", "columns=reward,metadata.level,pool")
        assert [line.split() for line in out.splitlines()] == [
            ["REWARD", "LEVEL", "POOL"], ["1", "easy", "demo"], ["0.5", "hard", "demo"], ["0", "hard", "demo"],
        ]  # fmt: skip
        out, _ = await yard.rollyard("rollouts", "list", "--reason", "Cancelled", "--kind", "planted", "-o", "wide")
        assert {line.split()[3] for line in out.splitlines()[1:]} == {"Cancelled"}
        out, _ = await yard.rollyard("rollouts", "top", "--by", "turns", "--limit", "2")
        assert len(out.splitlines()) == 3
        out, _ = await yard.rollyard("rollouts", "summary", "--group", "w-two", "--by", "metadata.level")
        assert [line.split()[:4] for line in out.splitlines()[1:]] == [
            ["hard", "2", "2", "0.250"],
            ["easy", "1", "1", "1.000"],
        ]
        out, _ = await yard.rollyard("usage", "--since", "1h")
        pools = {line.split()[1]: line.split() for line in out.splitlines()[2:-1]}
        assert float(pools["rolloutpool/demo"][3]) > 0, out
        assert int(pools["rolloutpool/demo"][5]) >= 13, "scored rollouts of both tests"
        assert int(pools["rolloutpool/demo"][8]) > 0, "prompt tokens"
        _, err = await yard.rollyard("rollouts", "list", "-o", "columns=nonesuch", code=2)
        assert "there is no field 'nonesuch'; the fields are id, " in err
        assert "evaluation/w-one deleted" in (await yard.rollyard("eval", "delete", "w-one"))[0]
