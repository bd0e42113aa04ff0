"""Wrong uses of the glossary's words are found, in names and in texts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts.check_names import stale_words, wrong_names, wrong_phrases
from scripts.glossary_words import wrong_phrase


@pytest.mark.parametrize(
    ("path", "code", "complaint"),
    [
        ("rollyard/server/rollouts/image_stager.py", "", "image_stager: stage is INIT, RUN or EVAL of a rollout"),
        ("rollyard/node/image_pulls.py", "class Pulls:\n    staged_images: int", "staged_images: stage is"),
        ("rollyard/wire/engine.py", "class UpdateStage: ...", "UpdateStage: stage is"),
        ("rollyard/engine/weights/update.py", "STAGES = ()", "STAGES: stage is"),
        ("rollyard/slurm/base.py", "class Driver:\n    async def snapshot(self): ...", "snapshot: snapshot is the files"),
        ("rollyard/client/queue.py", "class QueueSnapshot: ...", "QueueSnapshot: snapshot is"),
        ("rollyard/api/services.py", "class Services:\n    connected_agents: int = 0", "connected_agents: agent is"),
        ("rollyard/server/dispatch.py", "class Room:\n    agent: int", "agent: agent is"),
        ("rollyard/sandbox/start.py", "def agent_argv(): ...", "agent_argv: agent is"),
    ],
)  # fmt: skip
def test_a_name_that_gives_a_word_another_meaning_is_found(path: str, code: str, complaint: str) -> None:
    (found,) = wrong_names({Path(path): ast.parse(code)})
    assert found.startswith(f"{path}:")
    assert complaint in found


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("rollyard/node/lease_run.py", "class StageWorkers:\n    stage: int"),
        ("rollyard/image_builds/dockerfile.py", "class BuildStage: ..."),
        ("rollyard/sandbox/snapshot.py", "def take_snapshot(): ..."),
        ("rollyard/server/rollouts/service.py", "class ConnectedNodeAgents:\n    node_agents: int"),
        ("rollyard/server/routing/placement.py", "external_agents = 1"),
        ("rollyard/node/agent_loop.py", "def run_agent(): ..."),
    ],
)
def test_a_name_with_the_words_own_meaning_passes(path: str, code: str) -> None:
    assert not list(wrong_names({Path(path): ast.parse(code)}))


@pytest.mark.parametrize(
    "line",
    [
        "Images are staged before the rollouts come.",
        "a job that complete snapshots no longer show",
        "a snapshot of the queue",
        "The lost agents' rollouts go back.",
        "An agent's heartbeat renews its leases.",
    ],
)
def test_a_phrase_that_gives_a_word_another_meaning_is_found(line: str) -> None:
    assert len(list(wrong_phrase(line, "docs/page.md"))) == 1
    assert not list(
        wrong_phrase("The node agent's heartbeat, after a stage; a snapshot of the sandbox.", "docs/page.md")
    )


def test_each_word_has_a_row_in_the_glossary_and_all_texts_use_it_so() -> None:
    assert [*stale_words(), *wrong_phrases()] == []
