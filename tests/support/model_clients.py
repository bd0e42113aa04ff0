"""Clients of model APIs, each as a program of its own (tests/clients/programs) in an environment with its released packages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import mini_swe_agent
from tests.support.compatibility import installed
from tests.support.released import environment

PROGRAMS = Path(__file__).parents[1] / "clients" / "programs"
SECONDS = 900.0


VARIABLES = {
    "MSWEA_CONFIGURED": "true", "MSWEA_COST_TRACKING": "ignore_errors", "MSWEA_SILENT_STARTUP": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}  # fmt: skip
"""Variables with which mini-swe-agent asks nothing and litellm downloads nothing."""


def own() -> tuple[str, dict[str, str]]:
    """Return the interpreter and the variables for packages of the tests' own environment."""
    return sys.executable, {}


def frameworks() -> tuple[str, dict[str, str]]:
    return str(environment("agent-frameworks", "2026.11", "python3.11") / "bin" / "python"), {}


def beside_mini() -> tuple[str, dict[str, str]]:
    """Use the packages of the sandbox image with mini-swe-agent, which has litellm too."""
    packages = mini_swe_agent.image() / mini_swe_agent.PACKAGES
    return f"{sys.base_prefix}/bin/python3", {"PYTHONPATH": str(packages), **VARIABLES}


@dataclass(frozen=True)
class ModelClient:
    program: str
    project: str
    """Name in the docs."""
    package: str
    api: str
    construct: str
    """Code that leads the client to a session and lets it repeat failed calls."""
    home: Callable[[], tuple[str, dict[str, str]]]
    turns: tuple[str, ...]
    """Texts of a run in which the policy does what the client needs."""
    answers: tuple[int, ...] = (408, 134)
    """Output of that run."""
    rewrites: str = ""
    """Change that the client makes to its history; empty if it makes none. Each call is a segment then."""

    def version(self) -> str:
        python, env = self.home()
        if "PYTHONPATH" in env:
            (found,) = Path(env["PYTHONPATH"]).glob(f"{self.package.replace('-', '_')}-*.dist-info")
            return found.name.removesuffix(".dist-info").rpartition("-")[2]
        return installed(self.package, None if python == sys.executable else Path(python).parents[1])

    def row(self) -> str:
        """Return the row of docs/clients.md."""
        link = f"[{self.project}](../tests/clients/programs/{self.program}.py)"
        segments = f"one for each call: {self.rewrites}" if self.rewrites else "one"
        return f"| {link} | {self.version()} | {self.api} | `{self.construct}` | {segments} |"

    @contextlib.asynccontextmanager
    async def running(
        self, base_url: str, anthropic_base_url: str, key: str, ca: Path, folder: Path
    ) -> AsyncIterator[Process]:
        """Run the program in the folder. At the end of the block the program is killed if it has not ended."""
        python, more = await asyncio.to_thread(self.home)
        env = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "SSL_CERT_FILE": str(ca),
            "OPENAI_BASE_URL": base_url, "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": anthropic_base_url, "ANTHROPIC_API_KEY": key,
        }  # fmt: skip
        program, pipe = str(PROGRAMS / f"{self.program}.py"), asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            python, program, env=env | more, cwd=folder, stdout=pipe, stderr=pipe
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def end(self, process: Process) -> None:
        """Wait until the program ends; check its answers."""
        async with asyncio.timeout(SECONDS):
            out, err = await process.communicate()
        assert process.returncode == 0, f"{self.program}: {err.decode()[-4000:]}"
        assert json.loads(out.decode().splitlines()[-1]) == list(self.answers)


def _call(name: str, **arguments: Any) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def _python(code: str) -> str:
    return json.dumps({"thought": "I compute.", "code": code})


FIRST, SECOND = _call("ipython", code="12 * 34"), _call("ipython", code="56 + 78")
IN_SCHEMA = (FIRST, '{"value": 408}', SECOND, '{"value": 134}')


def _by_tool(name: str) -> tuple[str, ...]:
    return FIRST, _call(name, value=408), SECOND, _call(name, value=134)


PYDANTIC_AI = 'OpenAIChatModel("policy", provider=OpenAIProvider(openai_client=AsyncOpenAI(max_retries=10)))'
CHAT, RESPONSES, MESSAGES = "chat completions", "responses", "messages"
CLIENTS = [
    ModelClient("openai_chat", "OpenAI's client", "openai", CHAT, "OpenAI(max_retries=10)", own, IN_SCHEMA),
    ModelClient(
        "openai_runner", "OpenAI's `ResponsesToolRunner`", "openai", RESPONSES, "OpenAI(max_retries=10)", own,
        (FIRST, SECOND, '{"value": 134}'), (134,),
    ),
    ModelClient(
        "anthropic_runner", "Anthropic's `tool_runner`", "anthropic", MESSAGES, "Anthropic(max_retries=10)", own, IN_SCHEMA,
    ),
    ModelClient(
        "langchain_openai_agent", "LangChain, `ProviderStrategy`", "langchain", CHAT,
        'ChatOpenAI(model="policy", max_retries=10)', frameworks, IN_SCHEMA,
    ),
    ModelClient(
        "langchain_anthropic_agent", "LangChain, `ToolStrategy`", "langchain", MESSAGES,
        'ChatAnthropic(model="policy", max_tokens=200, max_retries=10)', frameworks, _by_tool("Answer"),
    ),
    ModelClient(
        "pydantic_ai_agent", "pydantic-ai, `output_type`", "pydantic-ai-slim", CHAT, PYDANTIC_AI, frameworks,
        _by_tool("final_result"),
    ),
    ModelClient(
        "pydantic_ai_native", "pydantic-ai, `NativeOutput`", "pydantic-ai-slim", CHAT, PYDANTIC_AI, frameworks, IN_SCHEMA,
    ),
    ModelClient(
        "agents_sdk", "openai-agents, `output_type`", "openai-agents", RESPONSES,
        "set_default_openai_client(AsyncOpenAI(max_retries=10))", frameworks, IN_SCHEMA,
    ),
    ModelClient(
        "litellm_loop", "litellm", "litellm", CHAT, 'completion("openai/policy", …, max_retries=10)', beside_mini, IN_SCHEMA,
    ),
    ModelClient(
        "smolagents_tools", "smolagents, `ToolCallingAgent`", "smolagents", CHAT,
        'OpenAIModel("policy", client_kwargs={"max_retries": 10})', frameworks,
        (FIRST, _call("final_answer", answer="408"), SECOND, _call("final_answer", answer="134")),
        rewrites="a tool call comes back as text that begins with `Calling tools:`",
    ),
    ModelClient(
        "smolagents_code", "smolagents, `CodeAgent`", "smolagents", CHAT,
        'OpenAIModel("policy", client_kwargs={"max_retries": 10})', frameworks,
        (_python('print(ipython(code="12 * 34"))'), _python("final_answer(408)"),
         _python('print(ipython(code="56 + 78"))'), _python("final_answer(134)")),
        rewrites="each turn comes back with `Calling tools:` and its code after its text",
    ),
    ModelClient(
        "mini_swe", "mini-swe-agent", "mini-swe-agent", CHAT, 'LitellmModel(model_name="openai/policy")', beside_mini,
        ("THOUGHT: compute\n" + _call("bash", command="echo $((12 * 34))"),
         _call("bash", command="echo $((12 * 34)) > answer; cat answer"),
         _call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat answer")), (408,),
    ),
]  # fmt: skip
