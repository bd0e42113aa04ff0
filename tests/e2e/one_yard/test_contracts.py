"""A whole Rollyard, as trainers, people and attackers see it. It runs first in this folder: no test here kills anything."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import sqlite3
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
import zstandard
from tokenizers import Tokenizer

from rollyard.client import AsyncClient
from rollyard.core.errors import Conflict, Forbidden, Invalid, NotFound, Unauthorized, error_from_reason
from rollyard.kinds.base import ObjectKey, evolve
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout import RolloutRequest, Status
from rollyard.node.tool_execution import Tools
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox_factory import SandboxFactory
from rollyard.store.base import BlobRef
from rollyard.store.blobs import read_blob
from rollyard.trajectory import Trajectory
from rollyard.trajectory.columns import decode
from rollyard.trust.bearer_tokens import Role, TokenSigner
from tests.support.recompute import differences
from tests.support.small_roots import busybox_root
from tests.support.until import until
from tests.support.yard import MODEL, Yard, requests

pytestmark = [pytest.mark.asyncio(loop_scope="package"), pytest.mark.slow(90)]


@pytest_asyncio.fixture(loop_scope="package", scope="module")
async def ended(served: tuple[Yard, AsyncClient]) -> list[Trajectory]:
    yard, client = served
    return await yard.gather(client, await client.submit(requests(2, 2, n=2, prefix="shared")))


async def test_every_rollout_is_scored_and_says_where_its_time_went(ended: list[Trajectory]) -> None:
    assert len(ended) == 8
    assert all(t.status.scored for t in ended)
    assert sum(t.reward or 0 for t in ended) / len(ended) >= 0.5
    for t in ended:
        assert None not in (t.timings.queued, t.timings.init, t.timings.run, t.timings.eval)
        assert t.turns
        assert all(turn.tool_results for turn in t.turns[:-1])


async def test_the_profile_has_the_turns_and_calls_of_the_trajectories(
    served: tuple[Yard, AsyncClient], ended: list[Trajectory]
) -> None:
    yard, client = served
    found, turns = await client.profile(search={"prefix": "shared"}), [turn for t in ended for turn in t.turns]
    assert found.rollouts == found.profiled == found.matching == len(ended)
    tokens = found.tokens
    assert tokens.thoughts + tokens.calls + tokens.answers == sum(turn.response_length for turn in turns)
    assert tokens.prompt == sum(t.turns[0].prompt_length for t in ended)
    assert tokens.outputs > 0
    assert sum(row.calls for row in found.by_tool) >= sum(len(turn.tool_calls) for turn in turns) > 0
    assert sum(row.failed for row in found.by_tool) == sum(len(turn.failed_calls or []) for turn in turns)
    assert sum(band.turns for band in found.bands) == len(turns)
    assert found.model == pytest.approx(sum(turn.timings["model"] for turn in turns), abs=0.1)
    out, _ = await yard.rollyard("rollouts", "profile", "--prefix", "shared")
    assert f"{len(ended)} ended rollouts" in out


async def test_node_agents_upload_columns(served: tuple[Yard, AsyncClient], ended: list[Trajectory]) -> None:
    store = served[0].data
    with contextlib.closing(sqlite3.connect(f"file:{store / 'rollyard.db'}?mode=ro", uri=True)) as db:
        stored = [json.loads(text) for (text,) in db.execute("SELECT result FROM rollouts WHERE result IS NOT NULL")]
    frames = [read_blob(store / "blobs", BlobRef(*one)) for one in stored]
    assert len(frames) >= len(ended)
    assert all(len(decode(zstandard.decompress(frame))) == 1 for frame in frames)


async def test_recomputed_logprobs_agree_and_the_ids_are_the_engines_own(ended: list[Trajectory]) -> None:
    tokenizer, off = Tokenizer.from_file(str(MODEL / "tokenizer.json")), differences(ended, MODEL)
    assert len(off) >= 100
    assert max(off) < 0.02
    for trajectory in ended:
        # The turns, for people, are what the sampled ids say.
        (segment,) = trajectory.segments
        sampled = [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
        said = tokenizer.decode(sampled, skip_special_tokens=False)
        assert said == "".join(turn.text + "<|im_end|>" for turn in trajectory.turns)


async def test_the_same_id_attaches_and_another_body_is_refused(served: tuple[Yard, AsyncClient]) -> None:
    _, client = served
    (request,) = requests(1, 0, prefix="twice")
    assert await client.submit([request]) == await client.submit([request])
    with pytest.raises(Conflict, match="another body"):
        await client.submit([evolve(request, priority=5)])
    first, again = await client.wait("twice-0"), await client.wait("twice-0")
    assert first == again
    assert sum([v.id == "twice-0" async for v in client.rollouts()]) == 1


async def test_a_stream_resumes_after_its_cursor(served: tuple[Yard, AsyncClient], ended: list[Trajectory]) -> None:
    _, client = served
    seen: list[tuple[int, str]] = []
    async with asyncio.timeout(60):
        async for cursor, trajectory in client.stream():
            seen.append((cursor, trajectory.id))
            if len(seen) == 8:
                break
        async for cursor, trajectory in client.stream(after=seen[4][0]):
            assert (cursor, trajectory.id) == seen[5]
            break
    assert [c for c, _ in seen] == sorted({c for c, _ in seen})


async def test_cancelling_is_final_and_idempotent(served: tuple[Yard, AsyncClient]) -> None:
    _, client = served
    (id,) = await client.submit(requests(0, 1, prefix="cancelled"))
    assert (await client.cancel(id)).status == (await client.cancel(id)).status == Status.CANCELLED
    trajectory = await client.wait(id)
    assert (trajectory.status, trajectory.reward) == (Status.CANCELLED, None)
    with pytest.raises(NotFound):
        await client.cancel("never-was")


async def test_a_bad_submit_says_what_one_can_do(served: tuple[Yard, AsyncClient]) -> None:
    _, client = served
    good = {"kind": "math", "problem": "1+1", "answer": "2"}
    for body, words in (
        ({"pool": "nowhere", "task": good}, "existing ones: demo"),
        ({"pool": "demo", "task": {"kind": "chess"}}, "known ones: code, env, gym, harbor, math"),
        ({"pool": "demo", "task": {"kind": "math", "problem": "x"}}, "answer"),
    ):
        with pytest.raises(Invalid, match=words):
            await client.submit([RolloutRequest.model_validate(body)])


async def test_an_agents_own_hog_and_loop_are_tool_results() -> None:
    """The policy cannot be told to misbehave, so the tools are called as its loop calls them."""
    limits = Limits(cpus=1, memory_bytes=1 << 30, disk_bytes=64 << 20)
    runtime, spec = await asyncio.to_thread(find_runtime), SandboxSpec(image=None, limits=limits)
    async with SandboxFactory(runtime) as sandboxes, await sandboxes.start(spec) as sandbox:
        tools = Tools(["bash", "ipython"], sandbox, 2.0)
        assert "MemoryError" in (await tools.call("ipython", {"code": "x = bytearray(8 << 30)"})).text
        assert "timed out" in (await tools.call("bash", {"command": "while :; do :; done"})).text
        assert "timed out" in (await tools.call("ipython", {"code": "while True: pass"})).text
        assert (await tools.call("bash", {"command": "echo still here"})).text == "still here"
        assert "no tool" in (await tools.call("editor", {})).text


async def test_a_missing_folder_holds_its_own_rollouts_until_it_is_there(
    served: tuple[Yard, AsyncClient], open_folder: Path
) -> None:
    yard, client = served
    image = open_folder / "image"

    def math(image: Path | None) -> RolloutRequest:
        task = {"kind": "math", "problem": "1+1", "answer": "2", **({"image": str(image)} if image else {})}
        return RolloutRequest.model_validate({"pool": "demo", "task": task})

    held, other = [(await client.submit([math(one)]))[0] for one in (image, None)]
    await yard.gather(client, [other])

    async def why() -> str | None:
        waiting = (await client.rollout(held))[0].waiting
        return str(waiting) if waiting is not None and waiting.word == "ImageUnavailable" else None

    assert f"the image {image} cannot be used now: there is no such folder" in await until(why)
    await asyncio.to_thread(busybox_root, image)
    (trajectory,) = await yard.gather(client, [held])
    assert (trajectory.status.scored, trajectory.attempt) == (True, 1)


async def test_an_image_that_can_never_work_fails_the_task_and_says_so(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    task = {"kind": "math", "problem": "1+1", "answer": "2", "image": "/no/such/image.def"}
    request = RolloutRequest.model_validate({"pool": "demo", "task": task})
    (trajectory,) = await yard.gather(client, await client.submit([request]))
    assert (trajectory.status, trajectory.reward) == (Status.FAILED, None)
    assert trajectory.error is not None
    assert trajectory.error.reason == "ImageNotFound"
    assert "rollyard images build /no/such/image.def" in trajectory.error.message


@pytest.mark.parametrize(
    ("wanted", "reason", "says"),
    [
        (
            {"sampling": {"min_p": 0.5}},
            "EndpointRefused",
            "`min_p` is not supported by the embedded engine; leave it out",
        ),
        ({"sampling": {"logprobs": "processed"}}, "EndpointRefused", "ask for `sampling.logprobs: raw`"),
        ({"agent": {"tool_parser": "klingon"}}, "TaskError", "this node has no tool-call parser 'klingon'"),
    ],
)
async def test_what_the_model_server_cannot_do_fails_the_rollout_at_once(
    served: tuple[Yard, AsyncClient], wanted: dict[str, Any], reason: str, says: str
) -> None:
    yard, client = served
    task = {"kind": "math", "problem": "1+1", "answer": "2"}
    request = RolloutRequest.model_validate({"pool": "demo", "task": task, **wanted})
    (trajectory,) = await yard.gather(client, await client.submit([request]))
    assert (trajectory.status, trajectory.reward, trajectory.attempt) == (Status.FAILED, None, 1)
    assert trajectory.error is not None
    assert trajectory.error.reason == reason
    assert says in trajectory.error.message


async def test_a_missing_model_folder_is_a_condition_and_an_event(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    spec = {
        "model": {"path": "/no/such/model", "servedName": "x"},
        "engine": {"embedded": {}},
        "replicas": 1,
        "allocation": {"timeLimit": "00:10:00"},
    }
    broken = {
        "apiVersion": "rollyard.dev/v1alpha1",
        "kind": "InferencePool",
        "metadata": {"name": "broken"},
        "spec": spec,
    }
    key = ObjectKey(kind="InferencePool", namespace="default", name="broken")
    await client.apply(parse_object(broken))
    try:

        async def told() -> bool:
            """The event is written after the condition."""
            conditions = {c.type: c for c in getattr(await client.get(key), "status").conditions}  # noqa: B009
            ready = conditions.get("Ready")
            events, _ = await client.list_objects("Event")
            return (
                ready is not None
                and ready.status == "False"
                and "/no/such/model" in ready.message
                and any("/no/such/model" in getattr(e, "message") for e in events)  # noqa: B009
            )

        await yard.until(told)
    finally:
        await client.delete(key)

        async def gone() -> bool:
            return not any(a.spec.pool.name == "broken" for a in await yard.allocations(client))

        await yard.until(gone)  # the tests below count sockets and read all files


async def test_status_tells_the_truth(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    for kind, name in (("InferencePool", "policy"), ("RolloutPool", "demo")):
        key = ObjectKey(kind=kind, namespace="default", name=name)

        async def is_ready(key: ObjectKey = key) -> bool:
            pool: Any = await client.get(key)
            ready = next(c for c in pool.status.conditions if c.type == "Ready")
            assert ready.observed_generation == pool.status.observed_generation == pool.metadata.generation
            if ready.status == "True":
                assert (pool.status.replicas.desired, pool.status.replicas.ready) == (1, 1)
            return bool(ready.status == "True")

        await yard.until(is_ready)  # on a busy machine an endpoint may miss a heartbeat


async def test_every_listening_socket_speaks_tls_and_asks_for_a_token(served: tuple[Yard, AsyncClient]) -> None:
    yard, _ = served

    def two() -> set[int] | None:
        """The server and a reverse proxy."""
        found = listening(set(yard.processes()))
        return found if len(found) == 2 else None

    ports = await until(two, seen=lambda: listening(set(yard.processes())))
    context = ssl.create_default_context(cafile=str(yard.data / "ca.pem"))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as http:
        for port in ports:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer ry1.x.y"}):
                for path in ("/healthz", "/v1/rollouts", "/v1/models", "/apis", "/metrics", "/v1/node/connect"):
                    async with http.get(f"https://127.0.0.1:{port}{path}", headers=headers) as answer:
                        assert answer.status == 401, (port, path)
            with pytest.raises(aiohttp.ClientError):
                await http.get(f"http://127.0.0.1:{port}/")


async def test_a_token_reaches_no_further_than_its_role(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    folder = next(f for f in (yard.data / "allocations").iterdir() if "-rp-" in f.name)
    token = (folder / "token").read_text()
    context = ssl.create_default_context(cafile=str(yard.data / "ca.pem"))
    url = client.context.current_url()
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context), headers=headers) as http:
        for path in ("/v1/rollouts", "/apis/rollyard.dev/v1alpha1/rolloutpools", "/v1/engine/heartbeat"):
            async with http.get(url + path) as answer:
                body = await answer.json()
                with pytest.raises(Forbidden):
                    raise error_from_reason(answer.status, body["reason"], body["message"])


async def test_an_expired_token_is_told_apart(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    token = TokenSigner.open(yard.data / "keys" / "token.key").issue(Role.ADMIN, "admin", 1.0)
    async with AsyncClient(dataclasses.replace(client.context, token=token, file=None)) as late:
        with pytest.raises(Unauthorized, match="expired"):
            await late.counts()


async def test_no_secret_in_argv_script_or_environment_and_no_file_for_others(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    secrets = {client.context.token} | {f.read_text() for f in yard.data.glob("allocations/*/token")}
    assert len(secrets) >= 3
    for pid in yard.processes():
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):  # it has ended since
                text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
                assert not any(secret in text for secret in secrets), (pid, name)
    for path in (*yard.data.glob("local-slurm/jobs/*/*"), *yard.data.glob("allocations/*/batch.sh")):
        with contextlib.suppress(FileNotFoundError):  # of an allocation that is being removed
            assert not any(secret in path.read_text(errors="replace") for secret in secrets), path
    for path in yard.data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            assert path.stat().st_mode & 0o077 == 0, path


async def test_the_command_line_shows_what_there_is(served: tuple[Yard, AsyncClient]) -> None:
    yard, client = served
    out, _ = await yard.rollyard("get", "rp")
    assert out.splitlines()[0].split()[0] == "NAME"
    assert out.splitlines()[0].split()[-1] == "AGE"
    assert "demo" in out
    assert "AllReady" in (await yard.rollyard("describe", "rolloutpool/demo"))[0]
    assert json.loads((await yard.rollyard("get", "ip", "policy", "-o", "json"))[0])["spec"]["replicas"] == 1
    assert (await yard.rollyard("get", "ip/policy", "-o", "jsonpath={.status.replicas.ready}"))[0] == "1"
    assert "serving" in (await yard.rollyard("logs", "inferencepool/policy"))[0].lower()
    assert "condition met" in (await yard.rollyard("wait", "rp/demo", "--for", "condition=Ready"))[0]
    task = json.dumps({"kind": "math", "problem": "What is 12 + 30?", "answer": "42"})
    assert "reward 1" in (await yard.rollyard("try", task, "--pool", "demo", "--temperature", "0"))[0]
    wrong = {"pool": "demo", "task": json.loads(task) | {"answer": r"42\pi"}, "sampling": {"temperature": 0}}
    (ended,) = await yard.gather(client, await client.submit([RolloutRequest.model_validate(wrong)]))
    assert (ended.reward, ended.notes) == (0.0, [r"the answer 42 is not equal to 42\pi"])
    assert f"    {ended.notes[0]}\n" in (await yard.rollyard("rollouts", "describe", ended.id))[0] + "\n"
    _, failed = await yard.rollyard("get", "rp", "nowhere", code=1)
    assert 'rolloutpools.rollyard.dev "nowhere" not found' in failed


def listening(pids: set[int]) -> set[int]:
    """TCP ports that these processes listen on."""
    inodes = set()
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended since, as children of sandboxes do all the time
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(fd)
                    if target.startswith("socket:["):
                        inodes.add(target[8:-1])
    ports = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports
