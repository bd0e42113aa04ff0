"""Rollouts that outlive their node agents: they go on at their last turn, with their tokens and their files as they were."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from rollyard.client import AsyncClient
from rollyard.core.aio import running
from rollyard.core.failpoints import NODE_POINTS, SERVER_POINTS, VARIABLE
from rollyard.kinds.allocation import DRAINED_BY
from rollyard.kinds.base import ObjectKey
from rollyard.kinds.rollout import RolloutRequest, Stage, Status
from rollyard.kinds.task import Task
from rollyard.node.agent import LONGEST_TURN_SECONDS, TURN_SECONDS
from rollyard.node.turn_saver import unpacked
from rollyard.trajectory import SavedTurn, Trajectory
from tests.support.file_work import ANSWER, LOST, file_turns, files_after, files_in, stem_task
from tests.support.looped_tasks import ENTRY_POINTS
from tests.support.scripted_agent import call
from tests.support.scripted_engine import SAMPLED, digest, scripted_pool
from tests.support.shell_agent import SHELL_AGENT
from tests.support.shown import page_tab
from tests.support.small_games import Ledger
from tests.support.yard import MODEL, ROOT, Yard, end, kill

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.slow(60)]

TURNS = 8
SLOW = "sleep 0.5"
MOST = 200
"""Greatest number of rollouts of each kind in the storm."""
NEVER = "`resume` is never in its pool or its request"
FORGETS = "the task's environment cannot save its state: it has no `state` and `restore`"
WAYS = ("auto", "never")
LEASE_SECONDS = 30.0
"""As a server has it by default: on a busy machine a node agent is silent for seconds. A kill is seen by the end of its job."""
TURNS_OF_A_KILL = 3
"""Greatest number of turns that a kill costs a rollout: the one under way, and two that were not stored yet."""
CUT = [
    call("bash", command="true && printf %s NONCE > f0"),
    call("bash", command="sleep 30"),
    *(call("bash", command=f"{SLOW} && printf %s -NONCE >> f0") for _ in range(4)),
    call("bash", command="true && cat f0"),
    ANSWER,
]
"""Turns with a call that is stopped at its time limit."""
LATE, TOO_LATE = (
    [
        call("bash", command="true && printf %s NONCE > f0"),
        call("bash", command=f"sleep {seconds:g} && printf %s -NONCE >> f0"),
        call("bash", command="true && cat f0"),
        ANSWER,
    ]
    for seconds in (TURN_SECONDS + 2, LONGEST_TURN_SECONDS + 2)
)
"""Turns with a call that outlasts the wait of a node agent that stops: where a snapshot is needed, and everywhere."""
LAST = [call("bash", command="true && printf %s NONCE > f0"), f"{'1 ' * 1500}\n{ANSWER}"]
"""Turns of which the last one takes four seconds to sample."""
PLAYED = [
    text
    for n in range(4)
    for text in (f"I play NONCE-{n}", call("bash", command=f"true && printf %s -NONCE {'>>' if n else '>'} f0"))
] + ["I play NONCE-4"]
"""Turns of a game, and calls between them."""
LOOPED = ("repeated-1", "restless-1", "killed-loop-1")
"""Rollouts of a task kind with an agent loop of its own."""
REPLAYS = ["after-played-turn", "after-replay", "before-turns-upload", "after-turns-upload"]
"""Points in the work of a lease that follows a lost one. The upload is that of its report."""
SNAPSHOTS = [one for one in (*SERVER_POINTS, *NODE_POINTS) if "snapshot" in one]
SAVES = [one for one in (*SERVER_POINTS, *NODE_POINTS) if "turns" in one or one == "after-saved-turn"]
KILLS = [
    *(("preempted-1", signal.SIGTERM, point) for point in [*SNAPSHOTS, "before-restore", "after-restore"]),
    ("command-2", None, "after-answered-call"),
    *((name, None, point) for name in ("kept-1", "command-2", "killed-loop-1") for point in SAVES),
    *((name, signal.SIGKILL, point) for name in ("kept-1", "command-2", "killed-loop-1") for point in REPLAYS),
]
"""Rollouts of the built-in loop, also with snapshots, of a command, and of a loop of a task kind. With each: the signal that
its node agent gets first, and the point that is reached then."""
QUICK_KILLS = [
    ("kept-1", "before-turns-commit"),
    ("preempted-1", "after-snapshot"),
    ("preempted-1", "after-restore"),
    ("command-2", "after-answered-call"),
    ("command-2", "after-played-turn"),
    ("killed-loop-1", "after-saved-turn"),
]
POINTS = [
    pytest.param(
        name,
        first,
        point,
        marks=[] if (name, point) in QUICK_KILLS else pytest.mark.long,
        id=f"{name}-{'replay-' * (first is signal.SIGKILL)}{point}",
    )
    for name, first, point in KILLS
]
COMMAND = [f"{SLOW} && printf %s {'NONCE-' * n} {'>>' if n > 1 else '>'} f0" for n in range(1, TURNS)] + ["exit"]
"""Turns of a command, each of which leaves another text."""
NAMES = {
    "preempted-1": CUT,
    "last-1": LAST,
    "late-1": LATE,
    "late-2": TOO_LATE,
    "warned-1": file_turns(TURNS, 6, "sleep 1"),
    "drained-1": file_turns(TURNS, 0, "sleep 3"),
    "shown-1": file_turns(TURNS, 5, "sleep 2"),
    "played-1": PLAYED,
    "forgetful-1": PLAYED,
    "command-1": COMMAND,
    "command-2": COMMAND,
    **{f"planner-{name}": ["Write files.", "Well done."] for name in LOOPED},
    **{f"worker-{name}": file_turns(TURNS, seed, SLOW) for seed, name in enumerate(LOOPED)},
} | {
    name: file_turns(TURNS, seed, SLOW)
    for seed, name in enumerate(
        [
            "killed-1",
            "sandbox-1",
            "never-1",
            "kept-1",
            *(f"storm-{way}-{n:03}." for way in WAYS for n in range(MOST)),
        ]
    )
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def resuming(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[Yard, AsyncClient]]:
    yard = Yard(tmp_path_factory.mktemp("yard"))
    yard.lease_seconds = LEASE_SECONDS
    (yard.folder / "crash").mkdir()
    for name, text in ENTRY_POINTS.items():
        path = yard.folder / "plugin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    yard.env |= {
        "PYTHONPATH": f"{ROOT}:{yard.folder}/plugin",
        VARIABLE: str(yard.folder / "crash"),
    }  # for the environments' modules
    policy = scripted_pool(yard.folder, MODEL, NAMES)
    (yard.folder / "turns").with_suffix(SAMPLED).touch()
    try:
        yard.start()
        async with yard.client() as client:
            await yard.apply(client, policy={**policy, "replicas": 1}, demo={"replicas": 2})
            await yard.ready(client)
            yield yard, client
    finally:
        await end(yard)


def request(name: str, **agent: Any) -> RolloutRequest:
    agent = {"snapshots": "last", **agent}
    return RolloutRequest.model_validate({"id": name, "pool": "demo", "task": stem_task(name), "agent": agent})


def saved_turns(yard: Yard, id: str) -> list[SavedTurn]:
    """Return what the store has of a rollout."""
    with closing(sqlite3.connect(f"file:{yard.data / 'rollyard.db'}?mode=ro", uri=True)) as db:
        query = "SELECT saved_turns.body FROM saved_turns JOIN rollouts ON rollout = seq WHERE id = ? ORDER BY turn"
        return unpacked([body for (body,) in db.execute(query, (id,))])


async def until_saved(yard: Yard, id: str, least: int) -> None:
    """Wait until the store has so many turns of a rollout."""

    async def some_saved() -> bool:
        return len(await asyncio.to_thread(saved_turns, yard, id)) >= least

    await yard.until(some_saved)


def rows(yard: Yard) -> int:
    with closing(sqlite3.connect(f"file:{yard.data / 'rollyard.db'}?mode=ro", uri=True)) as db:
        return sum(
            db.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in ("saved_turns", "resume_states")
        )


async def holder(client: AsyncClient, id: str) -> str:
    entries = (await client.rollout_history(id)).entries
    return next(str(entry.allocation) for entry in reversed(entries) if entry.event == "Leased")


async def kill_holder(yard: Yard, client: AsyncClient, id: str) -> None:
    for pid in yard.processes("node-agent", await holder(client, id)):
        kill(pid)


async def signal_holder(yard: Yard, client: AsyncClient, id: str, number: signal.Signals) -> None:
    for pid in yard.processes("node-agent", await holder(client, id)):
        os.kill(pid, number)


def sampled(yard: Yard, name: str) -> int:
    return (yard.folder / "turns").with_suffix(SAMPLED).read_text().split().count(name)


async def check_files(client: AsyncClient, ended: Trajectory) -> None:
    """Check that the files at the end are those to which a plain model comes by the recorded turns. A command runs the texts of
    its turns."""
    last, turns = (await client.snapshots(ended.id))[-1], ended.turns
    if turns[-1].text == COMMAND[-1]:
        own = [{"name": "bash", "arguments": {"command": turn.text}} for turn in turns[:-1]]
        turns = [turns[0].model_copy(update={"tool_calls": own, "tool_results": ["(no output)"] * len(own)})]
    assert files_in(await client.snapshot(ended.id, last.turn)) == files_after(turns)


def check_ids(yard: Yard, name: str, ended: Trajectory) -> None:
    """Check that each turn has the very ids that the model server sent for this conversation, marked as sampled."""
    sent = {tuple(line.split()) for line in (yard.folder / "turns").with_suffix(SAMPLED).read_text().splitlines()}
    for turn in ended.turns:
        segment, answer = ended.segments[turn.segment], slice(begin := turn.prompt_length, begin + turn.response_length)
        ids = digest(segment.token_ids[answer])
        assert any((f"{role}{name}", ids) in sent for role in ("", "planner-", "worker-")), turn
        assert all(segment.loss_mask[answer])


async def test_a_killed_node_agent_costs_at_most_the_turn_under_way(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("killed-1")])
    await until_saved(yard, id, 4)
    await kill_holder(yard, client, id)
    before = saved_turns(yard, id)
    assert (await client.saved_turns(id))[: len(before)] == [saved.turn for saved in before]
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.turn, resumption.replayed, resumption.dropped) == (len(before), len(before), 0)
    assert resumption.why is None
    (segment,) = ended.segments
    used = [saved.run_seconds for saved in before]
    assert used == sorted(used)
    assert used[0] >= 0.5, "the seconds of its command count for RUN's budget"
    for saved, turn in zip(before, ended.turns, strict=False):
        assert saved.turn == turn
        start = turn.prompt_length
        assert segment.token_ids[start : start + turn.response_length] == saved.token_ids
        assert segment.logprobs[start : start + turn.response_length] == saved.logprobs
        assert segment.weights_version[start : start + turn.response_length] == saved.weights_versions
    assert TURNS <= sampled(yard, id) <= TURNS + 2
    await check_files(client, ended)
    words = [entry.event for entry in (await client.rollout_history(id)).entries]
    assert words.count("Resumed") == 1
    assert rows(yard) == 0
    assert await client.saved_turns(id) == []
    out, _ = await yard.rollyard("rollouts", "describe", id)
    assert f"after turn {len(before)}, {len(before)} played again, 0 sampled again" in out


@pytest.mark.long  # on a busy machine the rollout may end before the browser looks; api/test_page.py has it without a yard
async def test_the_turns_of_a_rollout_are_shown_while_it_runs(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    async with page_tab(yard) as opened:
        if opened is None:
            pytest.skip("needs Chromium")
        tab, page = opened
        (id,) = await client.submit([request("shown-1")])
        await tab.go(f"{page}#/rollouts/{id}")
        numbers = "[...document.querySelectorAll('.turn h3 > a')].map(a => a.textContent.trim())"
        await tab.until(f"{numbers}.length >= 2 && !document.querySelector('#score')")
        seen = len(await tab.evaluate(numbers))
        saved = (await client.saved_turns(id))[:seen]
        out, _ = await yard.rollyard("rollouts", "describe", id)
        text = await tab.evaluate("document.querySelector('.turns').textContent")
        for turn in saved:
            command = turn.tool_calls[0]["arguments"]["command"]
            assert command in text
            assert command in out
        assert f"to follow them: rollyard logs -f rollout/{id}" in out
        await tab.until(f"{numbers}.length > {seen} && !document.querySelector('#score')")
        await tab.until("!!document.querySelector('#score')")
        assert await tab.evaluate(numbers) == [f"Turn {n + 1}" for n in range(TURNS)]
        assert tab.faults == []
        await yard.gather(client, [id])


async def test_a_preempted_node_agent_saves_what_cannot_be_played_again(resuming: tuple[Yard, AsyncClient]) -> None:
    """A call was cut off, so no other sandbox can come to the same files by its calls."""
    yard, client = resuming
    (id,) = await client.submit([request("preempted-1", tool_timeout_seconds=1.0)])
    await until_saved(yard, id, 4)
    await signal_holder(yard, client, id, signal.SIGTERM)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert resumption.turn >= 4
    assert (resumption.snapshot, resumption.replayed, resumption.dropped) == (resumption.turn, 0, 0)
    results = [result for turn in ended.turns for result in turn.tool_results]
    assert [n for n, result in enumerate(results) if LOST in result] == [resumption.turn]
    written = [
        turn.tool_calls[0]["arguments"]["command"].rpartition("%s ")[2].split()[0]
        for turn in ended.turns[:6]
        if "printf" in turn.text
    ]
    assert results[6] == "".join(written)
    assert rows(yard) == 0


async def test_a_warning_of_slurm_moves_a_rollout_and_repeats_no_turn(resuming: tuple[Yard, AsyncClient]) -> None:
    """`--signal` of sbatch sends USR1 if it is so told."""
    yard, client = resuming
    (id,) = await client.submit([request("warned-1")])
    await until_saved(yard, id, 2)
    await signal_holder(yard, client, id, signal.SIGUSR1)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.reason, resumption.dropped, resumption.why) == ("NodeAgentStopped", 0, None)
    assert sampled(yard, id) == TURNS
    await check_files(client, ended)


@pytest.mark.parametrize(("id", "again"), [("late-1", 0), pytest.param("late-2", 1, marks=pytest.mark.long)])
async def test_only_a_turn_that_outlasts_the_wait_of_a_stop_is_sampled_again(
    resuming: tuple[Yard, AsyncClient], id: str, again: int
) -> None:
    yard, client = resuming
    await client.submit([request(id)])

    async def calls() -> bool:
        return sampled(yard, id) == 2

    await yard.until(calls)
    await signal_holder(yard, client, id, signal.SIGTERM)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.reason, resumption.turn, resumption.dropped) == ("NodeAgentStopped", 2 - again, 0)
    assert sampled(yard, id) == len(LATE) + again
    await check_files(client, ended)


async def test_a_last_turn_that_ends_in_time_is_not_sampled_again(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    longer = request("last-1").sampling.model_copy(update={"max_tokens": 3500})
    (id,) = await client.submit([request("last-1").model_copy(update={"sampling": longer})])

    async def last_begun() -> bool:
        return sampled(yard, id) == 2

    await yard.until(last_begun)
    await signal_holder(yard, client, id, signal.SIGTERM)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    assert sampled(yard, id) == len(LAST)
    await check_files(client, ended)


def looped(name: str) -> RolloutRequest:
    """Return a request for a task kind with an agent loop of its own."""
    task = Task.model_validate({"kind": "looped", "name": name, "restless": name == "restless-1"})
    return request(name).model_copy(update={"task": task})


def commanded(name: str) -> RolloutRequest:
    return request(name, type="command", command=SHELL_AGENT)


def game(name: str, env: str, gate: Path) -> RolloutRequest:
    """Return a request for a game that has a secret of its own in each attempt."""
    arguments = {"name": name, "steps": 5, "gate": str(gate)}
    fields = {"env": f"tests.support.small_games:{env}", "arguments": arguments, "seed": None, "tools": ["bash"]}
    task = {"kind": "env", "framework": "class", **fields}
    return request(name).model_copy(update={"task": Task.model_validate(task)})


async def test_an_environment_goes_on_where_it_was_if_it_can_save_itself(
    resuming: tuple[Yard, AsyncClient],
) -> None:
    yard, client = resuming
    gate = yard.folder / "gate"
    ids = await client.submit([game("played-1", "Ledger", gate), game("forgetful-1", "Forgetful", gate)])

    async def some_played() -> list[SavedTurn]:
        found = await asyncio.to_thread(saved_turns, yard, "played-1")
        return found if len(found) == 6 and sampled(yard, "forgetful-1") == 7 else []

    await yard.until(some_played)
    (yard.folder / "crash" / "after-environment-restore").touch()
    for id in ids:
        await kill_holder(yard, client, id)
    before = saved_turns(yard, "played-1")
    gate.touch()
    played, forgetful = await yard.gather(client, ids)
    assert (played.error, played.attempt, forgetful.error) == (None, 1, None)
    assert not (yard.folder / "crash" / "after-environment-restore").exists(), "it was killed there too"
    assert {(one.turn, one.dropped, one.why) for one in played.resumptions} == {(len(before), 0, None)}
    assert [turn.text for turn in played.turns[: len(before)]] == [one.turn.text for one in before]
    same = Ledger("played-1", 5)
    same.reset()
    same.restore(json.loads(before[-1].environment or "")["state"] | {"said": []})
    steps = [turn for turn in played.turns if not turn.tool_calls]
    assert [same.step(turn.text)[:2] for turn in steps] == [(turn.observation, turn.reward) for turn in steps]
    assert len(steps) == 5
    await check_files(client, played)
    assert {(one.turn, one.why) for one in forgetful.resumptions} == {(0, FORGETS)}


@pytest.mark.parametrize("name", LOOPED[:2])
async def test_a_loop_of_its_own_gets_its_turns_as_long_as_it_asks_for_them(
    resuming: tuple[Yard, AsyncClient], name: str
) -> None:
    yard, client = resuming
    (id,) = await client.submit([looped(name)])
    await until_saved(yard, id, 4)
    await kill_holder(yard, client, id)
    saved = saved_turns(yard, id)
    (one,) = await yard.gather(client, [id])
    resumption = next(found for found in one.resumptions if found.turn)
    assert (one.reward, one.error, len(one.turns)) == (1.0, None, TURNS + 2)
    kept = len(saved) if one.id == "repeated-1" else 2
    assert (resumption.turn, resumption.replayed, resumption.dropped) == (kept, kept, len(saved) - kept)
    assert resumption.why == (None if one.id == "repeated-1" else "turn 3: the loop asks with another prompt")
    for was, turn in zip(saved[:kept], one.turns, strict=False):
        assert was.turn.model_copy(update={"segment": was.conversation}) == turn
        segment, begins = one.segments[turn.segment], turn.prompt_length
        assert segment.token_ids[begins : begins + turn.response_length] == was.token_ids
        assert segment.logprobs[begins : begins + turn.response_length] == was.logprobs
        assert segment.weights_version[begins : begins + turn.response_length] == was.weights_versions
    asked_again = sampled(yard, f"planner-{one.id}") + sampled(yard, f"worker-{one.id}") - (TURNS + 2)
    assert asked_again >= resumption.dropped
    assert asked_again <= resumption.dropped + 2 or len(one.resumptions) > 1, "only what was under way"
    await check_files(client, one)
    told = [str(x.message) for x in (await client.rollout_history(one.id)).entries if x.event == "Resumed"]
    assert any(line.endswith(resumption.sentence) for line in told)


async def test_a_command_gets_its_answers_as_long_as_it_asks_the_same(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([commanded("command-1")])
    await until_saved(yard, id, 4)
    await kill_holder(yard, client, id)
    before = saved_turns(yard, id)
    assert [turn.text for turn in await client.saved_turns(id)][: len(before)] == [one.turn.text for one in before]
    (ended,) = await yard.gather(client, [id])
    assert (ended.status, ended.error, len(ended.turns)) == (Status.COMPLETED, None, TURNS)
    resumption = next(found for found in ended.resumptions if found.turn)
    assert (resumption.turn, resumption.dropped, resumption.why) == (len(before), 0, None)
    assert sampled(yard, id) <= TURNS + 2 or len(ended.resumptions) > 1, "only what was under way"
    (segment,) = ended.segments
    for saved, turn in zip(before, ended.turns, strict=False):
        (was,) = (saved.call or {})["turns"]
        answer = slice(turn.prompt_length, turn.prompt_length + turn.response_length)
        assert (segment.token_ids[answer], segment.logprobs[answer]) == (was["ids"], was["logprobs"])
        assert segment.weights_version[answer] == [version for version, n in was["versions"] for _ in range(n)]
    await check_files(client, ended)


def kept(name: str) -> RolloutRequest:
    if name in LOOPED:
        return looped(name)
    return commanded(name) if NAMES[name] is COMMAND else request(name, tool_timeout_seconds=1.0)


async def killed_at(yard: Yard, client: AsyncClient, name: str, first: signal.Signals | None, point: str) -> str:
    """Return the id of a rollout during which a process was killed at the point. On a busy machine a lease may end before that;
    then another rollout is tried."""
    armed = yard.folder / "crash" / point
    for number in range(5):
        id = f"{name}-{first.name.lower() if first else 'no'}-{point}-{number}"
        await client.submit([kept(name).model_copy(update={"id": id})])

        async def ended(id: str = id) -> bool:
            return point not in SERVER_POINTS and (await client.rollout(id))[0].status.terminal

        async def some_saved(id: str = id) -> bool:
            return len(await asyncio.to_thread(saved_turns, yard, id)) >= 3 or await ended(id)

        await yard.until(some_saved)
        if first is signal.SIGKILL:
            await kill_holder(yard, client, id)
        armed.touch()
        if first is signal.SIGTERM:
            await signal_holder(yard, client, id, first)

        async def over(ended: Any = ended) -> bool:
            return not armed.exists() or await ended()

        await yard.until(over)
        if not armed.exists():
            return id
        armed.unlink(missing_ok=True)
    raise AssertionError(f"no process got to {point}")


@pytest.mark.parametrize(("name", "first", "point"), POINTS)
async def test_a_kill_at_any_point_mixes_no_two_states(
    resuming: tuple[Yard, AsyncClient], name: str, first: signal.Signals | None, point: str
) -> None:
    """The files at the end of RUN are those that a plain model comes to by the recorded turns. So no call ran twice on a state
    that had its effect, and a command got no other answers than the recorded ones."""
    yard, client = resuming
    id = await killed_at(yard, client, name, first, point)
    if point in SERVER_POINTS:
        yard.stop()
        yard.start()
    (ended,) = await yard.gather(client, [id])
    assert (ended.status, ended.error, ended.attempt) == (Status.COMPLETED, None, 1)
    assert len(ended.turns) == (TURNS + 2 if name in LOOPED else len(NAMES[name]))
    assert ended.reward == (0.0 if NAMES.get(name) is COMMAND else 1.0)
    assert [entry.event for entry in (await client.rollout_history(id)).entries].count("Ended") == 1
    check_ids(yard, name, ended)
    await check_files(client, ended)
    assert rows(yard) == 0


async def test_a_drain_with_grace_repeats_no_turn(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("drained-1")])
    await until_saved(yard, id, 2)
    first = await holder(client, id)
    await yard.rollyard("drain", first, "--grace", "20s")  # of which the last 20 s are for what is under way
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.reason, resumption.dropped, resumption.why) == ("Drained", 0, None)
    assert sampled(yard, id) == TURNS
    await check_files(client, ended)
    out, _ = await yard.rollyard("rollouts", "describe", id)
    moved = f"as its allocation was drained: after turn {resumption.turn}, {resumption.turn} played again"
    assert moved in out
    assert f"as its allocation was drained; {resumption.turn} turns kept" in out
    allocations = {a.metadata.name: a for a in await yard.allocations(client)}
    assert first not in allocations or DRAINED_BY in allocations[first].metadata.annotations
    await yard.ready(client)


async def test_a_rollout_whose_sandbox_is_killed_goes_on_in_another(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("sandbox-1")])
    await until_saved(yard, id, 4)
    for pid in yard.sandboxes():
        kill(pid)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 1)
    (resumption,) = ended.resumptions
    assert (resumption.reason, resumption.dropped) == ("SandboxLost", 0)
    assert resumption.turn >= 4
    assert sampled(yard, id) <= TURNS + 1
    await check_files(client, ended)
    (fault,) = [one for one in (await client.rollout_history(id)).entries if one.event == "Fault"]
    assert "under way" in str(fault.message)


@pytest.mark.long  # the storm has such rollouts too
async def test_never_means_from_the_beginning(resuming: tuple[Yard, AsyncClient]) -> None:
    yard, client = resuming
    (id,) = await client.submit([request("never-1", resume="never")])

    async def some_sampled() -> bool:
        return sampled(yard, id) >= 4

    await yard.until(some_sampled)
    await kill_holder(yard, client, id)
    (ended,) = await yard.gather(client, [id])
    assert (ended.reward, ended.error, ended.attempt) == (1.0, None, 2)
    assert [(one.turn, one.why) for one in ended.resumptions] == [(0, NEVER)]
    assert sampled(yard, id) >= TURNS + 4
    await check_files(client, ended)


async def strike(yard: Yard, client: AsyncClient, chance: random.Random, most: int, turns: int) -> Counter[str]:
    """Kill node agents that run rollouts, or send them TERM as a preemption does, each time that so many turns were sampled."""
    struck, log = Counter[str](), (yard.folder / "turns").with_suffix(SAMPLED)
    while struck.total() < most:

        async def more_sampled() -> bool:
            return len(log.read_text().splitlines()) >= turns * (struck.total() + 1)

        await yard.until(more_sampled, 600.0)
        running = [one.id async for one in client.rollouts() if one.stage is Stage.RUN and not one.status.terminal]
        agents = yard.processes("node-agent", await holder(client, chance.choice(running))) if running else []
        number = chance.choice((signal.SIGKILL, signal.SIGTERM))
        for pid in agents:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        struck[number.name] += bool(agents)
    return struck


@pytest.mark.parametrize(
    ("count", "kills"),
    [(10, 3), pytest.param(50, 15, marks=pytest.mark.long), pytest.param(MOST, 60, marks=pytest.mark.long)],
)
async def test_a_storm_costs_a_few_turns_and_no_file(
    resuming: tuple[Yard, AsyncClient], count: int, kills: int
) -> None:
    """Half of the rollouts begin again at each loss, for comparison."""
    yard, client = resuming
    log = (yard.folder / "turns").with_suffix(SAMPLED)
    log.write_text("")
    asked = [
        request(f"storm-{way}-{n:03}.", resume=way).model_copy(update={"id": f"storm-{count}-{way}-{n:03}"})
        for n in range(count)
        for way in WAYS
    ]
    key = ObjectKey(kind="RolloutPool", namespace="default", name="demo")
    await client.patch(key, {"spec": {"replicas": 2 if count == 10 else 4}})
    turns = TURNS * len(asked) // (kills + 1)
    async with running(strike(yard, client, random.Random(count), kills, turns)) as storm:
        ended = await yard.gather(client, await client.submit(asked), 3000)
        struck = await storm
    again = {way: 0.0 for way in WAYS}
    for way in WAYS:
        own = [one for one in ended if f"-{way}-" in one.id]
        assert {one.status for one in own} <= {Status.COMPLETED, Status.INFRA_FAILED}
        done = [one for one in own if one.status is Status.COMPLETED]
        assert len(done) > 0.9 * len(own), [one.error for one in own]
        for one in done:
            assert (one.reward, len(one.turns)) == (1.0, TURNS)
            await check_files(client, one)
        again[way] = log.read_text().count(f"storm-{way}-") / (TURNS * len(own)) - 1
    resumed = [one for trajectory in ended for one in trajectory.resumptions if one.turn]
    print(
        f"\n{len(ended)} rollouts of {TURNS} turns, {dict(struck)}: sampled again {again['auto']:.1%} with resume: auto, "
        f"{again['never']:.1%} with never; {len(resumed)} resumptions, {sum(one.turn for one in resumed)} turns kept"
    )
    assert resumed
    assert {one.why for trajectory in ended if "-never-" in trajectory.id for one in trajectory.resumptions} <= {NEVER}
    # a lease may be lost before it tells of the one before
    lost = {view.id: view.lost async for view in client.rollouts()}
    for one in ended:
        if one.status is Status.COMPLETED and "-auto-" in one.id:
            name = one.id.replace(f"storm-{count}-", "storm-")
            most = TURNS + TURNS_OF_A_KILL * lost[one.id]
            assert TURNS <= sampled(yard, f"{name}.") <= most, (name, one.resumptions)
    assert again["auto"] < again["never"]
    assert rows(yard) == 0
