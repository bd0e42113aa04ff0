"""A command inside a real sandbox as the agent: its calls reach the gateway of its own session and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import aiohttp
import pytest
import pytest_asyncio

from rollyard.core.errors import AnswerRefused, ContextExceeded, EndpointLost, EndpointRefused, TaskError
from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import AgentSpec, Sampling, Status
from rollyard.node.harness import Harness, _script
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from simulation.endpoint_sampler import EndpointSampler
from simulation.upstream import Upstream
from tests.support import make

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPEC = SandboxSpec(None, Limits(cpus=1, memory_bytes=2 << 30, disk_bytes=64 << 20, processes=64))
PROMPT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 3 * 4?"}]
HARNESS = """
import json, os, sys, urllib.request
def call(messages):
    body = json.dumps({"model": "any", "messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]
messages = [{"role": "system", "content": open(os.environ["ROLLYARD_SYSTEM_PROMPT_FILE"]).read()},
            {"role": "user", "content": open(os.environ["ROLLYARD_PROMPT_FILE"]).read()}]
for word in ("And?", "So?", ""):
    message = call(messages)
    messages += [{"role": "assistant", "content": message["content"]}, {"role": "user", "content": word}]
open("/workspace/answer", "w").write(message["content"] + os.environ.get("EXTRA", ""))
"""


class FailingPolicy:
    context: int | None = None

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        raise self._error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandboxes() -> AsyncIterator[SandboxFactory]:
    async with SandboxFactory(await asyncio.to_thread(find_runtime)) as factory:
        yield factory


@pytest_asyncio.fixture(loop_scope="module")
async def sandbox(sandboxes: SandboxFactory) -> AsyncIterator[Sandbox]:
    async with await sandboxes.start(SPEC) as made:
        yield made


@asynccontextmanager
async def session(
    template: ChatTemplate, name: str = "mine", pace: float = 0.0, **config: int
) -> AsyncIterator[tuple[GatewaySession, Upstream]]:
    def script(number: int, prompt: Sequence[int]) -> list[int]:
        return [*template.encode(f"Answer {number}."), template.stop_ids[0]]

    async with Upstream(script, pace).serving() as upstream, aiohttp.ClientSession() as http:
        policy = EndpointSampler(TokenClient(http), make.endpoint(url=upstream.url), template.stop_ids)
        yield GatewaySession(name, template, policy, SessionConfig("policy", Sampling(), **config)), upstream


def command(text: str, **more: object) -> AgentSpec:
    return AgentSpec.model_validate({"type": "command", "command": text, **more})


PYTHON = f"cat > /tmp/harness.py <<'EOF'{HARNESS}EOF\npython3 /tmp/harness.py"


async def test_a_harness_in_a_sandbox_becomes_one_exact_segment(sandbox: Sandbox, template: ChatTemplate) -> None:
    async with session(template) as (mine, upstream):
        run = Harness(sandbox, mine)
        assert await run.run(command(PYTHON, env={"EXTRA": " it's"}), PROMPT) == (Status.COMPLETED, 0)
        (segment,) = mine.segments()
        assert segment.token_ids[: len(upstream.prompts[2])] == upstream.prompts[2]
        assert [t.text for t in mine.turns()] == ["Answer 0.", "Answer 1.", "Answer 2."]
        assert "What is 3 * 4?" in template.decode(upstream.prompts[0])
        assert await sandbox.read_file("answer", 100) == b"Answer 2. it's"


async def test_an_exit_code_truncates_and_the_limit_of_calls_does_too(sandbox: Sandbox, template: ChatTemplate) -> None:
    async with session(template) as (mine, _):
        harness = Harness(sandbox, mine)
        assert await harness.run(command(f"{PYTHON}\nexit 7"), PROMPT) == (Status.TRUNCATED, 7)
        assert harness.cut_short == "the agent's command ended with exit code 7"
        assert mine.calls == 3
    async with session(template, max_calls=2) as (mine, _):
        harness = Harness(sandbox, mine)
        status, code = await harness.run(command(f"{PYTHON} || true"), PROMPT)
        assert harness.cut_short == "the agent used all of its model calls; `agent.max_turns` is 2"
        assert (status, code, mine.calls) == (Status.TRUNCATED, 0, 2)


async def test_a_command_starts_where_the_images_tools_start(sandbox: Sandbox) -> None:
    assert sandbox.workdir == "/workspace"
    await sandbox.bash("mkdir '/tmp/of the image'", 10)
    for workdir, found in (("/tmp/of the image", "/tmp/of the image"), ("/nowhere", "/")):
        shown = await sandbox.bash(_script(command("pwd"), "http://base", "mine", workdir), 10)
        assert shown.output.splitlines()[-1] == found


async def test_a_prompt_that_cannot_be_written_is_the_tasks_fault(sandbox: Sandbox, template: ChatTemplate) -> None:
    await sandbox.bash("touch ~/.rollyard", 10)
    async with session(template) as (mine, _):
        with pytest.raises(TaskError, match=r"the prompt cannot be written to .*system-prompt\.txt in the sandbox: "):
            await Harness(sandbox, mine).run(command("true"), PROMPT)


async def test_a_command_that_never_gets_to_a_call_is_a_wrong_request(sandbox: Sandbox, template: ChatTemplate) -> None:
    async with session(template) as (mine, _):
        with pytest.raises(TaskError, match=r"exit code 127 before its first model call.*nonesuch"):
            await Harness(sandbox, mine).run(command("nonesuch --now"), PROMPT)


async def test_a_first_prompt_that_does_not_fit_fails(sandbox: Sandbox, template: ChatTemplate) -> None:
    full = GatewaySession(
        "x", template, FailingPolicy(ContextExceeded("9 tokens of 4")), SessionConfig("policy", Sampling())
    )
    with pytest.raises(ContextExceeded, match="9 tokens of 4"):
        await Harness(sandbox, full).run(command(PYTHON), PROMPT)


async def test_a_fault_of_ours_ends_the_command_and_is_raised(sandbox: Sandbox, template: ChatTemplate) -> None:
    lost = GatewaySession("x", template, FailingPolicy(EndpointLost("gone")), SessionConfig("policy", Sampling()))
    with pytest.raises(EndpointLost, match="gone"):
        await Harness(sandbox, lost).run(command(f"while true\ndo {PYTHON}\ndone"), PROMPT)
    unfit = GatewaySession(
        "x", template, FailingPolicy(AnswerRefused("two logprobs")), SessionConfig("policy", Sampling())
    )
    with pytest.raises(AnswerRefused, match="two logprobs"):
        await Harness(sandbox, unfit).run(command(f"{PYTHON} || true"), PROMPT)
    refused = GatewaySession(
        "x", template, FailingPolicy(EndpointRefused("no (401)")), SessionConfig("policy", Sampling())
    )
    with pytest.raises(EndpointRefused, match="401"):
        await Harness(sandbox, refused).run(command(f"{PYTHON}"), PROMPT)


async def test_one_sandbox_cannot_take_all_connections(sandbox: Sandbox, template: ChatTemplate) -> None:
    python = """
import os, socket, time, urllib.parse, urllib.request
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
held = [socket.create_connection((url.hostname, url.port)) for _ in range(160)]
for one in held:
    one.settimeout(60)
    try:
        one.sendall(b"GET /v1/models HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        served = one.recv(9) == b"HTTP/1.1 "
    except ConnectionError:
        served = False
    print("served" if served else "refused")
for one in held:
    one.close()
while True:  # until the gateway has seen that they are closed
    try:
        urllib.request.urlopen(url.geturl() + "/models").read()
        break
    except OSError:  # from urllib: a ConnectionError, or a URLError around it if already the sending fails
        time.sleep(0.1)
"""
    async with session(template) as (mine, _):
        text = f"cat > /tmp/t.py <<'EOF'{python}EOF\npython3 /tmp/t.py > /workspace/seen\n{PYTHON}"
        assert await Harness(sandbox, mine).run(command(text), PROMPT) == (Status.COMPLETED, 0)
        seen = (await sandbox.read_file("seen", 10_000)).decode().split()
        assert (seen.count("served"), seen.count("refused")) == (128, 32)


async def test_stopping_it_stops_the_command_and_keeps_what_was_sampled(
    sandbox: Sandbox, template: ChatTemplate
) -> None:
    async with session(template) as (mine, _):
        harness = Harness(sandbox, mine)
        running = asyncio.create_task(harness.run(command(f"echo begun\n{PYTHON}\nsleep 1000"), PROMPT))
        async with asyncio.timeout(60):
            while mine.calls < 3:
                await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(mine.segments()) == 1
        assert (harness.output or "").startswith("begun\n")
        assert (await sandbox.bash("pgrep -c sleep", 10)).output.strip() == "0"


async def test_following_invalid_utf8_repeats_and_loses_nothing(sandbox: Sandbox, template: ChatTemplate) -> None:
    await sandbox.bash("rm -f /tmp/go", 10)
    text = "printf 'a\\377b\\303'; until [ -e /tmp/go ]; do sleep 0.01; done; printf '\\251c\\376d\\303'"
    async with session(template) as (mine, _):
        harness, seen, position = Harness(sandbox, mine), "", 0
        running = asyncio.create_task(harness.run(command(text), PROMPT))
        async with asyncio.timeout(60):
            while seen != "a\ufffdb":
                new, position = await harness.printed(position)
                seen += new
        await sandbox.write_file("/tmp/go", b"")
        with pytest.raises(TaskError, match="before its first model call"):
            await running
        seen += (await harness.printed(position))[0]
        assert seen == harness.output == "a\ufffdb\u00e9c\ufffdd\ufffd"


async def test_following_more_output_than_is_kept_shows_its_end(sandbox: Sandbox, template: ChatTemplate) -> None:
    await sandbox.bash("rm -f /tmp/go", 10)
    text = (
        "head -c 3000000 /dev/zero | tr '\\0' x; printf middle; until [ -e /tmp/go ]; do sleep 0.01; done; printf end"
    )
    async with session(template) as (mine, _):
        harness = Harness(sandbox, mine)
        running = asyncio.create_task(harness.run(command(text), PROMPT))
        position = 0
        async with asyncio.timeout(60):
            while position < 3_000_006:
                _, position = await harness.printed(position)
        await sandbox.write_file("/tmp/go", b"")
        with pytest.raises(TaskError, match="before its first model call"):
            await running
        assert await harness.printed(position) == ("end", 3_000_009)


async def test_one_sandbox_does_not_reach_anothers_session(
    sandboxes: SandboxFactory, sandbox: Sandbox, template: ChatTemplate
) -> None:
    async with (
        await sandboxes.start(SPEC) as other,
        session(template) as (mine, _),
        session(template, "its") as (its, _),
    ):
        hold = "echo $OPENAI_BASE_URL >/workspace/url; while [ ! -e /workspace/end ]; do sleep 0.05; done"
        held = asyncio.create_task(Harness(other, its).run(command(hold), PROMPT))
        url = ""
        async with asyncio.timeout(60):
            while not url.endswith("\n"):
                with contextlib.suppress(FileNotFoundError):
                    url = (await other.read_file("url", 100)).decode()
                await asyncio.sleep(0.02)
        # neither by its port, nor by its name at one's own
        python = f"""
import os, urllib.request, urllib.error
def get(url, **headers):
    try:
        return urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0
own = os.environ["OPENAI_BASE_URL"] + "/models"
print(get("{url.strip()}/models"), get(own, **{{"X-Rollyard-Session": "its"}}), get(own))
"""
        text = f"cat > /tmp/t.py <<'EOF'{python}EOF\npython3 /tmp/t.py > /workspace/seen"
        with pytest.raises(TaskError, match="before its first model call"):
            await Harness(sandbox, mine).run(command(text), PROMPT)
        assert await sandbox.read_file("seen", 100) == b"0 403 200\n"
        await other.write_file("end", b"")
        with pytest.raises(TaskError, match="exit code 0 before its first model call"):
            await held


async def test_with_the_nodes_network_a_call_must_name_the_session(
    sandboxes: SandboxFactory, template: ChatTemplate
) -> None:
    """Every process of the node reaches a gateway on the node's loopback."""
    python = """
import os, urllib.request, urllib.error
def get(**headers):
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/models", headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=60).status
    except urllib.error.HTTPError as error:
        return error.code
print(get(), get(Authorization="Bearer " + os.environ["OPENAI_API_KEY"]))
"""
    text = f"cat > /tmp/t.py <<'EOF'{python}EOF\npython3 /tmp/t.py > /workspace/seen"
    spec = replace(SPEC, host_network=True)
    async with await sandboxes.start(spec) as sandbox, session(template) as (mine, _):
        with pytest.raises(TaskError, match="before its first model call"):
            await Harness(sandbox, mine).run(command(text), PROMPT)
        assert await sandbox.read_file("seen", 100) == b"401 200\n"


async def test_a_command_and_its_type_come_together() -> None:
    whole = {"type": "command", "command": "x"}
    for wrong in ({"type": "command"}, {"command": "x"}, {"env": {"A": "b"}}, {**whole, "env": {"a b": ""}}):
        with pytest.raises(ValueError, match=r"command|pattern"):
            AgentSpec.model_validate(wrong)
    assert AgentSpec.model_validate(json.loads(AgentSpec().model_dump_json())) == AgentSpec()
