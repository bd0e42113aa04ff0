"""The server is killed under each client of tests/clients/programs: between two calls, and during a call."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rollyard.client import AsyncClient
from rollyard.kinds.session import SessionView
from tests.support.client_sessions import check, running
from tests.support.model_clients import CLIENTS, ModelClient
from tests.support.yard import Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]


@pytest.mark.parametrize("program", CLIENTS, ids=lambda c: c.program)
async def test_a_client_goes_on_by_its_own_retries_after_the_server_is_killed(
    served: tuple[Yard, AsyncClient], policy: Path, tmp_path: Path, program: ModelClient
) -> None:
    """It is killed between two calls, with the client stopped, and during a call, with the engine stopped."""
    yard, client = served
    engine = None
    async with running(client, yard, program, tmp_path) as (session, process):

        async def seen() -> SessionView:
            return (await client.session(session)).session

        async def answered() -> bool:
            return (await seen()).calls >= 1

        async def calls_in_flight(count: int) -> bool:
            return (await seen()).in_flight == count

        try:
            await yard.until(answered)
            process.send_signal(signal.SIGSTOP)
            await yard.until(lambda: calls_in_flight(0))
            assert (await seen()).calls < len(program.turns)
            yard.kill()
            yard.start()
            await yard.ready(client)

            (engine,) = yard.engines((await seen()).endpoint)
            os.kill(engine, signal.SIGSTOP)
            process.send_signal(signal.SIGCONT)
            await yard.until(lambda: calls_in_flight(1))
            yard.kill()
        finally:
            if engine is not None:
                os.kill(engine, signal.SIGCONT)
        yard.start()
        await program.end(process)
    check(program, (await client.close_session(session)).trajectory, policy)
