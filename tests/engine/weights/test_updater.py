"""Other weights for an engine that runs: a real process behind the real door, under requests, killed and misled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rollyard.engine.weights import verification as module
from rollyard.engine.weights.embedded_control import EmbeddedControl
from rollyard.engine.weights.source import WeightsSource, folder_checksum
from rollyard.kinds.base import evolve
from rollyard.model_folder.checkpoint_info import CheckpointInfo
from rollyard.wire.engine import WeightsTarget
from tests.support.live_weights import other_weights
from tests.support.weights_yard import (
    PROMPTS,
    WAIT_SECONDS,
    Yard,
    certified,
    embedded,
    furthest,
    made,
    other_dir,
    pid_of,
    recomputed,
    shown,
    yard,
)

__all__ = ["certified", "made", "other_dir"]  # fixtures
pytestmark = pytest.mark.slow(120)
MODES = ["Drain", "Pause", "Abort"]


# an order


@pytest.mark.parametrize("mode", MODES)
async def test_each_token_has_the_version_that_made_it(made: Yard, mode: Any, model_dir: Path, other_dir: Path) -> None:
    old = made.weights.report.version
    async with asyncio.TaskGroup() as group:
        streams = [group.create_task(made.stream(p, 200 if mode == "Drain" else 3000, after=50)) for p in PROMPTS]
        whole = group.create_task(made.whole(PROMPTS[0], 400))
        await made.under_way(len(PROMPTS), 20)
        await made.order(WeightsTarget(version="v2", mode=mode, path=str(other_dir)))
    answers = [task.result() for task in streams]
    for answer in answers:
        assert furthest(answer, recomputed(answer, model_dir, other_dir)) < 1e-3
        assert len(answer.versions) == len(answer.ids) > 0
    versions = {tuple(dict.fromkeys(answer.versions)) for answer in answers}
    if mode == "Pause":
        assert versions == {(old, "v2")}
        assert all(a.finish_reason is None for a in answers), "nothing was interrupted"
        assert min(shown(answers, model_dir, other_dir, by) for by in (-16, 16)) > 1e-2
    else:
        assert versions == {(old,)}
        assert {a.finish_reason for a in answers} == {"length" if mode == "Drain" else "abort"}
    answer, _, said = whole.result()
    if spans := said.get("rollyard_weights"):
        assert mode == "Pause"
        assert [span["version"] for span in spans] == [old, "v2"]
        assert (spans[0]["start"], spans[0]["end"], spans[1]["end"]) == (0, spans[1]["start"], len(answer.ids))
        assert furthest(answer, recomputed(answer, model_dir, other_dir, spans[1]["start"])) < 1e-3
    else:
        assert answer.said == old
        assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3
    later, headers, _ = await made.whole(PROMPTS[1], 20)
    assert headers["X-Rollyard-Weights-Version"] == "v2"
    assert furthest(later, recomputed(later, other_dir, other_dir)) < 1e-3, "the prefix of the old weights is gone"


async def test_a_request_that_comes_during_a_drain_waits_and_is_answered_by_the_new_weights(
    made: Yard, other_dir: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        first = group.create_task(made.stream(PROMPTS[0], 3000))
        await made.under_way(1, 10)
        made.weights.set_target(WeightsTarget(version="v2", path=str(other_dir)))
        await made.until(lambda: made.weights.report.phase == "Draining")
        late = group.create_task(made.stream(PROMPTS[1], 20))
        await made.until(lambda: made.proxy._in_flight == 2)
        first.cancel()
    assert set(late.result().versions) == {"v2"}
    assert furthest(late.result(), recomputed(late.result(), other_dir, other_dir)) < 1e-3


async def test_an_order_that_is_repeated_is_done_once_and_the_same_weights_take_another_name_at_once(
    made: Yard, model_dir: Path
) -> None:
    pid, checksum = pid_of(made.uds), made.weights.report.checksum
    order = WeightsTarget(version="v0", path=str(model_dir), checksum=checksum)
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(made.stream(PROMPTS[0], 300))
        await made.under_way(1, 10)
        await made.order(order)
        made.weights.set_target(order.model_copy())
        assert made.weights.report.phase == ""
    assert set(stream.result().versions) <= {checksum, "v0"}
    assert (made.weights.report.version, made.weights.report.checksum, pid_of(made.uds)) == ("v0", checksum, pid)


async def test_an_engine_that_is_killed_comes_back_with_the_weights_of_the_last_order(
    made: Yard, other_dir: Path
) -> None:
    await made.order(WeightsTarget(version="v2", path=str(other_dir)))
    os.kill(pid_of(made.uds), signal.SIGKILL)
    await made.until(lambda: not made.weights.proven)
    assert made.weights.report.version == ""
    await made.until(lambda: made.weights.proven)
    answer = await made.stream(PROMPTS[0], 20)
    assert (made.weights.report.version, set(answer.versions)) == ("v2", {"v2"})
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_an_engine_that_is_killed_while_it_changes_its_weights_gets_them_all_the_same(
    made: Yard, other_dir: Path
) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(lenient(made.stream(PROMPTS[0], 3000)))
        await made.under_way(1, 10)
        made.weights.set_target(WeightsTarget(version="v2", path=str(other_dir)))
        await made.until(lambda: made.weights.report.phase == "Draining")
        os.kill(pid_of(made.uds), signal.SIGKILL)
        await made.until(lambda: made.weights.report.version == "v2")
    answer = await made.stream(PROMPTS[0], 20)
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def lenient(answer: Any) -> None:
    with contextlib.suppress(aiohttp.ClientError):
        await answer


class Unable(EmbeddedControl):
    """Like an engine that cannot take other weights while it runs."""

    def why_not_loadable(self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo) -> str:
        return "it cannot"


def overwrite(folder: Path, other: Path) -> None:
    shutil.copy(other / "model.safetensors", folder / "new")
    os.replace(folder / "new", folder / "model.safetensors")


async def test_an_engine_that_is_killed_does_not_serve_what_was_written_over_its_weights_under_their_version(
    made: Yard, other_dir: Path, tmp_path: Path
) -> None:
    latest, third = tmp_path / "latest", other_weights(other_dir, tmp_path / "third", seed=7)
    shutil.copytree(other_dir, latest)
    order = WeightsTarget(version="v2", path=str(latest))
    await made.order(order)
    overwrite(latest, third)
    os.kill(pid_of(made.uds), signal.SIGKILL)
    await made.until(lambda: made.weights.report.phase == "Failed")
    assert f"ChecksumMismatch: {latest} has checksum {folder_checksum(third)}" in made.weights.report.error
    async with made.client.post("/v1/completions", json=made.body(PROMPTS[0], 5)) as refused:
        assert (refused.status, made.weights.report.version) == (503, "")
    overwrite(latest, other_dir)
    await made.order(evolve(order, attempt=2))
    answer = await made.stream(PROMPTS[0], 20)
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3
    overwrite(latest, third)
    os.kill(pid_of(made.uds), signal.SIGKILL)
    await made.until(lambda: made.weights.report.phase == "Failed")
    await made.order(WeightsTarget(version="v3", path=str(latest)))
    answer = await made.stream(PROMPTS[0], 20)
    assert set(answer.versions) == {"v3"}
    assert furthest(answer, recomputed(answer, third, third)) < 1e-3


async def test_a_pools_own_model_that_was_written_over_has_another_version(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    own = tmp_path / "own"
    shutil.copytree(model_dir, own)
    async with yard(embedded(own), tmp_path, certified) as made:
        before = made.weights.report.version
        overwrite(own, other_dir)
        os.kill(pid_of(made.uds), signal.SIGKILL)
        await made.until(lambda: made.weights.report.version not in ("", before))
        assert made.weights.report.version == made.weights.report.checksum == folder_checksum(own)
        answer = await made.stream(PROMPTS[0], 20)
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


@pytest.mark.parametrize("control", [EmbeddedControl, pytest.param(Unable, marks=pytest.mark.long)])
async def test_a_proof_counts_only_for_the_process_that_gave_it(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, monkeypatch: pytest.MonkeyPatch, control: Any
) -> None:
    async with yard(embedded(model_dir), tmp_path, certified, control=control) as made:
        lives, compute = made.supervisor, module.reference_logprobs

        def killed(source: WeightsSource, prompt: Sequence[int], sampled: Sequence[int]) -> list[float] | None:
            """After the answers of the new weights and before they are judged, another process takes its place."""
            monkeypatch.setattr(module, "reference_logprobs", compute)
            os.kill(pid_of(made.uds), signal.SIGKILL)
            replaced.wait(WAIT_SECONDS)
            return compute(source, prompt, sampled)

        replaced = threading.Event()
        monkeypatch.setattr(module, "reference_logprobs", killed)
        made.weights.set_target(WeightsTarget(version="v2", path=str(other_dir)))
        await made.until(lambda: module.reference_logprobs is compute)
        await made.until(lambda: not lives.health.ready)
        await made.until(lambda: lives.health.ready)
        replaced.set()
        await made.until(lambda: made.weights.report.version == "v2" and made.weights.report.phase == "")
        answer = await made.stream(PROMPTS[0], 20)
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_an_engine_starts_with_the_weights_that_are_ordered_and_takes_its_tokenizer_from_the_pool(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(other_dir / name, bare / name)
    order = WeightsTarget(version="v9", path=str(bare), checksum=folder_checksum(bare))
    async with yard(embedded(model_dir), tmp_path, certified, order=order) as made:
        assert (made.weights.report.version, made.weights.report.checksum) == ("v9", order.checksum)
        assert made.supervisor.life == 1
        answer = await made.stream(PROMPTS[0], 20)
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_without_the_ordered_weights_it_does_not_start_until_there_are_some(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    order = WeightsTarget(version="v9", path=str(tmp_path / "gone"))
    async with yard(embedded(model_dir), tmp_path, certified, order=order) as made:
        assert (made.supervisor.life, made.weights.report.phase) == (0, "Failed")
        assert "ModelMissing" in made.weights.report.error
        await made.order(WeightsTarget(version="v10", path=str(other_dir)))


async def test_an_order_that_is_lifted_leaves_an_engine_that_has_not_started_with_the_pools_own_model(
    model_dir: Path, tmp_path: Path, certified: Any
) -> None:
    order = WeightsTarget(version="v9", path=str(tmp_path / "gone"))
    async with yard(embedded(model_dir), tmp_path, certified, order=order) as made:
        made.weights.set_target(None)
        await made.until(lambda: made.weights.proven)
        assert (made.weights.report.version, made.weights.report.error) == (folder_checksum(model_dir), "")
        made.weights.set_target(order)
        await made.until(lambda: made.weights.report.phase == "Failed")
        made.weights.set_target(None)
        assert made.weights.report.attempt == order.attempt, "what failed stays known while there is something to serve"


async def test_the_same_version_from_another_folder_or_with_another_content_is_loaded(
    made: Yard, other_dir: Path, tmp_path: Path
) -> None:
    third = other_weights(other_dir, tmp_path / "third", seed=7)
    await made.order(WeightsTarget(version="v2", path=str(third)))
    await made.order(order := WeightsTarget(version="v2", path=str(other_dir), attempt=2))
    await made.until(
        lambda: made.weights.report.checksum == folder_checksum(other_dir) and made.weights.report.phase == ""
    )
    answer = await made.stream(PROMPTS[0], 20)
    assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3
    other = evolve(order, checksum=folder_checksum(third), attempt=3)
    await made.order(other, "Failed")
    assert "ChecksumMismatch" in made.weights.report.error
    assert made.weights.report.checksum == folder_checksum(other_dir), "it serves what it had"
    assert made.supervisor.life == 1


@pytest.mark.parametrize("mode", ["Drain", pytest.param("Pause", marks=pytest.mark.long)])
async def test_weights_that_answer_as_the_old_ones_do_are_proven_by_an_engine_that_is_started_on_them(
    made: Yard, model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any
) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 0)  # as for a model of which nothing can be computed
    again = tmp_path / "again"
    shutil.copytree(model_dir, again)
    relabel(again)
    version = made.weights.report.version
    async with asyncio.TaskGroup() as group:
        stream = group.create_task(made.stream(PROMPTS[0], 200 if mode == "Drain" else 3000))
        await made.under_way(1, 10)
        await made.order(WeightsTarget(version="v2", mode=mode, path=str(again)))
    assert (made.weights.report.checksum, made.supervisor.life) == (folder_checksum(again), 2)
    assert stream.result().finish_reason == ("length" if mode == "Drain" else "abort")
    assert set(stream.result().versions) == {version}
    assert set((await made.stream(PROMPTS[0], 20)).versions) == {"v2"}


def relabel(folder: Path) -> None:
    """The same numbers in a file of another content."""
    raw = (folder / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    head = {**json.loads(raw[8 : 8 + size]), "__metadata__": {"step": "0"}}
    new = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])


# what is refused


def damage(folder: Path, kind: str) -> str | None:
    """A checksum to order, where that is what is wrong."""
    config = json.loads((folder / "config.json").read_text())
    match kind:
        case "checksum":
            return "0" * 12
        case "architecture":
            (folder / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
        case "missing":
            (folder / "model.safetensors").unlink()
        case "cut":
            raw = (folder / "model.safetensors").read_bytes()
            (folder / "model.safetensors").write_bytes(raw[: len(raw) // 2])
        case "shape":
            raw = (folder / "model.safetensors").read_bytes()
            size = int.from_bytes(raw[:8], "little")
            head = json.loads(raw[8 : 8 + size])
            name = "model.embed_tokens.weight"
            head[name]["shape"] = [head[name]["shape"][0] // 2, head[name]["shape"][1] * 2]
            new = json.dumps(head).encode()
            (folder / "model.safetensors").write_bytes(len(new).to_bytes(8, "little") + new + raw[8 + size :])
    return None


async def test_what_is_not_what_was_ordered_is_refused_and_the_engine_not_touched(
    made: Yard, other_dir: Path, tmp_path: Path
) -> None:
    version, life = made.weights.report.version, made.supervisor.life
    for kind, words in (
        ("checksum", "ChecksumMismatch"),
        ("architecture", 'WrongArchitecture: model_type is "llama"'),
        ("missing", "ModelMissing"),
        ("shape", "WrongShape: model.embed_tokens.weight is"),
    ):
        folder = tmp_path / kind
        shutil.copytree(other_dir, folder)
        made.answers.clear()
        async with asyncio.TaskGroup() as group:
            stream = group.create_task(made.stream(PROMPTS[0], 200))
            await made.under_way(1, 5)
            await made.order(WeightsTarget(version=kind, path=str(folder), checksum=damage(folder, kind)), "Failed")
        assert words in made.weights.report.error
        assert (stream.result().finish_reason, set(stream.result().versions)) == ("length", {version})
        assert (made.weights.report.version, made.supervisor.life) == (version, life)
    await made.order(WeightsTarget(version="v3", path=str(other_dir)))


async def test_a_bad_folder_fails_its_own_update_and_the_next_update_begins_at_once(
    made: Yard, other_dir: Path, tmp_path: Path
) -> None:
    fifo, endless, deep, slow = (
        Path(shutil.copytree(other_dir, tmp_path / name)) for name in ("fifo", "endless", "deep", "slow")
    )
    for folder in (fifo, endless):
        (folder / "model.safetensors").unlink()
    os.mkfifo(fifo / "model.safetensors")
    (endless / "model.safetensors").symlink_to("/dev/zero")
    (deep / "config.json").write_text("[" * 100_000)
    for folder, words in (
        (fifo, "is a fifo or a device"),
        (endless, "is a fifo or a device"),
        (deep, "nested too deeply"),
    ):
        await made.order(WeightsTarget(version=folder.name, path=str(folder)), "Failed")
        await made.until(lambda words=words: words in made.weights.report.error)
    for number in range(100):  # 100 GiB, of which none takes room on the disk
        (slow / f"{number}.bin").touch()
        os.truncate(slow / f"{number}.bin", (1 << 30) - 1)
    made.weights.set_target(WeightsTarget(version="slow", path=str(slow)))
    await made.until(lambda: made.weights._state.step == "Reading")
    await made.order(WeightsTarget(version="v2", path=str(other_dir)))
    assert (made.weights.report.version, made.supervisor.life) == ("v2", 1)


async def test_an_engine_that_cannot_start_on_the_weights_of_an_update_says_so_and_takes_others(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    llama = Path(shutil.copytree(other_dir, tmp_path / "llama"))
    config = json.loads((llama / "config.json").read_text())
    (llama / "config.json").write_text(json.dumps({**config, "model_type": "llama"}))
    async with yard(
        embedded(model_dir), tmp_path, certified, order=WeightsTarget(version="v1", path=str(llama))
    ) as made:
        await made.until(lambda: made.weights.report.phase == "Failed")
        assert "use engine.vllm" in made.weights.report.error
        made.weights.set_target(None)  # the update has failed, and the pool has no version yet
        await made.until(lambda: made.weights.proven)
        assert made.weights.report.version == folder_checksum(model_dir)


async def test_files_that_are_cut_short_leave_the_engine_with_the_weights_it_had(
    made: Yard, model_dir: Path, other_dir: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(other_dir, folder)
    damage(folder, "cut")
    version = made.weights.report.version
    await made.order(WeightsTarget(version="v2", path=str(folder)), "Failed")
    assert "cut short" in made.weights.report.error
    await made.until(lambda: made.weights.proven)
    answer = await made.stream(PROMPTS[0], 20)
    assert set(answer.versions) == {version}
    assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3


class Misled(EmbeddedControl):
    """Loads what it is told and then something else, as a reload does that leaves a part of the old weights."""

    wrong: Path

    async def load(self, source: WeightsSource, now: WeightsSource | None) -> None:
        await super().load(WeightsSource("", "", self.wrong) if now is not None else source, now)


@pytest.mark.parametrize(
    ("wrong", "mode"),
    [
        ("old", "Pause"),
        ("third", "Drain"),
        pytest.param("third", "Pause", marks=pytest.mark.long),
        pytest.param("third", "Abort", marks=pytest.mark.long),
    ],
)
async def test_a_reload_that_went_wrong_is_found_and_none_of_its_tokens_gets_out(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, mode: Any, wrong: str
) -> None:
    class Control(Misled):
        pass

    Control.wrong = model_dir if wrong == "old" else other_weights(model_dir, tmp_path / "third", seed=3)
    async with yard(embedded(model_dir), tmp_path, certified, control=Control) as made:
        version = made.weights.report.version
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(made.stream(p, 200 if mode == "Drain" else 3000)) for p in PROMPTS]
            await made.under_way(len(PROMPTS), 20)
            await made.order(WeightsTarget(version="v2", mode=mode, path=str(other_dir)), "Failed")
        assert "ProbeFailed" in made.weights.report.error
        for answer in (task.result() for task in streams):
            assert (answer.finish_reason, set(answer.versions)) == ("length" if mode == "Drain" else "abort", {version})
            assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3
        await made.until(lambda: made.weights.proven)
        answer = await made.stream(PROMPTS[0], 20)
        assert (made.weights.report.version, made.weights.report.phase, set(answer.versions)) == (
            version,
            "Failed",
            {version},
        )
        assert furthest(answer, recomputed(answer, model_dir, model_dir)) < 1e-3


@pytest.mark.parametrize("mode", [pytest.param("Drain", marks=pytest.mark.long), "Pause"])
async def test_an_engine_that_cannot_reload_is_started_anew_and_hands_back_what_runs(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any, mode: Any
) -> None:
    async with yard(embedded(model_dir), tmp_path, certified, control=Unable) as made:
        version, pid = made.weights.report.version, pid_of(made.uds)
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(made.stream(p, 200 if mode == "Drain" else 3000)) for p in PROMPTS]
            await made.under_way(len(PROMPTS), 20)
            await made.order(WeightsTarget(version="v2", mode=mode, path=str(other_dir)))
        assert pid_of(made.uds) != pid
        for answer in (task.result() for task in streams):
            assert (answer.finish_reason, set(answer.versions)) == ("length" if mode == "Drain" else "abort", {version})
        answer = await made.stream(PROMPTS[0], 20)
        assert set(answer.versions) == {"v2"}
        assert furthest(answer, recomputed(answer, other_dir, other_dir)) < 1e-3


async def test_an_engine_that_does_not_start_on_the_new_weights_is_started_on_the_old_ones(
    model_dir: Path, other_dir: Path, tmp_path: Path, certified: Any
) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(other_dir, folder)
    damage(folder, "cut")
    async with yard(embedded(model_dir), tmp_path, certified, control=Unable) as made:
        version = made.weights.report.version
        await made.order(WeightsTarget(version="v2", path=str(folder)), "Failed")
        assert "LoadFailed: exit code 2" in made.weights.report.error
        assert "cut short" in made.weights.report.error
        await made.until(lambda: made.weights.proven)
        answer = await made.stream(PROMPTS[0], 20)
        assert (made.weights.report.version, set(answer.versions)) == (version, {version})


async def test_an_order_to_go_back_ends_a_failure(made: Yard, model_dir: Path, tmp_path: Path) -> None:
    checksum = made.weights.report.checksum
    await made.order(WeightsTarget(version="v1", path=str(model_dir)))
    await made.order(WeightsTarget(version="v2", path=str(tmp_path / "gone")), "Failed")
    await made.order(WeightsTarget(version="v1", path=str(model_dir), checksum=checksum))
    assert (made.weights.report.error, made.supervisor.life) == ("", 1)
