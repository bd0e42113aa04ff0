"""Whole rollouts of a real instance: an agent changes the repository by the built-in tools, or as a command, and is scored."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.tasks.rows.dataset_row import Converted
from rollyard.tasks.swe.rows.conversion import convert
from rollyard.tasks.swe.rows.released_packages import NoPackages
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trajectory import Trajectory
from tests.support import mini_swe_agent
from tests.support.scripted_agent import MODEL_NAME, call, edits, scripted_model
from tests.support.swe_instances.families import FAMILIES
from tests.support.swe_instances.instance import Instance, instance
from tests.support.swe_instances.pairs import SHORT
from tests.support.swe_instances.works import wrong
from tests.support.yard import MODEL, Yard, end

pytestmark = pytest.mark.slow(30)

DONE = "The change is made."
SUBMIT = call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
MINI = {"type": "command", "command": mini_swe_agent.COMMAND, "env": {"PYTHONPATH": f"/{mini_swe_agent.PACKAGES}"}}


def turns_by_tools(one: Instance) -> dict[str, list[str]]:
    """Return the turns of agents that have bash and the editor."""
    place = FAMILIES[one.pair.family].place
    look = [call("bash", command="git log --oneline; ls"), call("editor", command="view", path=place)]
    return {
        "right by tools": [*look, *edits(one, place), call("bash", command="git diff --stat"), DONE],
        "wrong by tools": [*look, call("bash", command=wrong(one)), DONE],
    }


def turns_by_command(one: Instance) -> dict[str, list[str]]:
    """Return the turns of agents that are mini-swe-agent."""
    look = call("bash", command="git log --oneline; ls")
    return {
        "right by command": [look, call("bash", command=one.made.apply_patch), SUBMIT],
        "wrong by command": [look, call("bash", command=wrong(one)), SUBMIT],
    }


async def rolled_out(
    folder: Path, task: dict[str, Any], runtime: str, turns: Mapping[str, Sequence[str]]
) -> dict[str, Trajectory]:
    """Return the rollouts of one task whose agents have these turns."""
    template, yard = ChatTemplate.load(MODEL), Yard(folder)
    agents = {name: MINI if "command" in name else {} for name in turns}
    requests = [
        {"id": name.replace(" ", "-"), "pool": "demo", "task": {**task, "statement": f"{task['statement']} ({name})"},
         "agent": {"max_turns": 40, **agent}, "sampling": {"max_tokens": 32_768}}
        for name, agent in agents.items()
    ]  # fmt: skip
    async with scripted_model(template, turns) as model:
        try:
            yard.start()
            async with yard.client() as client:
                external = {"external": {"endpoints": [{"url": f"{model.url}/v1", "capacity": len(turns)}]}}
                for kind, name, spec in (
                    ("InferencePool", "policy", {"model": {"path": str(MODEL), "servedName": MODEL_NAME}, "engine": external}),
                    ("RolloutPool", "demo", {"replicas": 1, "inference": {"policy": "policy"}, "sandbox": {
                        "runtime": runtime, "memory": "2G", "disk": "512M", "warm": {"max": 0}}}),
                ):  # fmt: skip
                    metadata = {"name": name, "namespace": "default"}
                    await client.apply(
                        parse_object(
                            {"apiVersion": "rollyard.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}
                        )
                    )
                await yard.ready(client)
                ids = await client.submit([RolloutRequest.model_validate(one) for one in requests])
                return dict(zip(turns, await yard.gather(client, ids), strict=True))
        finally:
            await end(yard)


async def made() -> tuple[Instance, dict[str, Any]]:
    one = await asyncio.to_thread(instance, SHORT)
    converted = convert(one.row, NoPackages())
    assert isinstance(converted, Converted), converted
    return one, dict(converted.task)


def check(rollouts: Mapping[str, Trajectory], turns: Mapping[str, Sequence[str]]) -> None:
    for name, rollout in rollouts.items():
        assert rollout.status is Status.COMPLETED, (name, rollout.error, rollout.harness_output)
        assert rollout.reward == float(name.startswith("right")), (name, rollout.notes, rollout.turns)
        assert len(rollout.turns) == len(turns[name])
        assert rollout.breaks == {}
        assert not any(result.startswith("Error: ") for turn in rollout.turns for result in turn.tool_results), (
            rollout.turns
        )


@pytest.mark.parametrize("runtime", ["bubblewrap", pytest.param("apptainer", marks=pytest.mark.long)])
async def test_a_change_by_the_tools_is_scored_as_its_tests_say(tmp_path: Path, runtime: str) -> None:
    one, task = await made()
    turns = turns_by_tools(one)
    check(await rolled_out(tmp_path, task, runtime, turns), turns)


@pytest.mark.long
@pytest.mark.parametrize("runtime", ["bubblewrap", "apptainer"])
async def test_a_change_by_mini_swe_agent_is_scored_as_its_tests_say(tmp_path: Path, runtime: str) -> None:
    one, task = await made()
    try:
        task["image"] = str(await asyncio.to_thread(mini_swe_agent.image_over, one.root))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"pip cannot get mini-swe-agent here: {error}")
    turns = turns_by_command(one)
    check(await rolled_out(tmp_path, task, runtime, turns), turns)
