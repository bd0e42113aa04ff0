"""`rollyard doctor` about the cluster that it finds, and about a node of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rollyard.doctor import compute_node
from rollyard.doctor.compute_node import NodeProbeRequest, probe_node
from rollyard.doctor.data_folder import clocks
from rollyard.doctor.finding import Finding, findings
from rollyard.doctor.slurm_cluster import check_config
from rollyard.doctor.slurm_cluster import cluster as look_at_cluster
from rollyard.kinds.allocation import AllocationTemplate
from tests.support import forked_commands
from tests.support.cluster import Cluster, NewCluster

pytestmark = pytest.mark.slow(35)


def doctor(cluster: Cluster, *options: str, **variables: str) -> tuple[int, dict[str, str]]:
    """(exit status, what was asked about -> level and detail)."""
    done = forked_commands.run("doctor", *options, env={**os.environ, **cluster.env, **variables}, seconds=120)
    assert done.stderr == ""
    return done.returncode, {line[6:26].strip(): line[:6] + line[27:] for line in done.stdout.splitlines()}


def test_it_names_what_a_cluster_offers_and_one_that_does_not_answer(new_cluster: NewCluster, tmp_path: Path) -> None:
    cluster = new_cluster(nodes=2, conf=("KillWait=3",))
    status, found = doctor(cluster)
    assert status == 0, found
    assert found["cluster"].startswith("OK")
    assert "by the driver cli; not pyslurm: ModuleNotFoundError: No module named 'pyslurm'" in found["cluster"]
    assert "partitions low, main are up, by default main; 2 of 2 nodes usable" in found["cluster"]
    assert found["KillWait"].startswith("WARN  3 s between TERM and KILL")

    status, found = doctor(cluster, "--node", "--data", str(tmp_path))
    assert status == 0, found
    here = os.uname().nodename
    assert "a sandbox started and ran a command; tasks can remove" in found[f"{here}: sandbox"]
    assert found[f"{here}: network"].startswith("OK")
    assert found[f"{here}: clock"].startswith("OK    within")
    assert list(tmp_path.iterdir()) == []
    assert cluster.run("squeue", "-h", "-t", "pending,running") == ""

    status, found = doctor(cluster, "--node", "--data", str(tmp_path), "--advertise", "nowhere.invalid")
    assert status == 1
    assert found[f"{here}: network"].startswith("FAIL  this node cannot reach nowhere.invalid:")
    assert "name another address or interface with --advertise" in found[f"{here}: network"]

    cluster.run("scontrol", "update", "NodeName=ALL", "State=drain", "Reason=test")
    status, found = doctor(cluster, "--node", "--data", str(tmp_path), "--wait", "3")
    assert "0 of 2 nodes usable" in found["cluster"]
    assert "is PENDING" in found["node"]
    cluster.stop_daemon("slurmctld")
    status, found = doctor(cluster)
    assert status == 1
    assert found["cluster"].startswith("FAIL")
    assert "does not answer" in found["cluster"]


@pytest.mark.heavy
def test_it_names_the_driver_that_fits(new_cluster: NewCluster) -> None:
    cluster = new_cluster(nodes=1, sid=True)
    python = f"{cluster.wrapper[0]} /opt/pyslurm/bin/python"
    assert " by the driver pyslurm; partitions" in doctor(cluster, ROLLYARD_PYSLURM_PYTHON=python)[1]["cluster"]


def test_it_names_slurmrestd_where_there_are_no_commands(
    new_cluster: NewCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = new_cluster(nodes=1, rest=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("ROLLYARD_SLURMRESTD", f"unix:{cluster.env['SLURMRESTD_SOCKET']}")
    (found,) = look_at_cluster()
    assert (found.level, found.what) == ("OK", "cluster")
    assert " by the driver slurmrestd; partitions low, main are up" in found.detail
    answers = [f for f in probe_node(question(tmp_path)) if f.what.endswith(": network")]
    assert [f.level for f in answers] == ["OK"]
    cluster.stop_daemon("slurmrestd")
    (found,) = look_at_cluster()
    assert found.level == "FAIL"
    assert cluster.env["SLURMRESTD_SOCKET"] in found.detail


def question(data: Path) -> NodeProbeRequest:
    return NodeProbeRequest(data, data, AllocationTemplate(time_limit="00:05:00"), advertise=None, wait_seconds=60)


def test_a_job_that_ends_at_once_is_waited_for_until_its_report_must_be_seen(
    new_cluster: NewCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = new_cluster(nodes=1)
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "executable", shutil.which("true"))

    def report_late() -> None:
        cluster.wait_for(lambda: "COMPLETED" in cluster.run("squeue", "-h", "-t", "all", "-o", "%T"))
        (report,) = tmp_path.glob("doctor-*/report.json")
        time.sleep(1.0)  # as a network file system may show it
        report.write_text('{"node": "n1", "findings": [{"level": "OK", "what": "network", "detail": "fine"}]}\n')

    late = threading.Thread(target=report_late)
    late.start()
    assert list(probe_node(question(tmp_path))) == [Finding("OK", "n1: network", "fine")]
    late.join()

    monkeypatch.setattr(compute_node, "REPORT_GRACE_SECONDS", 0.5)
    (silent,) = probe_node(question(tmp_path))
    assert silent.level == "FAIL"
    assert "ended COMPLETED without a report" in silent.detail


def test_a_probe_that_hangs_is_a_failure_of_what_it_asks_about() -> None:
    def hang() -> Finding:
        subprocess.run(["sleep", "60"], timeout=0.1, check=False)
        raise AssertionError

    (found,) = findings([("user namespaces", hang)])
    assert (found.level, found.what) == ("FAIL", "user namespaces")
    assert "timed out after" in found.detail


@pytest.mark.parametrize(
    ("config", "warned"),
    [
        ({"ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/affinity,task/cgroup", "KillWait": "30 sec"}, set()),
        ({"ProctrackType": "proctrack/linuxproc", "TaskPlugin": "task/cgroup"}, {"processes"}),
        (
            {"TaskPlugin": "task/none", "MinJobAge": "2 sec", "MaxArraySize": "8"},
            {"confinement", "MinJobAge", "MaxArraySize"},
        ),
    ],
)
def test_settings_that_matter_are_warned_of(config: dict[str, str], warned: set[str]) -> None:
    assert {found.what for found in check_config(config) if found.level == "WARN"} == warned


def test_a_clock_that_is_off_is_a_failure() -> None:
    assert clocks("clock", 0.4, "this node").level == "OK"
    found = clocks("clock", -90.0, "this node")
    assert found.level == "FAIL"
    assert "this node is 90 s behind this machine" in found.detail
