"""Released clients and frameworks, unmodified, in sessions of a real server: exact ids, in one segment if they keep history."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.client import AsyncClient
from tests.support.client_sessions import check, run
from tests.support.model_clients import CLIENTS, ModelClient
from tests.support.yard import ROOT, Yard

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.long]

PAGE = ROOT / "docs" / "clients.md"


@pytest.mark.parametrize("program", CLIENTS, ids=lambda c: c.program)
async def test_each_client_ends_with_the_ids_that_were_sampled(
    served: tuple[Yard, AsyncClient], policy: Path, tmp_path: Path, program: ModelClient
) -> None:
    yard, client = served
    check(program, await run(client, yard, program, tmp_path), policy)
    assert program.row() in PAGE.read_text(), f"write into {PAGE.name}: {program.row()}"
