"""Kubernetes' Python clients and a kopf operator on a real server; each client has a namespace of its own."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from rollyard.core.errors import NotFound
from rollyard.kinds.base import KindObject
from rollyard.kinds.registry import parse_object
from rollyard.kinds.rollout_pool import RolloutPool
from tests.support.idle_proxy import IdleProxy
from tests.support.released import environment
from tests.support.yard import Yard, endpoint

CLIENTS = ("kubernetes_client", "kr8s_client", "lightkube_client")
PROGRAMS = Path(__file__).with_name("kubernetes_programs")
SECONDS = 300.0


def _python() -> Path:
    return environment("kubernetes-clients", "2026.11", "python3.11") / "bin" / "python"


def _pool(namespace: str, name: str) -> KindObject:
    return parse_object({
        "apiVersion": "rollyard.dev/v1alpha1",
        "kind": "RolloutPool",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 0, "inference": {"policy": "p"}},
    })  # fmt: skip


async def _said(program: asyncio.subprocess.Process, word: str) -> str:
    """The program's first line with this word."""
    assert program.stdout is not None
    async with asyncio.timeout(SECONDS):
        while word not in (line := (await program.stdout.readline()).decode()):
            assert line, "it ended"
    return line


async def _true(condition: bool) -> bool:
    return condition


def _variables(yard: Yard, namespace: str) -> dict[str, str]:
    config = str(yard.data / "admin.kubeconfig")
    return {**os.environ, "KUBECONFIG": config, "NAMESPACE": namespace, "HOME": str(yard.folder), "PYTHONPATH": ""}


@pytest.mark.heavy
async def test_each_client_leads_a_pool_through_its_life(yard: Yard) -> None:
    python = _python()

    async def run(program: str) -> str:
        process = await asyncio.create_subprocess_exec(
            python, PROGRAMS / f"{program}.py", env=_variables(yard, program.replace("_", "-")),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            async with asyncio.timeout(SECONDS):
                return (await process.communicate())[0].decode()
        except TimeoutError:
            process.kill()
            return f"{program} did not end: {(await process.communicate())[0].decode()}"

    outputs = await asyncio.gather(*map(run, CLIENTS))
    assert [out for out in outputs if not out.endswith("done\n")] == []


@pytest.mark.heavy
async def test_watches_in_a_loop_see_each_change_once_over_restarts_and_an_idle_proxy(yard: Yard) -> None:
    """One program is connected directly, and one through a proxy that cuts idle connections. The server stops, and is killed;
    each time pools change before the programs are back."""
    python, admin = _python(), yard.data / "admin.kubeconfig"
    port = urlsplit(endpoint(yard.data)).port or 0
    async with IdleProxy(port).serving() as proxy, yard.client() as client:
        through = yard.folder / "proxy.kubeconfig"
        through.write_text(admin.read_text().replace(f":{port}", f":{proxy.port}"))
        programs = []
        for config in (admin, through):
            programs.append(
                await asyncio.create_subprocess_exec(
                    python, PROGRAMS / "watch_loop.py", env={**_variables(yard, "w"), "KUBECONFIG": str(config)},
                    stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
                )
            )  # fmt: skip

        async def change(name: str, earlier: str | None = None) -> None:
            if earlier is not None:
                await client.delete(RolloutPool.key_of("w", earlier))
            for pool in (f"{name}0", f"{name}1"):
                await client.apply(_pool("w", pool))
            await client.patch(RolloutPool.key_of("w", f"{name}1"), {"metadata": {"labels": {"team": "b"}}})
            await client.delete(RolloutPool.key_of("w", f"{name}0"))

        try:
            first = [await _said(program, "listed") for program in programs]
            await change("a")
            await yard.until(lambda: _true(proxy.cuts > 0))
            yard.stop()
            yard.start()
            await change("b", "a1")
            yard.kill()
            yard.start()
            await change("c", "b1")

            async def one_left() -> bool:
                pools, _ = await client.list_objects("RolloutPool", "w")
                return [pool.metadata.name for pool in pools] == ["c1"]

            await yard.until(one_left)
            await client.apply(_pool("w", "end"))
            async with asyncio.timeout(SECONDS):
                said = [(await program.communicate())[0].decode().splitlines() for program in programs]
        finally:
            for program in programs:
                if program.returncode is None:
                    program.kill()
                    await program.wait()
    assert [json.loads(line) for line in first] == [{"listed": {}}] * 2
    seen = [[event for line in lines if "type" in (event := json.loads(line))] for lines in said]
    assert seen[0] == seen[1], "a cut connection loses no event"
    for events in seen:
        versions = [int(event["version"]) for event in events]
        assert versions == sorted(set(versions)), "no event twice"
        for name in ("a0", "a1", "b0", "b1", "c0", "c1"):
            kinds = [event["type"] for event in events if event["name"] == name]
            assert (kinds[0], kinds.count("ADDED")) == ("ADDED", 1)
            assert kinds.count("DELETED") == (0 if name == "c1" else 1)


@pytest.mark.heavy
async def test_the_handlers_of_a_kopf_operator_see_a_pool_come_change_and_go(yard: Yard) -> None:
    command = [str(_python()), "-m", "kopf", "run", str(PROGRAMS / "kopf_operator.py"), "--namespace", "ops"]
    operator = await asyncio.create_subprocess_exec(
        *command, env=_variables(yard, "ops"), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said: list[str] = []

    async def says(line: str) -> None:
        assert operator.stdout is not None
        async with asyncio.timeout(SECONDS):
            while line not in said:
                read = await operator.stdout.readline()
                assert read, "\n".join(said)
                said.append(read.decode().strip())

    key = RolloutPool.key_of("ops", "watched")
    try:
        async with yard.client() as client:
            await client.apply(_pool("ops", "watched"))
            await says("created watched")
            await client.patch(key, {"metadata": {"labels": {"team": "a"}}})
            await says("relabelled watched {'team': 'a'}")
            assert "kopf.zalando.org/KopfFinalizerMarker" in (await client.get(key)).metadata.finalizers
            await client.delete(key)
            await says("deleted watched")

            async def gone() -> bool:
                try:
                    await client.get(key)
                except NotFound:
                    return True
                return False

            await yard.until(gone)
    finally:
        operator.kill()
        await operator.wait()
    assert [line for line in said if "ERROR" in line or "Traceback" in line] == []
