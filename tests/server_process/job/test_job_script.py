"""The server's own job: which options of sbatch a person may add to its script, and a folder that it cannot use."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.core.errors import BadRequest, Unavailable
from rollyard.server_process.job.job_script import JobOptions, server_script
from rollyard.server_process.main import ServeOptions


def script(**directives: str) -> str:
    options = JobOptions({name.replace("_", "-"): value for name, value in directives.items()})
    return server_script(options, name="rollyard-serve-1", comment="c", log="/data/log", command=["serve"])


@pytest.mark.parametrize(
    "option", ["arra", "clusters", "cluster", "wait", "test-only", "chdir", "nodes", "node", "sig", "signal", "depend"]
)
def test_what_would_make_another_job_of_it_is_refused_also_cut_short(option: str) -> None:
    with pytest.raises(BadRequest, match=f"--sbatch {option}: Rollyard sets "):
        script(**{option: "x"})


def test_where_it_runs_and_what_it_gets_is_the_persons_to_say() -> None:
    lines = script(partition="long", nodelist="n1", gres="shard:1", wait_all_nodes="1", hold="").splitlines()
    for line in ("partition=long", "nodelist=n1", "gres=shard:1", "wait-all-nodes=1", "hold", "nodes=1"):
        assert f"#SBATCH --{line}" in lines


def test_a_data_folder_that_the_job_cannot_use_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match=r"file.* cannot be used: Not a directory"):
        ServeOptions(tmp_path / "file", in_job=True).job_run()
