"""`rollyard export` at a real API: what is in the files is what the server has."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import yaml
from click.testing import CliRunner, Result

from rollyard.cli.main import cli
from rollyard.core.aio import running
from rollyard.kinds.rollout import Status
from rollyard.kinds.task import Task
from rollyard.trajectory import Trajectory
from rollyard.trajectory.parquet import read_parquet
from tests.api.conftest import serving  # noqa: F401
from tests.api.test_batches import client_of
from tests.api.test_rollouts_waiting import pool
from tests.support.outside_api import Api, Serve
from tests.support.played_pool import Played, PlayedPool


async def export(api: Api, folder: Path, *words: str, code: int = 0) -> Result:
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "default"}}],
        "clusters": [{"name": "c", "cluster": {"server": api.url}}],
        "users": [{"name": "u", "user": {"token": api.admin}}],
    }  # fmt: skip
    (folder / "config").write_text(yaml.safe_dump(config))
    command = ["export", *words, "--kubeconfig", str(folder / "config")]
    done = await asyncio.to_thread(CliRunner().invoke, cli, command)
    assert done.exit_code == code, done.output
    return done


async def play(api: Api) -> list[Trajectory]:
    """A batch of groups whose rewards differ, and one rollout that fails. Return all that has ended, in order."""
    await pool(api)
    tasks = [{"kind": "math", "problem": f"{i} + 0 = ?", "answer": str(i)} for i in range(4)]
    body = {"id": "b", "pool": "swe", "n": 2, "target": 2, "tasks": tasks}
    assert (await api.ask("POST", "/v1/batches", body))[0] == 201
    await PlayedPool(api.parts).play(lambda record: Played(reward=float(record.sample_index)))
    assert (await api.ask("POST", "/v1/rollouts", {"id": "bad", "pool": "swe", "task": {"kind": "quiz"}}))[0] == 202
    await PlayedPool(api.parts).play(lambda record: Played(status=Status.FAILED))
    records = await api.store.rollouts.finished(0, 100, "default", None)
    answers = [(await api.ask("GET", f"/v1/rollouts/{record.id}"))[1] for record in records]
    return [Trajectory.model_validate(answer["trajectory"]) for answer in answers]


async def test_rollouts_are_equal_in_every_form(serving: Serve, tmp_path: Path) -> None:  # noqa: F811
    async with serving() as api:
        ended = await play(api)
        assert len(ended) >= 5
        out = tmp_path / "r.parquet"
        done = await export(api, tmp_path, "rollouts", "-o", str(out))
        assert f"{len(ended)} rollouts written" in done.output
        assert [t for columns in read_parquet(out) for t in columns.trajectories()] == ended
        await export(api, tmp_path, "rollouts", "-o", str(tmp_path / "r.jsonl"))
        lines = (tmp_path / "r.jsonl").read_text().splitlines()
        assert [Trajectory.model_validate_json(line) for line in lines] == ended
        shown = await export(api, tmp_path, "rollouts", "--status", "failed", "--format", "jsonl", "-o", "-")
        assert [json.loads(line)["id"] for line in shown.stdout.splitlines()] == ["bad"]
        await export(
            api, tmp_path, "rollouts", "--pool", "swe", "--prefix", "b-", "--format", "atif", "-o", str(tmp_path / "a")
        )
        refused = await export(api, tmp_path, "rollouts", "-o", "r.txt", code=2)
        assert "choose --format for r.txt, or a name that ends in .parquet or .jsonl" in " ".join(
            refused.output.split()
        )
        refused = await export(api, tmp_path, "rollouts", "--format", "parquet", "-o", "-", code=2)
        assert "standard output takes JSON lines only" in refused.output
        documents = {file.stem: json.loads(file.read_text()) for file in (tmp_path / "a").iterdir()}
        assert documents.keys() == {t.id for t in ended if t.id != "bad"}
        assert all(document["schema_version"] == "ATIF-v1.8" for document in documents.values())


async def test_a_batch_has_its_groups_with_their_deliveries(serving: Serve, tmp_path: Path) -> None:  # noqa: F811
    async with serving() as api:
        await play(api)
        out = tmp_path / "b.parquet"
        await export(api, tmp_path, "batches", "b", "-o", str(out))
        samples = [sample for columns in read_parquet(out) for sample in columns.samples]
        assert [(s["batch"], s["delivery"], s["sample_index"]) for s in samples] == [
            ("b", delivery, index) for delivery in (1, 2) for index in (0, 1)
        ]
        (columns,) = read_parquet(out)
        assert [t.id for t in columns.read(Trajectory, extra="ignore")] == [s["id"] for s in samples]


async def test_evaluations_are_equal_in_every_form(serving: Serve, tmp_path: Path) -> None:  # noqa: F811
    """Also a task of which all rollouts have failed, and metadata with other names in each task."""
    metadata: list[dict[str, object]] = [{}, {"π": [1, {"a": None}]}, {"level": "hard"}]
    tasks = [
        Task.model_validate({"kind": "math", "problem": f"{i} + 0?", "answer": str(i), "metadata": about})
        for i, about in enumerate(metadata)
    ]
    lost = tasks[0].digest

    async def play(api: Api) -> None:
        while True:
            await PlayedPool(api.parts).play(
                lambda r: Played(status=Status.FAILED) if lost in r.id else Played(reward=0.25 * r.sample_index)
            )
            await asyncio.sleep(0.01)

    async with serving() as api, client_of(api) as client:
        await pool(api)
        async with running(play(api)):
            for name in ("one", "two"):
                await client.evaluate(tasks, pool="swe", k=2, name=name)
            await client.evaluate(tasks, pool="swe", k=2, name="two", rerun_faulty=True)
        expected = [
            {"evaluation": name, **task.model_dump(mode="json")}
            for name in ("one", "two")
            for task in await client.evaluated_tasks(name)
        ]
        assert [len(row["repeated"]) for row in expected if row["task"] == lost] == [0, 2]
        assert {json.dumps(row["metadata"]) for row in expected} == set(map(json.dumps, metadata))
        for form in ("jsonl", "parquet"):
            done = await export(api, tmp_path, "evaluations", "one", "two", "-o", str(tmp_path / f"e.{form}"))
            assert "6 tasks written" in done.output
        assert [json.loads(line) for line in (tmp_path / "e.jsonl").read_text().splitlines()] == expected
        rows = pq.read_table(tmp_path / "e.parquet").to_pylist()
        objects = ("metadata", "faults")
        assert [row | {name: json.loads(row[name]) for name in objects} for row in rows] == expected
        shown = await export(api, tmp_path, "evaluations", "one", "--format", "jsonl", "-o", "-")
        assert [json.loads(line) for line in shown.stdout.splitlines()] == expected[:3]
        refused = await export(api, tmp_path, "evaluations", "one", "none", "-o", str(tmp_path / "x.parquet"), code=1)
        assert "evaluation 'none' not found" in str(refused.exception)
        assert sorted(path.name for path in tmp_path.iterdir() if "x" in path.name) == []


async def test_html_has_every_rollout_of_a_group_and_ids_where_no_tokenizer_is(serving: Serve, tmp_path: Path) -> None:  # noqa: F811
    async with serving() as api:
        ended = await play(api)
        group = ended[0].group
        assert group is not None
        done = await export(api, tmp_path, "html", "--group", group, "-o", str(tmp_path / "g.html"))
        page = (tmp_path / "g.html").read_text()
        assert page.count("<section>") == 2
        assert f"group {group}" in page
        assert "tokens of" not in done.output, "the pool's tokenizer is there"
        await export(api, tmp_path, "html", "missing", "-o", str(tmp_path / "x.html"), code=1)
        await export(api, tmp_path, "html", "-o", str(tmp_path / "x.html"), code=2)
        assert not (tmp_path / "x.html").exists()


async def test_chosen_rollouts_are_written_and_a_misspelt_pool_names_the_existing_ones(
    serving: Serve,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with serving() as api:
        found = await play(api)
        ended, scored = [t.id for t in found], {t.id for t in found if t.reward is not None}
        out = ("--format", "jsonl", "-o", "-")

        async def ids(*words: str) -> list[str]:
            return [json.loads(line)["id"] for line in (await export(api, tmp_path, *words, *out)).stdout.splitlines()]

        assert await ids("rollouts", ended[1], ended[0]) == [ended[1], ended[0]]
        assert await ids("rollouts", "--limit", "2") == ended[:2]
        assert set(await ids("rollouts", "--since", "1h", "--min-reward", "0")) == scored
        assert len(await ids("rollouts", "--min-reward", "1", "--limit", "1")) == 1
        refused = await export(api, tmp_path, "rollouts", "--pool", "nope", *out, code=1)
        assert "there is no RolloutPool 'nope' in namespace 'default'; existing ones: swe" in str(refused.exception)
        await export(api, tmp_path, "rollouts", "bad", "--pool", "swe", *out, code=2)
        kubeconfig = ("--kubeconfig", str(tmp_path / "config"))
        for command in ("list", "top", "summary"):
            words = ["rollouts", command, "--kind", "mth", *kubeconfig]
            done = await asyncio.to_thread(CliRunner().invoke, cli, words)
            assert (done.exit_code, "kinds of those that have: math, quiz" in done.stderr) == (0, True)
            words = ["rollouts", command, "--pool", "nope", *kubeconfig]
            done = await asyncio.to_thread(CliRunner().invoke, cli, words)
            assert (done.exit_code, done.stdout, "existing ones: swe" in str(done.exception)) == (1, "", True)


async def test_a_reader_that_closes_its_end_of_the_pipe_ends_the_command_quietly(
    serving: Serve,  # noqa: F811
    tmp_path: Path,
) -> None:
    async with serving() as api:
        await play(api)
        await export(api, tmp_path, "rollouts", "--format", "jsonl", "-o", "-")
        reader, writer = os.pipe()
        os.close(reader)
        command = [
            sys.executable,
            "-u",
            "-m",
            "rollyard.cli.main",
            "export",
            "rollouts",
            "--format",
            "jsonl",
            "-o",
            "-",
        ]
        process = await asyncio.create_subprocess_exec(
            *command, "--kubeconfig", str(tmp_path / "config"), stdout=writer, stderr=subprocess.PIPE
        )
        os.close(writer)
        _, told = await process.communicate()
        assert (process.returncode, told) == (1, b"")
