"""ATIF documents: the steps have the tokens of the turns, and Harbor's own models accept them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from rollyard.kinds.rollout import RolloutError, Stage, Status
from rollyard.trajectory import Segment, Trajectory, Turn
from rollyard.trajectory.atif import atif
from tests.support.released import environment
from tests.wire.samples import OUTCOME


def made(**fields: Any) -> Trajectory:
    given = {"id": "r", "group": "g", "sample_index": 1, "attempt": 1, "task": {"kind": "math", "problem": "1 + 1?"}}
    return Trajectory(**{**OUTCOME.model_dump(), **given, **fields})


SEGMENT = Segment(
    token_ids=[1, 2, 3, 4, 5, 6], loss_mask=[0, 1, 1, 0, 1, 1], logprobs=[None, -0.1, -0.2, None, -0.3, -0.4],
    weights_version=[None, "v1", "v1", None, "v1", "v2"], prompt_length=1,
)  # fmt: skip
UNSAMPLED = Segment(
    token_ids=[1, 2, 3], loss_mask=[0] * 3, logprobs=[None] * 3, weights_version=[None] * 3, prompt_length=1
)
TURNS = [
    Turn(
        segment=0, prompt_length=1, response_length=2, text="calls", finish_reason="stop", timings={"model": 0.5},
        tool_calls=[{"name": "python", "arguments": {"code": "1 + 1"}}, {"name": "bash", "arguments": "ls"}],
        tool_results=["2", "no such tool", "more"], observation="wrong", reward=-1.0,
    ),
    Turn(segment=0, prompt_length=4, response_length=2, text="2", finish_reason="stop"),
]  # fmt: skip
CASES = {
    "turns": made(segments=[SEGMENT], turns=TURNS),
    "none": made(status=Status.CANCELLED, reward=None, segments=[], turns=[]),
    "failed": made(
        status=Status.INFRA_FAILED, reward=None, segments=[SEGMENT], turns=TURNS,
        error=RolloutError(stage=Stage.RUN, reason="SandboxLost", message="m"),
    ),
    "check": made(segments=[], turns=[Turn(segment=0, prompt_length=0, response_length=0, text="$ x", finish_reason="stop")]),
    "copied": made(
        segments=[UNSAMPLED],
        turns=[Turn(segment=0, prompt_length=1, response_length=2, text="earlier", finish_reason="stop")],
    ),
    "sample": made(),
}  # fmt: skip


def test_steps_have_the_tokens_of_their_turns() -> None:
    document = atif(CASES["turns"], "1.0")
    user, first, second = document["steps"]
    assert user == {"step_id": 1, "source": "user", "message": "1 + 1?"}
    assert first["metrics"] == {
        "prompt_tokens": 1, "completion_tokens": 2, "prompt_token_ids": [1], "completion_token_ids": [2, 3],
        "logprobs": [-0.1, -0.2], "extra": {"weights_versions": ["v1"]},
    }  # fmt: skip
    assert second["metrics"]["prompt_token_ids"] == [1, 2, 3, 4]
    assert second["metrics"]["extra"] == {"weights_versions": ["v1", "v2"]}
    calls = first["tool_calls"]
    assert [(c["function_name"], c["arguments"]) for c in calls] == [("python", {"code": "1 + 1"}), ("bash", {})]
    assert calls[1]["extra"] == {"arguments": "ls"}
    sources = [result.get("source_call_id") for result in first["observation"]["results"]]
    assert sources == [calls[0]["tool_call_id"], calls[1]["tool_call_id"], None, None]
    assert document["final_metrics"] == {"total_prompt_tokens": 5, "total_completion_tokens": 4, "total_steps": 3}
    assert (document["extra"]["reward"], document["extra"]["group"]) == (OUTCOME.reward, "g")


def test_what_the_policy_did_not_sample_is_copied_context_and_a_check_is_no_call() -> None:
    assert atif(CASES["copied"], "1.0")["steps"][1]["is_copied_context"] is True
    assert atif(CASES["check"], "1.0")["steps"][1]["llm_call_count"] == 0
    assert len(atif(CASES["none"], "1.0")["steps"]) == 1


@pytest.mark.long
def test_harbors_own_models_accept_every_document() -> None:
    python = environment("harbor", "0.25.0", "python3.13") / "bin" / "python"
    program = (
        "import json, sys; from harbor.models.trajectories.trajectory import Trajectory as T; "
        "print(json.dumps([T.model_validate(d).to_json_dict() for d in json.load(sys.stdin)]))"
    )
    documents = [atif(case, "1.0") for case in CASES.values()]
    done = subprocess.run(
        [python, "-W", "ignore", "-c", program],
        input=json.dumps(documents),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == documents, "nothing is renamed or dropped"
