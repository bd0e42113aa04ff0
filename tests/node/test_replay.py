"""Saved turns in a new sandbox: what is kept is as it was sampled, and the calls of the conversation have run, no others."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, cast

import pytest

from rollyard.core.errors import ResumeFailed
from rollyard.kinds.rollout import AgentSpec, Sampling
from rollyard.node.agent_loop import AgentProgress, prompt_ids_of, run_agent
from rollyard.node.replay import Replay, play_again
from rollyard.node.turn_saver import packed, unpacked
from rollyard.tasks.base import Environment, Reply
from rollyard.tasks.own_tools import ToolResult
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.trajectory import SavedTurn, Turn
from tests.node.test_fork import CALLS, Told, begun

WRONG = '<tool_call>\n{"name": "bash", "arguments": \n</tool_call>'
TWO = f"{CALLS[0]}\n{CALLS[1]}"


class Shell:
    """Tools that keep what was called. `answers`: command -> result."""

    def __init__(self, **answers: str) -> None:
        self.called: list[str] = []
        self._answers = answers

    def lose_state(self, names: Set[str]) -> None:
        self.lost = set(names)

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        command = arguments["command"]
        self.called.append(command)
        return ToolResult(self._answers.get(command.replace(" ", "_"), f"result of {command}"))


async def work(
    template: ChatTemplate, texts: Sequence[str], *, environment: Environment | None = None, **answers: str
) -> tuple[AgentProgress, list[SavedTurn]]:
    """Run a conversation; return it with its saved turns."""
    run, bodies = begun(template), list[bytes]()
    tools, policy = Shell(**answers), Told(template, *texts)

    async def goes_on() -> None:
        bodies.append(packed(run))

    agent = AgentSpec(max_turns=len(texts))
    await run_agent(run, policy, cast(Any, tools), agent, Sampling(), 0, environment, goes_on=goes_on)
    return run, unpacked(bodies)


async def again(
    template: ChatTemplate, saved: Sequence[SavedTurn], shell: Shell, begun_with: int = 0, network: bool = False
) -> tuple[AgentProgress, Replay, list[int]]:
    run, ended = begun(template), list[int]()

    async def turn_ended(turn: int) -> None:
        ended.append(turn)

    return run, await play_again(run, saved, cast(Any, shell), begun_with, network, turn_ended), ended


@pytest.mark.parametrize("texts", [CALLS, [TWO, WRONG, CALLS[2]]], ids=["calls", "several and a wrong one"])
async def test_equal_results_keep_all_turns_verbatim(template: ChatTemplate, texts: list[str]) -> None:
    first, saved = await work(template, [*texts, "end"])
    assert len(saved) == len(texts), "the turn that ends the conversation is not saved"
    shell = Shell()
    run, replay, ended = await again(template, saved, shell)
    assert replay == Replay(len(texts), len(texts))
    assert run.turns == first.turns[:-1]
    assert run.unread == first.unread
    assert ended == [1, 2, 3]
    assert len(shell.called) == sum(len(turn.tool_calls) for turn in run.turns)
    await run_agent(run, Told(template, "end"), cast(Any, shell), AgentSpec(), Sampling(), 0)
    assert run.conversation.segments() == first.conversation.segments()


async def test_the_turn_of_a_call_that_differs_keeps_its_tokens_and_gets_the_new_results(
    template: ChatTemplate,
) -> None:
    first, saved = await work(template, [CALLS[0], TWO, CALLS[2], "end"])
    shell = Shell(echo_1="another result")
    run, replay, ended = await again(template, saved, shell)
    assert replay == Replay(2, 2, "turn 2: call 2 had another result", changed=True)
    assert (ended, shell.called) == ([1], ["echo 0", "echo 0", "echo 1"])
    assert run.turns[0] == first.turns[0]
    assert run.turns[1].tool_results == ["result of echo 0", "another result"]
    policy = Told(template, "end")
    await run_agent(run, policy, cast(Any, shell), AgentSpec(), Sampling(), 0)
    assert "another result" in template.decode(policy.prompts[0])
    (was,), (now,) = first.conversation.segments(), run.conversation.segments()
    kept = run.turns[1].prompt_length + run.turns[1].response_length
    assert (now.token_ids[:kept], now.logprobs[:kept]) == (was.token_ids[:kept], was.logprobs[:kept])
    assert len(run.turns) == 3


class Game:
    """Replies to each turn, also to one with calls."""

    opening = ()
    every_turn = True

    async def reply(self, turn: Turn) -> Reply:
        return Reply(f"you said {len(turn.text)}", 0.5, role="tool" if turn.tool_calls else "user")

    async def close(self) -> None:
        pass


async def test_replies_of_an_environment_are_kept_as_they_were(template: ChatTemplate) -> None:
    texts = ["left", CALLS[0], "right", "end"]
    first, saved = await work(template, texts, environment=Game())
    assert [one.reply_role for one in saved] == ["user", "tool", "user", "user"]
    shell = Shell()
    run, replay, _ = await again(template, saved, shell)
    assert (replay, shell.called) == (Replay(4, 4), ["echo 0"])
    assert run.turns == first.turns
    assert await prompt_ids_of(run.conversation, None) == await prompt_ids_of(first.conversation, None)
    with pytest.raises(ResumeFailed, match="turn 2: call 1 had another result, and the environment has replied"):
        await again(template, saved, Shell(echo_0="another"))


async def test_what_differs_by_a_rule_alone_keeps_the_recorded_text(template: ChatTemplate) -> None:
    first, saved = await work(template, [CALLS[0], CALLS[1], "end"], echo_0="took 0.1s")
    run, replay, _ = await again(template, saved, Shell(echo_0="took 9.9s"))
    assert replay == Replay(2, 2)
    assert run.turns == first.turns[:-1]


async def test_a_call_that_was_cut_is_not_run_again(template: ChatTemplate) -> None:
    cut = "[timed out after 30 s and was stopped]"
    _, saved = await work(template, [*CALLS, "end"], echo_1=cut)
    shell = Shell()
    run, replay, _ = await again(template, saved, shell)
    assert replay == Replay(1, 1, "turn 2: one of its calls was cut off")
    assert (len(run.turns), shell.called) == (1, ["echo 0"])


async def test_calls_with_the_network_are_kept_only_in_a_snapshot(template: ChatTemplate) -> None:
    _, saved = await work(template, [*CALLS, "end"])
    shell = Shell()
    _, replay, _ = await again(template, saved, shell, network=True)
    assert replay == Replay(0, 0, "turn 1: its calls had the network")
    run, replay, ended = await again(template, saved, shell, begun_with=2, network=True)
    assert replay == Replay(2, 0, "turn 3: the state of bash is not in the snapshot")
    assert (len(run.turns), ended, shell.called, shell.lost) == (2, [], [], {"bash"})


async def test_another_template_keeps_the_turns_before_it(template: ChatTemplate) -> None:
    _, saved = await work(template, [*CALLS, "end"])
    odd = [saved[0], saved[1].model_copy(update={"prompt_digest": "0"}), saved[2]]
    shell = Shell()
    _, replay, _ = await again(template, odd, shell)
    assert replay == Replay(1, 1, "turn 2: its prompt would have other tokens now")
    assert shell.called == ["echo 0"]
