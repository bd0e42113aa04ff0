"""The profile of a rollout: each token counts once, and each call by its tool."""

from __future__ import annotations

from rollyard.kinds.rollout_profile import MAX_TOOLS, OTHER, UNREADABLE, ToolUse, TurnBand
from rollyard.node.rollout_profile import profile_of
from rollyard.trajectory import Turn


def turn(prompt: int, sampled: int, text: str = "done", segment: int = 0, **more: object) -> Turn:
    return Turn.model_validate(
        {
            "segment": segment,
            "prompt_length": prompt,
            "response_length": sampled,
            "text": text,
            "finish_reason": "stop",
            **more,
        }
    )


def test_every_token_counts_once() -> None:
    call = {"name": "bash", "arguments": {"command": "ls"}}
    text = '<think>list</think>Now.<tool_call>{"name": "bash"}</tool_call>'
    turns = [
        turn(
            100,
            50,
            text,
            tool_calls=[call],
            tool_results=["a\nb"],
            failed_calls=[],
            timings={"model": 2.0, "tools": 0.5},
        ),
        turn(160, 30, "<think>on", timings={"model": 1.0}, observation="go"),
        turn(200, 10, "42", timings={"model": 0.25, "environment": 0.5}),
    ]
    found = profile_of(turns)
    assert (found.model, found.tools, found.environment) == (3.25, 0.5, 0.5)
    assert sum(found.tokens.model_dump().values()) == 210, "the tokens of the last prompt and turn"
    assert [found.tokens.prompt, found.tokens.outputs, found.tokens.environment] == [100, 10, 10]
    thoughts, whole = len("<think>list</think>"), len(text)
    assert found.tokens.thoughts == round(50 * thoughts / whole) + 30
    assert found.tokens.answers == round(50 * (thoughts + 4) / whole) - round(50 * thoughts / whole) + 10
    assert found.by_tool == [ToolUse(tool="bash", calls=1, judged=1, tokens=10)]
    assert found.bands[0] == TurnBand(turns=1, read=100, sampled=50, context=100)
    assert found.bands[1] == TurnBand(turns=2, read=20, sampled=40, context=360)


def test_failed_calls_by_tool() -> None:
    calls = [{"name": "bash", "arguments": {}}, {"name": "edit", "arguments": {}}]
    turns = [
        turn(10, 5, tool_calls=calls, tool_results=["x" * 30, "y" * 10, "Error: invalid"], failed_calls=[0, 2]),
        turn(69, 5, tool_calls=calls[:1], tool_results=["z"]),
    ]
    found = profile_of(turns)
    assert {use.tool: use for use in found.by_tool} == {
        "bash": ToolUse(tool="bash", calls=2, judged=1, failed=1, tokens=30),  # the result of the second is unknown
        "edit": ToolUse(tool="edit", calls=1, judged=1, tokens=10),
        UNREADABLE: ToolUse(tool=UNREADABLE, calls=1, judged=1, failed=1, tokens=14),
    }


def test_a_break_reads_earlier_tokens_again() -> None:
    found = profile_of([turn(100, 20), turn(130, 10, segment=1), turn(150, 5, segment=0)])
    assert found.tokens.prompt == 100
    assert found.tokens.repeated == 120
    assert found.tokens.environment == 10 + 30


def test_many_tools_are_added_up() -> None:
    calls = [{"name": f"tool{n}", "arguments": {}} for n in range(40)]
    found = profile_of([turn(10, 5, tool_calls=calls, tool_results=["r"] * 40, failed_calls=[])])
    assert len(found.by_tool) == MAX_TOOLS + 1
    assert found.by_tool[-1].tool == OTHER
    assert found.by_tool[-1].calls == 20


def test_no_turns() -> None:
    assert profile_of([]).model_dump(exclude_defaults=True) == {}
