"""Results of a session that is read while its callers come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from rollyard.gateway.requests.call_errors import GatewayError
from rollyard.gateway.requests.chat_request import ChatRequest
from rollyard.gateway.requests.sampling_overrides import SamplingOverrides
from rollyard.gateway.session.serial_executor import SerialExecutor
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.trajectory import Segment
from rollyard.wire.tool_proof import ToolProof


class Says:
    """A policy that says one text."""

    context: int | None = None

    def __init__(self, template: ChatTemplate, text: str) -> None:
        self._ids = [*template.encode(text), template.stop_ids[0]]

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        return Sampled(self._ids, [-0.5] * len(self._ids), ["v1"] * len(self._ids), "stop")


class Gate:
    """Stands in a method, in the thread that calls it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self.begun, self.go = threading.Event(), threading.Event()
        real = getattr(owner, name)

        def stand(*args: Any) -> Any:
            self.begun.set()
            assert self.go.wait(60)
            return real(*args)

        monkeypatch.setattr(owner, name, stand)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self.begun.wait, 60)


def asked(*said: str) -> ChatRequest:
    roles = ("user", "assistant")
    return ChatRequest(
        [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)], [], SamplingOverrides()
    )


def made(template: ChatTemplate, **config: int) -> GatewaySession:
    """Everything in threads, as if it were long."""
    return GatewaySession(
        "s", template, Says(template, "Twelve."), SessionConfig("m", Sampling(), **config), SerialExecutor(None, 0)
    )


async def read(session: GatewaySession) -> tuple[list[Segment], int, dict[str, int]]:
    return await session.run_serialized(lambda: (session.segments(), len(session.turns()), session.breaks()))


async def test_tools_whose_calls_would_not_be_read_are_refused_before_the_model_is_asked(
    template: ChatTemplate,
) -> None:
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}
    proof = ToolProof(status="False", reason="NoParser", message="nobody reads them")
    session = GatewaySession("s", template, Says(template, "Twelve."), SessionConfig("m", Sampling(), tools=proof))
    with pytest.raises(GatewayError, match="the calls of these tools would not be read: nobody reads them") as refused:
        await session.chat(ChatRequest([{"role": "user", "content": "?"}], [tool], SamplingOverrides()))
    assert (refused.value.status, session.tools_refused, session.calls) == (422, True, 0)
    await session.chat(asked("3 * 4?"))


async def test_what_a_caller_leaves_in_a_thread_is_over_before_anything_is_read(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = made(template)
    await session.chat(asked("3 * 4?"))
    before = await read(session)
    gate = Gate(monkeypatch, template, "encode")
    call = asyncio.create_task(session.chat(asked("3 * 4?", "Twelve.", "Sure?")))
    await gate.reached()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    looking = asyncio.create_task(read(session))
    await asyncio.sleep(0)
    gate.go.set()
    assert await looking == before
    await session.chat(asked("3 * 4?", "Twelve.", "Sure?"))
    segments, turns, breaks = await read(session)
    assert (len(segments), turns, breaks) == (1, 2, {}), "what was given up is forgotten"


async def test_a_turn_that_a_thread_records_for_nobody_counts(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = made(template, max_calls=1)
    gate = Gate(monkeypatch, session._recorded.chats, "record")
    call = asyncio.create_task(session.chat(asked("3 * 4?")))
    await gate.reached()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    again = asyncio.create_task(session.chat(asked("4 * 5?")))
    await asyncio.sleep(0)
    gate.go.set()
    with pytest.raises(GatewayError, match="has made its 1 model calls"):
        await again
    segments, turns, _ = await read(session)
    assert (len(segments), turns) == (1, 1)


async def test_a_session_that_closes_while_a_thread_records_says_the_same_from_then_on(
    template: ChatTemplate, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = made(template)
    gate = Gate(monkeypatch, session._recorded.chats, "record")
    call = asyncio.create_task(session.chat(asked("3 * 4?")))
    await gate.reached()
    session.close()
    looking = asyncio.create_task(read(session))
    behind = asyncio.create_task(session.chat(asked("4 * 5?")))
    await asyncio.sleep(0)
    gate.go.set()
    assert [one.content for one in await call] == ["Twelve."]
    segments, turns, breaks = await looking
    assert (len(segments), turns) == (1, 1)
    with pytest.raises(GatewayError, match="closed"):
        await behind
    assert await read(session) == (segments, turns, breaks)
