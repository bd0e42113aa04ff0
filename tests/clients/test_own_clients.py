"""OpenAI's and Anthropic's clients as programs, through the gateway to given answers; the page lists each program."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.tokens.chat_template import ChatTemplate
from tests.support.model_clients import CLIENTS, PROGRAMS, ModelClient, own
from tests.support.rehearsed_policy import rehearse
from tests.support.yard import MODEL, ROOT


@pytest.mark.parametrize("program", [c for c in CLIENTS if c.home is own], ids=lambda c: c.program)
async def test_a_client_ends_with_one_segment_of_the_given_ids(program: ModelClient, tmp_path: Path) -> None:
    template = ChatTemplate.load(MODEL)
    session = await rehearse(program, tmp_path)
    (segment,) = session.segments()
    assert session.breaks() == {}
    given = [[*template.encode(turn), template.stop_ids[0]] for turn in program.turns]
    sampled = [id for id, mask in zip(segment.token_ids, segment.loss_mask, strict=True) if mask]
    assert sampled == [id for ids in given for id in ids]


@pytest.mark.parametrize("program", CLIENTS, ids=lambda c: c.program)
def test_the_code_on_the_page_is_the_programs(program: ModelClient) -> None:
    source = (PROGRAMS / f"{program.program}.py").read_text()
    assert all(part in source for part in program.construct.split("…"))
    assert f"](../tests/clients/programs/{program.program}.py) |" in (ROOT / "docs" / "clients.md").read_text()
