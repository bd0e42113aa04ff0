"""`rollyard doctor` about the cluster that it finds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from cluster import Cluster, NewCluster


def doctor(cluster: Cluster, **more: str) -> tuple[int, str]:
    """(exit status, the line about the cluster)."""
    command = [sys.executable, "-m", "rollyard.cli.main", "doctor"]
    done = subprocess.run(
        command, env={**os.environ, **cluster.env, **more}, capture_output=True, text=True, timeout=120
    )
    return done.returncode, next(line for line in done.stdout.splitlines() if line.split()[1] == "cluster")


def test_it_names_what_a_cluster_offers_and_one_that_does_not_answer(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=2)
    status, line = doctor(cluster)
    assert status == 0
    assert line.startswith("OK")
    assert "driver cli, not pyslurm (pyslurm: ModuleNotFoundError: No module named 'pyslurm')" in line
    assert "partitions low, main are up, by default main; 2 of 2 nodes usable" in line
    cluster.run("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=test")
    assert "0 of 2 nodes usable" in doctor(cluster)[1]
    cluster.stop_daemon("slurmctld")
    status, line = doctor(cluster)
    assert status == 1
    assert line.startswith("FAIL")
    assert "does not answer" in line


@pytest.mark.heavy
def test_it_names_the_driver_that_fits(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1, sid=True)
    python = f"{cluster.wrapper[0]} /opt/pyslurm/bin/python"
    assert ", driver pyslurm; partitions" in doctor(cluster, ROLLYARD_PYSLURM_PYTHON=python)[1]
