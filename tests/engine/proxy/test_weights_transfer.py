"""Weights that a trainer moves into a running engine itself: in parts, wrong ones, given up in the middle, killed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from rollyard.engine.embedded.safetensors_files import STORED
from rollyard.engine.proxy import weights_transfer
from rollyard.engine.vllm.vllm_control import VllmControl
from rollyard.engine.weights.embedded_control import EmbeddedControl
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.model_folder.safetensors_header import entries
from rollyard.wire.engine import WeightsTarget
from tests.support.weights_yard import (
    PROMPTS,
    Yard,
    certified,
    embedded,
    furthest,
    made,
    other_dir,
    other_weights,
    pid_of,
    recomputed,
    shown,
    yard,
)

pytestmark = pytest.mark.slow(50)

__all__ = ["certified", "made", "other_dir"]  # fixtures


def body_of(tensors: Mapping[str, tuple[str, Sequence[int], bytes]]) -> bytes:
    """Safetensors: (dtype, shape, numbers) by name."""
    head: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape, raw) in tensors.items():
        head[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at := at + len(raw)]}
    text = json.dumps(head).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(raw for _, _, raw in tensors.values())


def tensors_of(folder: Path) -> dict[str, tuple[str, Sequence[int], bytes]]:
    found = {}
    for name, entry in entries(folder / "model.safetensors"):
        count = 1
        for length in entry.shape:
            count *= length
        size = count * STORED[entry.dtype]().itemsize
        with entry.path.open("rb") as file:
            file.seek(entry.offset)
            found[name] = (entry.dtype, entry.shape, file.read(size))
    return found


def parts_of(folder: Path, count: int = 3) -> list[bytes]:
    items = list(tensors_of(folder).items())
    return [body_of(dict(items[i::count])) for i in range(count)]


async def call(made: Yard, route: str, body: bytes | None = None) -> tuple[int, str]:
    async with made.client.post(route, data=BytesIO(body) if body is not None else None) as answer:
        return answer.status, await answer.text()


async def send(made: Yard, parts: Sequence[bytes]) -> None:
    for route, body in [("/start_weight_update", None), *(("/update_weights", p) for p in parts)]:
        assert (await call(made, route, body))[0] == 200
    assert (await call(made, "/finish_weight_update"))[0] == 200


async def transferring(made: Yard, order: WeightsTarget) -> None:
    made.weights.set_target(order)
    await made.until(lambda: made.weights.report.phase == "Transferring")


async def done(made: Yard, version: str) -> None:
    await made.until(lambda: made.weights.report.phase == "" and made.weights.report.version == version)


@pytest.mark.parametrize("mode", ["Drain", "Pause", pytest.param("Abort", marks=pytest.mark.long)])
async def test_weights_that_a_trainer_moves_are_those_of_the_tokens_after_them(
    made: Yard, mode: Any, model_dir: Path, other_dir: Path
) -> None:
    old = made.weights.report.version
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(made.stream(p, 200 if mode == "Drain" else 3000, after=50)) for p in PROMPTS]
        await made.under_way(len(PROMPTS), 20)
        await transferring(made, WeightsTarget(version="v2", mode=mode, path=str(other_dir), transfer=True))
        late = group.create_task(made.stream(PROMPTS[0] * 3, 20))
        await send(made, parts_of(other_dir))
        await done(made, "v2")
    for answer in (task.result() for task in streams):
        assert furthest(answer, recomputed(answer, model_dir, other_dir)) < 1e-3
        versions = tuple(dict.fromkeys(answer.versions))
        if mode == "Pause":
            assert (versions, answer.finish_reason) == ((old, "v2"), None), "nothing was interrupted"
        else:
            assert (versions, answer.finish_reason) == ((old,), "length" if mode == "Drain" else "abort")
    if mode == "Pause":
        crossed = [task.result() for task in streams]
        assert min(shown(crossed, model_dir, other_dir, by) for by in (-16, 16)) > 1e-2
    assert set(late.result().versions) == {"v2"}
    assert furthest(late.result(), recomputed(late.result(), other_dir, other_dir)) < 1e-3
    assert (made.weights.report.note, made.supervisor.life) == ("", 1)
    assert (await call(made, "/update_weights", b""))[0] == 409, "the way is shut again"


async def test_what_does_not_fit_is_refused_and_may_be_sent_again(made: Yard, other_dir: Path) -> None:
    order = WeightsTarget(version="v2", path=str(other_dir), transfer=True)
    assert (await call(made, "/start_weight_update"))[0] == 409
    await transferring(made, order)
    assert (await call(made, "/update_weights", b""))[0] == 409, "not begun"
    await call(made, "/start_weight_update")
    tensors, head = tensors_of(other_dir), "lm_head.weight"
    dtype, shape, raw = tensors[head]
    for body, status, words in [
        (b"nonsense, and more of it", 400, "not a safetensors file"),
        (body_of(tensors)[:-1], 400, "cut short"),
        (body_of({"model.extra": (dtype, shape, raw)}), 422, "has no tensor model.extra"),
        (body_of({head: (dtype, (shape[1], shape[0]), raw)}), 422, f"{head} has shape [{shape[1]}, {shape[0]}]"),
        (body_of({head: ("I8", shape, raw[: len(raw) // 2])}), 422, "must be BF16, F16 or F32"),
    ]:
        said = await call(made, "/update_weights", body)
        assert (said[0], words in said[1]) == (status, True), said
    first, second, third = parts_of(other_dir)
    await call(made, "/update_weights", first)
    await call(made, "/update_weights", third)
    said = await call(made, "/finish_weight_update")
    assert said[0] == 422
    assert "TransferIncomplete" in said[1]
    assert made.weights.report.phase == "Transferring"
    await call(made, "/update_weights", second)
    assert (await call(made, "/finish_weight_update"))[0] == 200
    await done(made, "v2")
    answer = await made.stream(PROMPTS[0], 20)
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


@pytest.mark.parametrize("mode", [pytest.param("Drain", marks=pytest.mark.long), "Pause"])
async def test_weights_that_are_not_those_of_the_folder_are_found(
    made: Yard, mode: Any, model_dir: Path, other_dir: Path, tmp_path: Path
) -> None:
    version, third = made.weights.report.version, other_weights(other_dir, tmp_path / "third", seed=7)
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(made.stream(p, 200 if mode == "Drain" else 3000)) for p in PROMPTS]
        await made.under_way(len(PROMPTS), 20)
        await transferring(made, WeightsTarget(version="v2", mode=mode, path=str(other_dir), transfer=True))
        await send(made, parts_of(third))
        await made.until(lambda: made.weights.report.phase == "Failed")
    assert "ProbeFailed" in made.weights.report.error
    for answer in (task.result() for task in streams):
        assert set(answer.versions) == {version}
        assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3
    await made.until(lambda: made.weights.proven)
    answer = await made.stream(PROMPTS[0], 20)
    assert (made.weights.report.version, set(answer.versions)) == (version, {version})
    # The same without a transfer is another order: the folder holds what it should.
    await made.order(WeightsTarget(version="v2", mode=mode, path=str(other_dir)))


class Unbuffered(EmbeddedControl):
    """As vLLM: what has begun has touched the weights."""

    buffers_transfers = False


@pytest.mark.parametrize(
    ("control", "begun"),
    [
        (EmbeddedControl, False),
        pytest.param(EmbeddedControl, True, marks=pytest.mark.long),
        pytest.param(Unbuffered, False, marks=pytest.mark.long),
        (Unbuffered, True),
    ],
)
async def test_a_trainer_that_falls_silent_is_not_waited_for(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, monkeypatch: pytest.MonkeyPatch,
    control: Any, begun: bool,
) -> None:  # fmt: skip
    async with yard(embedded(model_dir), tmp_path, certified, control=control) as made:
        old = made.weights.report.version
        async with asyncio.TaskGroup() as group:
            stream = group.create_task(made.stream(PROMPTS[0], 3000, after=50))
            await made.under_way(1, 20)
            await transferring(made, WeightsTarget(version="v2", mode="Pause", path=str(other_dir), transfer=True))
            if begun:
                assert (await call(made, "/start_weight_update"))[0] == 200
                assert (await call(made, "/update_weights", parts_of(other_dir)[0]))[0] == 200
            monkeypatch.setattr(weights_transfer, "SILENCE_SECONDS", 0.0)
            await done(made, "v2")
        anew = begun and not control.buffers_transfers
        assert "TransferLost: the trainer was silent" in made.weights.report.note
        assert made.supervisor.life == (2 if anew else 1)
        assert list(dict.fromkeys(stream.result().versions)) == ([old] if anew else [old, "v2"])
        assert furthest(stream.result(), recomputed(stream.result(), model_dir, other_dir)) < 1e-3
        answer = await made.stream(PROMPTS[1], 20)
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_a_call_that_hangs_is_given_up(made: Yard, other_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await transferring(made, WeightsTarget(version="v2", path=str(other_dir), transfer=True))
    await call(made, "/start_weight_update")

    async def half() -> AsyncIterator[bytes]:
        yield parts_of(other_dir)[0][:1000]
        monkeypatch.setattr(weights_transfer, "CALL_SECONDS", 0.0)
        await asyncio.Event().wait()

    async with asyncio.TaskGroup() as group:
        hanging = group.create_task(status_of(made, half()))
        await done(made, "v2")
        assert "one call of the trainer lasted" in made.weights.report.note
        assert await hanging == 409


async def test_calls_that_are_refused_keep_nobody_waiting(
    made: Yard, other_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights_transfer, "SILENCE_SECONDS", 0.5)
    await transferring(made, WeightsTarget(version="v2", path=str(other_dir), transfer=True))
    while made.weights.report.phase == "Transferring":
        assert (await call(made, "/update_weights", b"too early"))[0] == 409
    await done(made, "v2")
    assert "the trainer was silent" in made.weights.report.note


async def status_of(made: Yard, body: AsyncIterator[bytes]) -> int:
    async with made.client.post("/update_weights", data=body) as answer:
        return answer.status


async def test_an_engine_that_is_killed_in_the_middle_comes_back_with_what_it_had_and_waits_once_more(
    made: Yard, model_dir: Path, other_dir: Path
) -> None:
    version, pid = made.weights.report.version, pid_of(made.uds)
    await transferring(made, WeightsTarget(version="v2", mode="Pause", path=str(other_dir), transfer=True))
    await call(made, "/start_weight_update")
    await call(made, "/update_weights", parts_of(other_dir)[0])
    os.kill(pid, signal.SIGKILL)
    await made.until(lambda: made.weights.report.phase != "Transferring")
    assert made.weights.report.version == "", "nobody is let in while it is away"
    await made.until(lambda: made.weights.report.phase == "Transferring")
    assert (made.weights.report.version, made.supervisor.life) == (version, 2)
    await send(made, parts_of(other_dir))
    await done(made, "v2")
    answer = await made.stream(PROMPTS[0], 20)
    assert (made.weights.report.note, set(answer.versions)) == ("", {"v2"})
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_another_order_ends_the_wait(made: Yard, other_dir: Path, tmp_path: Path) -> None:
    third = other_weights(other_dir, tmp_path / "third", seed=7)
    await transferring(made, WeightsTarget(version="v2", path=str(other_dir), transfer=True))
    await made.order(WeightsTarget(version="v3", path=str(third)))
    answer = await made.stream(PROMPTS[0], 20)
    assert furthest(answer, recomputed(answer, third, third)) < 1e-3
    assert made.supervisor.life == 1


class Unable(EmbeddedControl):
    def why_no_transfer(self) -> str:
        return "it cannot"


class Anew(EmbeddedControl):
    def why_not_loadable(self, source: Any, now: Any, contents: CheckpointInfo) -> str:
        return "it cannot reload"


@pytest.mark.parametrize(("control", "words"), [(Unable, "it cannot"), (Anew, "it cannot reload")])
async def test_an_engine_that_offers_no_transfer_reads_the_folder_and_says_so(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, control: Any, words: str
) -> None:
    async with yard(embedded(model_dir), tmp_path, certified, control=control) as made:
        await made.order(WeightsTarget(version="v2", path=str(other_dir), transfer=True))
        assert made.weights.report.note == f"NoTransfer: {words}"
        await made.order(WeightsTarget(version="v3", path=str(other_dir), transfer=True))
        assert made.weights.report.note == "NoTransfer: it already had these weights"


async def test_an_engine_that_starts_with_such_an_order_reads_the_folder(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    order = WeightsTarget(version="v2", path=str(other_dir), transfer=True)
    async with yard(embedded(model_dir), tmp_path, certified, order=order) as made:
        assert (made.weights.report.version, made.weights.report.note) == (
            "v2",
            "NoTransfer: it started with the folder",
        )


async def test_another_configuration_is_read_from_its_folder(made: Yard, other_dir: Path, tmp_path: Path) -> None:
    folder = other_weights(other_dir, tmp_path / "third", seed=7)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "transformers_version": "9", "eos_token_id": 7}))
    await made.order(WeightsTarget(version="v2", path=str(folder), transfer=True))
    assert made.weights.report.note == "NoTransfer: config.json differs"


@pytest.mark.parametrize(
    ("args", "offered"),
    [
        ([], False),
        (["--weight-transfer-config", '{"backend": "nccl"}'], True),
        (['--weight_transfer_config={"backend": "ipc"}'], True),
        (["--weight-transfer-config.backend", "nccl"], True),
    ],
)
def test_vllm_offers_transfers_where_it_was_started_for_them(args: list[str], offered: bool) -> None:
    why = VllmControl(None, args).why_no_transfer()  # type: ignore[arg-type]
    assert ("--weight-transfer-config` in spec.engine" in why) != offered
    assert why, "nor without the routes"
