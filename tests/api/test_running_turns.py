"""`GET /v1/rollouts/ID/turns`: what a rollout has saved, in pieces, and from the beginning after a new lease."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import zstandard

from rollyard.api import running_turns
from rollyard.kinds.rollout import Stage, Status
from rollyard.store.rollout_transaction import Transaction
from rollyard.trajectory.saved_turn import SavedTurn
from rollyard.trajectory.turn import Turn
from tests.support import make
from tests.support.outside_api import Serve

RUNNING = make.rollout("r", status=Status.RUNNING, stage=Stage.RUN, fence=3)


def saved(text: str) -> bytes:
    turn = Turn(segment=0, prompt_length=1, response_length=1, text=text, finish_reason="stop", tool_results=["x"])
    found = SavedTurn(turn=turn, token_ids=[1], logprobs=[-0.5], weights_versions=["v"], prompt_digest="")
    return zstandard.compress(found.model_dump_json().encode())


async def test_turns_come_in_pieces_and_again_after_a_new_lease(serving: Serve, monkeypatch: Any) -> None:
    async with serving() as api:

        def store(fence: int, kept: int, texts: list[str]) -> Any:
            def change(tx: Transaction) -> None:
                before = tx.get("default", "r") or tx.put(replace(RUNNING, saved_turns=0))
                total = kept + len(texts)
                tx.put_turns(before, kept, [saved(text) for text in texts])
                tx.put(replace(before, fence=fence, saved_turns=total))

            return api.store.rollouts.transact(change)

        async def ask(fence: int, after: int) -> tuple[int, int, list[str]]:
            status, found = await api.ask("GET", f"/v1/rollouts/r/turns?fence={fence}&after={after}")
            assert status == 200, found
            assert [one["weights_version"] for one in found["turns"]] == ["v"] * len(found["turns"])
            return found["fence"], found["total"], [one["turn"]["text"] for one in found["turns"]]

        assert (await api.ask("GET", "/v1/rollouts/r/turns"))[0] == 404
        await store(3, 0, ["a", "b", "c"])
        monkeypatch.setattr(running_turns, "MOST_TURNS", 2)
        assert await ask(0, 0) == (3, 3, ["a", "b"])
        assert await ask(3, 2) == (3, 3, ["c"])
        assert await ask(3, 3) == (3, 3, [])
        monkeypatch.setattr(running_turns, "MOST_BYTES", 0)
        assert await ask(3, 0) == (3, 3, ["a"]), "at least one turn, however large it is"
        await store(4, 1, ["B"])
        monkeypatch.undo()
        assert await ask(3, 3) == (4, 2, ["a", "B"])
        assert await ask(4, 2) == (4, 2, [])
        assert (await api.ask("GET", "/v1/rollouts/r/turns?after=-1"))[0] == 400
        assert (await api.ask("GET", "/v1/rollouts/r/turns?namespace=other"))[0] == 404
