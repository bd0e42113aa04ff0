"""A node agent or engine that does not fit the server ends, with a sentence that says which side to update."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import pytest

from rollyard.client.server_link import ServerLink
from rollyard.core.errors import Incompatible
from rollyard.engine.main import InferenceServer
from rollyard.kinds.base import evolve
from rollyard.kinds.inference_pool import InferencePoolSpec
from rollyard.node import agent
from rollyard.reconcilers.allocation_folder import last_output
from rollyard.tasks.installed_handlers import Handlers
from rollyard.trust.bearer_tokens import Role
from rollyard.wire.base import MIN_PROTOCOL, PROTOCOL, Identity, protocol_refusal
from tests.node.test_agent import Yard

OLD = (MIN_PROTOCOL - 1, "too old; .* update Rollyard on the nodes")
NEW = (PROTOCOL + 1, "too new; .* update Rollyard where the server runs")


@pytest.fixture
def yard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Yard:
    monkeypatch.setenv("HOME", str(tmp_path))
    return Yard(tmp_path)


def speak(monkeypatch: pytest.MonkeyPatch, protocol: int) -> None:
    identity = ServerLink.identity

    def other(link: ServerLink) -> Identity:
        return evolve(identity(link), protocol=protocol)

    monkeypatch.setattr(ServerLink, "identity", other)


@pytest.mark.parametrize(("protocol", "sentence"), [OLD, NEW])
async def test_a_node_agent_of_another_time_ends(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, protocol: int, sentence: str
) -> None:
    speak(monkeypatch, protocol)
    async with yard.server() as server:
        link = await yard.allocate(server)
        async with link.session() as http, asyncio.timeout(60):
            with pytest.raises(Incompatible, match=sentence):
                await agent.run(link, http, http, Handlers({}, {}), asyncio.Event())


@pytest.mark.parametrize(("protocol", "sentence"), [OLD, NEW])
async def test_an_engine_of_another_time_ends(
    yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, sentence: str
) -> None:
    speak(monkeypatch, protocol)
    spec = InferencePoolSpec.model_validate(
        {"replicas": 1, "model": {"path": "/models/policy"}, "engine": {"vllm": {}}}
    )
    async with yard.server() as server, asyncio.timeout(60):
        uid = (await yard.allocate(server)).allocation.uid
        (yard.job / "token").write_text(server.parts.signer.issue(Role.ENGINE, uid))
        link = ServerLink.open(yard.job)
        with pytest.raises(Incompatible, match=sentence):
            await InferenceServer(link, spec, tmp_path, None).run()


PROCESS = """
import sys
from pathlib import Path
from rollyard.client.server_link import ServerLink
from rollyard.kinds.base import evolve
from {module} import main
identity = ServerLink.identity
ServerLink.identity = lambda link: evolve(identity(link), protocol={protocol})
sys.exit(main(Path(sys.argv[1])))
"""


@pytest.mark.parametrize(("module", "role"), [("rollyard.node.main", Role.NODE), ("rollyard.engine.main", Role.ENGINE)])
async def test_the_sentence_is_the_reason_that_the_allocation_shows(yard: Yard, module: str, role: Role) -> None:
    spec = {"replicas": 1, "model": {"path": "/models/policy"}, "engine": {"vllm": {}}}
    async with yard.server() as server:
        told = (await yard.allocate(server)).allocation
        told = evolve(told, inference=InferencePoolSpec.model_validate(spec))
        (yard.job / "allocation.json").write_text(told.model_dump_json())
        (yard.job / "token").write_text(server.parts.signer.issue(role, told.uid))
        code = PROCESS.format(module=module, protocol=PROTOCOL + 1)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, str(yard.job), stdout=PIPE, stderr=STDOUT
        )
        output, _ = await process.communicate()
    last = last_output(output.decode().splitlines(), time.time(), time.time())
    assert last is not None, output
    assert (process.returncode, last.is_exit_reason) == (1, True)
    assert re.search(NEW[1], last.text)


def test_protocols_in_between_are_welcome() -> None:
    for protocol in range(MIN_PROTOCOL, PROTOCOL + 1):
        assert protocol_refusal({"identity": {"protocol": protocol}}) is None


@pytest.mark.parametrize("hello", [None, [], {}, {"identity": 1}, {"identity": {}}, {"identity": {"protocol": "x"}}])
def test_what_states_no_protocol_is_left_to_the_models(hello: Any) -> None:
    assert protocol_refusal(hello) is None


def test_the_sentence_fits_into_a_close_frame() -> None:
    for protocol in (-1, 0, PROTOCOL + 1, 10_000):
        assert len((protocol_refusal({"identity": {"protocol": protocol}}) or "x" * 200).encode()) <= 120
