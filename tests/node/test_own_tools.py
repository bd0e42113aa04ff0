"""Tools of a handler's own in a real sandbox: a function, a program, an MCP server."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from rollyard.core.errors import HandlerFailed, RollyardError, TaskError
from rollyard.kinds.rollout import AgentSpec, Sampling, Status
from rollyard.kinds.task import Task
from rollyard.node.agent_loop import AgentProgress, run_agent
from rollyard.node.own_tools import OwnTool, start_tools
from rollyard.node.tool_execution import Tools
from rollyard.sandbox.sandbox import Sandbox
from rollyard.tasks import McpServer, ProgramTool, Score, Tool, ToolResult
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.own_tools import OfferedTool
from rollyard.tasks.tool_schemas import SCHEMAS
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.conversation import Conversation
from rollyard.tokens.tool_calls import parser_for
from tests.node.test_environment_turns import Told
from tests.support import mcp_server

TASK = Task.model_validate({"kind": "shop"})
COUNT = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}, "required": ["n"]}
SERVER = McpServer(["python3", "/workspace/server.py"])


class Look(BaseModel):
    path: str
    lines: int = 3


async def look(sandbox: Sandbox, arguments: dict[str, Any]) -> str:
    match arguments["path"]:
        case "/raise":
            raise LookupError("no such shelf")
        case "/hang":
            await asyncio.Event().wait()
        case "/number":
            return 7  # type: ignore[return-value]
    return (await sandbox.bash(f"head -n {arguments.get('lines', 3)} {arguments['path']}", 20)).output


async def buy(sandbox: Sandbox, arguments: dict[str, Any]) -> ToolResult:
    return ToolResult("bought", done=True)


class Shop:
    eval_needs_sandbox = False

    def __init__(self, tools: Sequence[Any]) -> None:
        self._tools = tools

    def tools(self, task: Task) -> Any:
        return self._tools

    def prompt(self, task: Task) -> list[dict[str, Any]]:
        return [{"role": "user", "content": "Buy tea."}]

    async def init(self, task: Task, sandbox: Sandbox) -> None: ...

    async def collect(self, task: Task, sandbox: Sandbox) -> dict[str, str | bytes]:
        return {}

    async def evaluate(self, task: Task, evaluation: Any) -> Score:
        return Score(1.0)


LOOK = Tool("look", "Look at a file.", Look, look)
BUY = Tool("buy", "Buy it.", {"type": "object", "properties": {}, "additionalProperties": False}, buy)
TWICE = ProgramTool(
    "twice", "Double a number.", COUNT, ["python3", "-c", "import json, sys; print(2 * json.load(sys.stdin)['n'])"]
)
PROGRAMS = {
    "broken": "import sys; sys.exit('it is broken')",
    "slow": "import time; print('begun', flush=True); time.sleep(100)",
    "flood": "while True: print('y' * 1000)",
    "child": "import subprocess; subprocess.Popen(['sleep', '77']); print('left one behind')",
}


@contextlib.asynccontextmanager
async def offered(sandbox: Sandbox, *tools: OfferedTool) -> Any:
    handler = GuardedHandler("shop", Shop(tools))
    async with contextlib.AsyncExitStack() as stack:
        started = await start_tools(handler, handler.tools(TASK), sandbox, stack)
        yield Tools(started, sandbox, 60.0), started


async def test_a_task_without_tools_says_so_to_a_model_that_calls_one(sandbox: Sandbox) -> None:
    async with offered(sandbox) as (tools, _):
        assert (await tools.call("bash", {})).text == (
            "Error: there is no tool 'bash': this task has no tools. Answer in text."
        )


async def test_a_function_gets_checked_arguments_and_the_sandbox(sandbox: Sandbox) -> None:
    await sandbox.write_file("/workspace/shelf", b"tea\nsalt\n")
    async with offered(sandbox, LOOK, BUY, "bash") as (tools, started):
        assert (await tools.call("look", {"path": "shelf", "lines": 1})).text == "tea\n"
        wrong = (await tools.call("look", {"lines": 1})).text
        assert wrong.startswith("Error: invalid tool call: look: path: Field required")
        assert (await tools.call("buy", {"n": 1})).text.startswith(
            "Error: invalid tool call: buy: the value has no 'n'; it takes nothing."
        )
        assert (await tools.call("sell", {})).text == "Error: there is no tool 'sell'; the tools are: look, buy, bash."
        quick = Tools(started, sandbox, 0.5)
        assert (await quick.call("look", {"path": "/hang"})).text == "[timed out after 0.5 s and was stopped]"
        raised = r"tool look\(\) of task kind 'shop' raised LookupError: no such shelf \(.*test_own_tools.py:\d+\)"
        for path, words in (("/raise", raised), ("/number", "must return a text")):
            with pytest.raises(HandlerFailed, match=words):
                await tools.call("look", {"path": path})
        assert (await tools.call("buy", {})) == ToolResult("bought", done=True)
        assert started[0].schema["function"]["parameters"]["required"] == ["path"]


async def test_a_program_gets_its_arguments_as_json_and_the_model_reads_its_output(sandbox: Sandbox) -> None:
    programs = [ProgramTool(name, "", {"type": "object"}, ["python3", "-c", code]) for name, code in PROGRAMS.items()]
    before = os.listdir("/proc/self/fd")
    async with offered(sandbox, TWICE, *programs) as (tools, started):
        quick = Tools(started, sandbox, 1.0)
        assert (await tools.call("twice", {"n": 4})).text == "8"
        assert "n must be at most 9" in (await tools.call("twice", {"n": 10})).text
        assert "n must be an integer" in (await tools.call("twice", {"n": "4"})).text
        assert (await tools.call("broken", {})).text == "it is broken\n[exit code 1]"
        assert (await quick.call("slow", {})).text.endswith("[timed out after 1 s and was stopped]")
        flood = (await quick.call("flood", {})).text
        assert len(flood) < 20_000
        assert flood.endswith("[timed out after 1 s and was stopped]")
        assert (await tools.call("child", {})).text == "left one behind"
    async with offered(sandbox, ProgramTool("none", "", {"type": "object"}, ["nonesuch"])) as (tools, _):
        assert "nonesuch: not found" in (await tools.call("none", {})).text
    assert len(os.listdir("/proc/self/fd")) == len(before)


async def test_the_tools_of_an_mcp_server_are_offered_and_called(sandbox: Sandbox) -> None:
    await sandbox.write_file("/workspace/server.py", Path(mcp_server.__file__).read_bytes())
    async with offered(sandbox, SERVER, "submit") as (tools, started):
        assert tools.offered == ["add", "fail", "exit", "hang", "submit"]
        assert started[0].schema["function"] == {**_function(mcp_server.TOOLS[0])}
        assert (await tools.call("add", {"a": 2, "b": 3})).text == "5, call 1\n[image left out]"
        assert "add: the value needs 'b'" in (await tools.call("add", {"a": 2})).text
        assert (await tools.call("fail", {"place": "x"})).text == "Error: no such place"
        assert (await tools.call("add", {"a": 2, "b": 4})).text == "6, call 3\n[image left out]"
        ended = "Error: the tool server has ended with exit code 1: the server gives up"
        assert [(await tools.call(name, {})).text for name in ("exit", "exit")] == [ended, ended]
        assert (await tools.call("submit", {})).done
    async with offered(sandbox, McpServer(SERVER.command, only=["hang", "add"])) as (tools, started):
        assert tools.offered == ["hang", "add"]
        assert (await Tools(started, sandbox, 1.0).call("hang", {})).text == "[timed out after 1 s and was stopped]"
        await sandbox.bash("pkill -f server.py")
        assert (await tools.call("add", {"a": 1, "b": 1})).text.startswith("Error: the tool server has ended")
    assert (await sandbox.bash("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'serve[r].py'")).output == "0\n"


def _function(tool: dict[str, Any]) -> dict[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "parameters": tool["inputSchema"]}


FAULTS: dict[str, tuple[OfferedTool, str]] = {
    "ended": (McpServer(["python3", "-c", "exit('no key')"]), "lists no tools: the tool server has ended.*no key"),
    "unknown": (McpServer(SERVER.command, only=["multiply"]), "has no tool 'multiply'; it has add, fail, exit, hang"),
    "noise": (McpServer(["bash", "-c", "yes"]), "lists no tools: the tool server wrote too much that is no answer"),
    "line": (McpServer(["bash", "-c", "yes | tr -d '\\n'"]), "lists no tools: the tool server wrote too much"),
    "twice": (ProgramTool("bash", "", {"type": "object"}, ["true"]), "two tools are called 'bash'"),
    "keyword": (
        Tool("x", "", {"type": "object", "minProperties": 1}, buy),
        "the keyword 'minProperties', which is not checked",
    ),
    "array": (Tool("x", "", {"type": "array"}, buy), "it must have the type `object`"),
    "name": (
        Tool("a b", "", {"type": "object"}, buy),
        "must return a list of bash, ipython, editor, submit, or of tools",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_tools_that_cannot_be_offered_are_the_tasks_fault(sandbox: Sandbox, fault: str) -> None:
    await sandbox.write_file("/workspace/server.py", Path(mcp_server.__file__).read_bytes())
    tool, words = FAULTS[fault]
    with pytest.raises(TaskError, match=words) as raised:
        async with offered(sandbox, "bash", tool):
            pass
    assert isinstance(raised.value, RollyardError)


@pytest.mark.parametrize("name", ["submit", "buy"])
async def test_a_tool_may_end_the_conversation(model_dir: Path, sandbox: Sandbox, name: str) -> None:
    template = ChatTemplate.load(model_dir)
    async with offered(sandbox, "bash", "submit", BUY) as (_, started):
        schemas = [SCHEMAS[t] if isinstance(t, str) else t.schema for t in started]
        parser = parser_for(template, None, schemas)
        run = AgentProgress(Conversation(template, Shop([]).prompt(TASK), schemas, parser=parser))
        call = f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>'
        policy = Told(
            template, '<tool_call>\n{"name": "bash", "arguments": {"command": "echo tea"}}\n</tool_call>', call
        )
        await run_agent(run, policy, Tools(started, sandbox, 30.0, parser.form), AgentSpec(), Sampling(), 0)
    assert (run.status, run.turns[0].tool_results) == (Status.COMPLETED, ["tea"])
    assert run.turns[1].tool_results == ["bought" if name == "buy" else "The work was submitted."]
    assert isinstance(started[1], OwnTool)


async def test_the_documented_tools_are_offered(sandbox: Sandbox) -> None:
    page = (Path(__file__).parents[2] / "docs" / "own-tools.md").read_text()
    names: dict[str, Any] = {}
    exec(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0], names)
    handler = GuardedHandler("shop", names["ShopHandler"]())
    bash, search, answer, count, server = handler.tools(TASK)
    async with offered(sandbox, bash, search, answer) as (tools, _):
        assert (await tools.call("search", {"words": "tea", "most": 2})).text == "tea 0\ntea 1"
        assert (await tools.call("answer", {"text": "tea"})) == ToolResult("Noted.", done=True)
    assert (type(count), type(server)) == (ProgramTool, McpServer)
