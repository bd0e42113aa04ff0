"""A task of a taskset of verifiers 0.4 as an environment. It runs with the Python that has verifiers, beside `driver`.

verifiers brings its own loop and calls a model server. Here the loop runs in a thread, its model server is this process,
and each call waits for the next action. Its harness is the one below, because those of verifiers install packages.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import sys
import threading
from types import ModuleType
from typing import Any

import httpx
import verifiers.v1 as vf
from aiohttp import web
from verifiers.v1.clients import ModelContext
from verifiers.v1.configs.agent import agent_config_fields
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.runtimes import ProgramResult
from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config

HARNESS, KEY = "rollyard_turns", "ROLLYARD_TURNS_KEY"
Message = dict[str, Any]


class TurnsHarness(vf.Harness[vf.HarnessConfig]):  # type: ignore[misc]
    """One call of the model for each turn, without tools."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
    ) -> ProgramResult:
        if mcp_urls:
            raise ValueError("the task has tools; let its harness call a session (docs/verifiers.md)")
        system, prompt = self.resolve_prompt(data)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else map(message_to_wire, prompt or [])
        messages = [*([{"role": "system", "content": system}] if system else []), *said]
        async with httpx.AsyncClient(timeout=None, trust_env=False) as http:
            answer = await http.post(
                f"{endpoint}/chat/completions",
                headers={"Authorization": f"Bearer {secret}"},
                json={"model": ctx.model, "messages": messages},
            )
        # A refused turn is the end by one of the task's own rules
        failed = answer.status_code != 200 and trace.stop_condition is None
        return ProgramResult(int(failed), "", answer.text if failed else "")


class VerifiersEpisode:
    def __init__(self, env: str, index: int, **config: Any) -> None:
        """`env`: id of the taskset. `index`: place of the task in it. `config`: fields of the environment's config."""
        sys.modules[HARNESS] = module = ModuleType(HARNESS)
        module.__dict__.update(TurnsHarness=TurnsHarness, __all__=["TurnsHarness"])
        os.environ[KEY] = "none"
        config = {**config, "taskset": {**config.get("taskset", {}), "id": env}}
        roles = list(agent_config_fields(env_config_type(env, config.get("id", ""))()))
        if len(roles) != 1:
            raise ValueError(f"the environment has the agents {', '.join(roles)}; one agent can play")
        agent = {"runtime": {"type": "subprocess"}, **config.get(roles[0], {}), "harness": {"id": HARNESS}}
        self._env = load_environment(resolve_env_config({**config, roles[0]: agent}))
        found = next((task for task in self._env.taskset.include(idx=[str(index)])), None)
        if found is None:
            raise ValueError(f"the taskset {env} has no task {index}")
        self._task = found
        self._shown: list[Message] = []
        self._asked: queue.Queue[list[Message] | BaseException | vf.Episode] = queue.Queue()
        self._answers: asyncio.Queue[str]

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the episode. Its chances are the task's own, so a seed has no effect."""
        threading.Thread(target=self._play, daemon=True).start()
        first = self._next()
        if not isinstance(first, list):
            raise ValueError("the episode ended before the model was asked")
        self.opening_messages = self._shown = first
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._loop.call_soon_threadsafe(self._answers.put_nowait, action)
        found = self._next()
        if not isinstance(found, list):
            (trace,) = found.traces
            return "", float(trace.reward), True, False, {}
        before = [*self._shown, {"role": "assistant", "content": action}]
        news = found[len(before) :]
        if found[: len(before)] != before or [one["role"] for one in news] != ["user"]:
            raise ValueError(
                "the episode does not continue its conversation; let it call a session (docs/verifiers.md)"
            )
        self._shown = found
        return news[0]["content"], 0.0, False, False, {}

    def _next(self) -> list[Message] | vf.Episode:
        found = self._asked.get()
        if isinstance(found, BaseException):
            raise found
        if isinstance(found, list):
            return [_plain(one) for one in found]
        errors = [*found.errors, *(error for trace in found.traces for error in trace.errors)]
        if not found.ok or errors:
            raise RuntimeError("; ".join(f"{error.type}: {error.message}" for error in errors) or "the episode failed")
        return found

    def _play(self) -> None:
        try:
            self._asked.put(asyncio.run(self._episode()))
        except BaseException as error:  # noqa: BLE001 - the other thread raises it
            self._asked.put(error)

    async def _episode(self) -> vf.Episode:
        self._loop, self._answers = asyncio.get_running_loop(), asyncio.Queue()
        app = web.Application(client_max_size=64 << 20)
        app.router.add_post("/v1/chat/completions", self._answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            ctx = ModelContext("policy", vf.EvalClientConfig(base_url=url, api_key_var=KEY))
            async with self._env.serving():
                return await self._env.run_episode(self._task, ctx)
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        self._asked.put((await request.json())["messages"])
        message = {"role": "assistant", "content": await self._answers.get()}
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "turn", "object": "chat.completion", "created": 0, "model": "policy"}
        return web.json_response({**body, "choices": [choice], "usage": usage})


def _plain(message: Message) -> Message:
    """Return a message with its text alone. Raises ValueError for one that has more."""
    content = message.get("content") or ""
    if isinstance(content, list) and all(part.get("type") == "text" for part in content):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or message.get("tool_calls"):
        raise ValueError(f"a message of the task has more than text: {json.dumps(message)[:200]}")
    return {"role": message["role"], "content": content}


make = VerifiersEpisode
