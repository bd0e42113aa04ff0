"""Tasks and sessions with tools, at the API of a pool whose model's calls are not read."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import pytest

from rollyard.kinds.base import ConditionUpdate, ObjectKey, evolve, set_conditions
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.installed_task_fields import offers_tools
from rollyard.kinds.task import Task
from rollyard.reconcilers.conditions import tool_calls
from rollyard.wire.tool_proof import ToolProof
from tests.api.test_batches import tasks
from tests.api.test_rollouts_waiting import pool, submit
from tests.support import make
from tests.support.chat_templates import CHATML
from tests.support.outside_api import POOL, QUESTION, Api, Serve, client

LOST = ToolProof(status="False", reason="NoParser", message="nobody reads them; name a parser")
TOOL: Any = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object", "properties": {}}}}


async def proven(api: Api, update: ConditionUpdate) -> InferencePool:
    """Set the condition as the reconciler does."""
    found = await api.store.objects.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
    assert isinstance(found, InferencePool)
    now = datetime(2026, 1, 1, tzinfo=UTC)
    conditions = set_conditions([], [update], generation=found.metadata.generation, now=now)
    return await api.store.objects.update(evolve(found, status=evolve(found.status, conditions=conditions)), "status")


async def test_a_task_with_tools_is_refused_only_if_its_calls_would_be_lost(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        assert (await submit(api, "before"))[0] == 202
        await proven(api, tool_calls([]))
        assert (await submit(api, "unknown"))[0] == 202
        await proven(api, tool_calls([LOST]))
        status, refused = await submit(api, "lost")
        (cause,) = refused["details"]["causes"]
        assert (status, cause["field"], cause["reason"]) == (422, "rollouts[0].task", "ToolCallsUnreadable")
        assert refused["message"].startswith(
            "tool calls of InferencePool 'policy' would not be read: nobody reads them; name a parser"
        )
        assert (await submit(api, "own", agent={"tool_parser": "hermes"}))[0] == 202
        assert (await submit(api, "command", agent={"type": "command", "command": "true"}))[0] == 202
        assert (await submit(api, "handlers", kind="quiz"))[0] == 202  # its handler knows


@pytest.mark.parametrize(
    ("kind", "fields", "has"),
    [
        ("math", {}, True),
        ("code", {}, True),
        ("env", {"tools": ["bash"]}, True),
        ("env", {}, False),
        ("quiz", {}, False),
    ],
)
def test_which_tasks_have_tools_is_known_of_the_built_in_kinds(kind: str, fields: dict[str, Any], has: bool) -> None:
    assert offers_tools(Task(kind=kind, **fields)) is has


async def test_a_parser_that_was_named_since_ends_the_refusal(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await proven(api, tool_calls([LOST]))
        assert (await submit(api, "lost"))[0] == 422
        path = f"{api.url}/apis/rollyard.dev/v1alpha1/namespaces/default/inferencepools/policy"
        headers = {"Content-Type": "application/merge-patch+json"}
        change = {"spec": {"model": {"toolParser": "hermes"}}}
        async with api.http.patch(path, json=change, headers=headers) as answer:
            assert answer.status == 200, await answer.text()
        assert (await submit(api, "read"))[0] == 202


async def test_a_batch_with_tools_is_refused_too(serving: Serve) -> None:
    async with serving() as api:
        await pool(api)
        await proven(api, tool_calls([LOST]))
        status, refused = await api.ask(
            "POST", "/v1/batches", {"id": "b", "pool": "swe", "n": 2, "target": 1, "tasks": tasks(2)}
        )
        assert (status, refused["details"]["causes"][0]["field"]) == (422, "tasks")


@pytest.fixture
def without_tools(model_dir: Path, tmp_path: Path) -> Path:
    """A model whose template writes no tools."""
    folder = Path(shutil.copytree(model_dir, tmp_path / "plain", ignore=shutil.ignore_patterns("*.safetensors")))
    (folder / "chat_template.jinja").write_text(CHATML)
    return folder


async def test_a_session_answers_calls_without_tools_and_tells_the_server_what_it_found(
    serving: Serve, saying: Any, without_tools: Path
) -> None:
    async with serving(model={"path": str(without_tools)}) as api, saying("Twelve.").serving() as upstream:
        api.model = without_tools
        api.serve("e", upstream.url)
        found = await api.store.objects.get(ObjectKey(kind="InferencePool", namespace="default", name="policy"))
        assert isinstance(found, InferencePool)
        api.endpoints.follow_spec(POOL, found.spec)
        assert api.endpoints.proofs(POOL) == []
        opened = await api.open()
        async with client(opened) as ai:
            answer = await ai.chat.completions.create(model="m", messages=QUESTION)
            assert answer.choices[0].message.content == "Twelve."
            with pytest.raises(openai.UnprocessableEntityError) as refused:
                await ai.chat.completions.create(model="m", messages=QUESTION, tools=[TOOL])
        assert (refused.value.code, refused.value.param) == ("tool_calls_unreadable", "tools")
        (proof,) = api.endpoints.proofs(POOL)
        assert (proof.status, proof.reason) == ("False", "NoTools")


async def test_a_session_keeps_the_parser_that_its_pool_named_after_a_restart(serving: Serve, saying: Any) -> None:
    async with saying("Twelve.").serving() as upstream:
        async with serving() as api:
            endpoint = make.endpoint("e", upstream.url, tokenizer=str(api.model), tool_parser="mistral")
            api.endpoints.add_external(POOL, endpoint, 1.0)
            api.endpoints.probed("e", None)
            opened = await api.open(id="mine")
            async with client(opened) as ai:
                await ai.chat.completions.create(model="m", messages=QUESTION)
            assert (await api.ask("POST", "/v1/sessions", {"pool": "policy", "id": "mine"}))[0] == 200
            assert api.gateway_session("mine").config.tool_parser == "mistral"
        async with serving() as api:
            api.serve("e", upstream.url)
            assert (await api.record("mine")).session.calls == 1
            assert api.gateway_session("mine").config.tool_parser == "mistral"
