"""The slurmrestd driver beyond what every driver does: tokens, restarts, and what its fields mean to Slurm."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import json
import os
import re
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from deploy.slurm.throwaway import rest
from rollyard.core.errors import Invalid, SlurmUnreachable, SubmitRefused
from rollyard.kinds.values.job_state import JobState
from rollyard.slurm.base import BatchScript
from rollyard.slurm.choose_driver import choose_driver
from rollyard.slurm.rest.address import TOKEN_FILE_VARIABLE, URL_VARIABLE, SlurmCredentials, SlurmrestdAddress, claims
from rollyard.slurm.rest.codec import array_tasks
from rollyard.slurm.rest.job_fields import TABLE, job_fields
from rollyard.slurm.rest.rest_driver import RestDriver
from rollyard.slurm.rest.version_choice import negotiate
from tests.support.cluster import Cluster, NewCluster
from tests.support.driver_cases import HERE, SID, Clusters, Ground, open_cli, open_rest

pytestmark = pytest.mark.slow(40)
VERSIONS = [pytest.param(HERE, id="22.05"), pytest.param(SID, id="26.05", marks=pytest.mark.heavy)]


@pytest.fixture(params=VERSIONS)
def rest_cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    return clusters(**request.param)


Open = Callable[[SlurmrestdAddress, SlurmCredentials], RestDriver]


@pytest.fixture
async def opened() -> AsyncIterator[Open]:
    """Drivers that are closed in the end: a large queue leaves one with a child."""
    async with contextlib.AsyncExitStack() as stack:

        def new(address: SlurmrestdAddress, identity: SlurmCredentials) -> RestDriver:
            driver = RestDriver(address, identity, limit_seconds=10.0)
            stack.push_async_callback(driver.close)
            return driver

        yield new


def port_of(cluster: Cluster) -> SlurmrestdAddress:
    return SlurmrestdAddress.parse(cluster.env["SLURMRESTD_URL"])


async def test_a_token_opens_the_port_and_a_wrong_one_is_no_empty_queue(
    rest_cluster: Cluster, opened: Open, tmp_path: Path
) -> None:
    ground = Ground(opened(port_of(rest_cluster), SlurmCredentials(rest_cluster.token())), tmp_path, rest_cluster)
    id = await ground.submit("sleep 100")
    assert (await ground.state(id, JobState.RUNNING)).owner == "rollyard:server:uid"
    for wrong in (SlurmCredentials(), SlurmCredentials("a.b.c"), SlurmCredentials(rest_cluster.token()[:-2])):
        stranger = opened(port_of(rest_cluster), wrong)
        with pytest.raises(SlurmUnreachable, match="scontrol token"):
            await stranger.list_jobs()
        with pytest.raises(SlurmUnreachable, match="scontrol token"):
            await stranger.submit(ground.script("true"))
    await ground.close()


async def test_an_expired_token_says_so_and_a_renewed_file_is_read_again(
    rest_cluster: Cluster, opened: Open, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(f"SLURM_JWT={rest_cluster.token(seconds=1)}\n")
    driver = opened(port_of(rest_cluster), SlurmCredentials(token_file=file))
    async with asyncio.timeout(60):
        while time.time() < float(str(claims(file.read_text())["exp"])):
            await asyncio.sleep(0.1)
    with pytest.raises(SlurmUnreachable, match=rf"expired at .* write a new one to {file}"):
        await driver.list_jobs()
    with pytest.raises(SlurmUnreachable, match="expired"):
        await driver.cancel(["1"])
    file.write_text(rest_cluster.token())
    assert isinstance((await driver.list_jobs()).jobs, dict)
    file.unlink()
    with pytest.raises(SlurmUnreachable, match="no token for slurmrestd"):
        await driver.list_jobs()


async def test_a_slurmrestd_that_was_killed_is_asked_again_once_it_is_back(
    new_cluster: NewCluster, tmp_path: Path
) -> None:
    cluster = new_cluster(nodes=1, **HERE)
    ground = Ground(open_rest(cluster, 2.0), tmp_path, cluster)
    id = await asyncio.to_thread(cluster.submit, "sleep 1000", "--job-name=rollyard-t-0")
    await ground.state(id, JobState.RUNNING)
    cluster.stop_daemon("slurmrestd", signal.SIGKILL)
    for call in (ground.driver.list_jobs, ground.driver.site, lambda: ground.driver.cancel([id])):
        with pytest.raises(SlurmUnreachable, match=re.escape(cluster.env["SLURMRESTD_SOCKET"])):
            await call()
    cluster.start_daemon("slurmrestd")
    await asyncio.to_thread(cluster.wait_for, lambda: rest.answers(cluster.daemons.place))
    assert (await ground.state(id, JobState.RUNNING)).id == id
    cluster.freeze("slurmrestd")
    began = time.monotonic()
    with pytest.raises(SlurmUnreachable, match="did not answer within 2 s"):
        await ground.driver.list_jobs()
    assert time.monotonic() - began < 60
    cluster.thaw("slurmrestd")
    await ground.close()


async def test_it_is_chosen_by_name_and_where_there_are_no_commands(
    clusters: Clusters, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = clusters(**HERE)
    monkeypatch.delenv(URL_VARIABLE, raising=False)
    with pytest.raises(Invalid, match=f"set {URL_VARIABLE} to the address of slurmrestd"):
        await choose_driver("rest", tmp_path)
    token = tmp_path / "token"
    token.write_text(cluster.token())
    monkeypatch.setenv(URL_VARIABLE, cluster.env["SLURMRESTD_URL"])
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(token))
    for word, path in (("rest", os.environ["PATH"]), ("auto", str(tmp_path))):
        monkeypatch.setenv("PATH", path)
        driver = await choose_driver(word, tmp_path)
        assert driver.name == "slurmrestd"
        assert set((await driver.site()).nodes) == {"n1", "n2", "n3", "n4"}
        await driver.close()


def test_where_slurmrestd_is_may_be_a_socket_or_a_url() -> None:
    assert SlurmrestdAddress.parse("unix:/run/restd.sock") == SlurmrestdAddress("http://slurmrestd", "/run/restd.sock")
    assert SlurmrestdAddress.parse("unix:///run/restd.sock").socket == "/run/restd.sock"
    assert SlurmrestdAddress.parse("https://slurm.example:6820/").url == "https://slurm.example:6820"
    for wrong in (
        *("", "unix:run/restd.sock", "slurm.example:6820", "ftp://slurm.example"),
        *("http://[::1", "http://slurm.example:rest", "http://slurm.example:99999"),
    ):
        with pytest.raises(Invalid, match="write unix:/path"):
            SlurmrestdAddress.parse(wrong)


OPENAPI = b'{"paths": {"/slurm/v0.0.38/jobs": {}}}'
JOBS = b'{"jobs": [], "errors": []}'


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n",
            "",
        ),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%bHTTP/1.1 500 once more\r\n", ""),
        (b"HTTP/1.0 200 OK\r\nA: %d\r\n\r\n%b", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9%d\r\n\r\n%b", "bytes read"),
        (
            b"HTTP/1.1 502 Bad Gateway\r\nA: %d%.0b\r\n\r\n<html>no</html>",
            "answered 502 to /openapi/v3: '<html>no</html>'",
        ),
        (b"SSH-2.0-%d%.0b\r\n", "is not HTTP"),
        (b"%.0d%.0b", "bytes read"),
    ],
)
async def test_an_answer_is_read_whole_or_counts_as_none(
    answer: bytes, words: str, opened: Open, tmp_path: Path
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.readuntil(b"\r\n\r\n")
        body = OPENAPI if b"/openapi/v3" in asked else JOBS
        writer.write(answer % (len(body), body))
        writer.close()

    async with await asyncio.start_unix_server(serve, tmp_path / "s"):
        driver = opened(SlurmrestdAddress.parse(f"unix:{tmp_path}/s"), SlurmCredentials())
        if words:
            with pytest.raises(SlurmUnreachable, match=re.escape(words)):
                await driver.list_jobs()
        else:
            assert (await driver.list_jobs()).jobs == {}


def test_tasks_that_wait_in_one_record_are_told_apart_and_a_cut_list_is_no_list() -> None:
    assert list(array_tasks("0-2,7,10-16:3%2")) == [0, 1, 2, 7, 10, 13, 16]
    with pytest.raises(ValueError, match="SLURM_BITSTR_LEN=0"):
        list(array_tasks("1,3,5,7,..."))


@pytest.mark.parametrize(
    ("served", "spoken"),
    [
        ((36, 37, 38), 38),
        ((38, 39, 40), 40),
        ((39, 40, 41), 41),
        ((42, 43, 44, 45), 45),
        ((45, 46, 47), 45),
        ((47, 48), 47),
    ],
)
def test_the_newest_version_that_was_tried_is_spoken(served: tuple[int, ...], spoken: int) -> None:
    found = negotiate({"paths": {f"/slurm/v0.0.{version}/jobs/": {} for version in served}})
    assert (found.codec.version, found.accounting) == (f"v0.0.{spoken}", None)


def test_a_server_without_a_version_of_ours_is_named_with_what_it_serves() -> None:
    with pytest.raises(SlurmUnreachable, match=r"serves v0.0.36, v0.0.37; .* --cluster cli"):
        negotiate({"paths": {f"/slurm/v0.0.{version}/jobs": {} for version in (36, 37)}})


async def test_an_option_that_the_server_would_pass_over_in_silence_is_refused() -> None:
    codec = negotiate(
        {
            "paths": {"/slurm/v0.0.40/jobs/": {}},
            "components": {"schemas": {"v0.0.40_job_desc_msg": {"properties": {"name": {}, "tasks": {}}}}},
        }
    ).codec
    script = "#!/bin/bash\n#SBATCH --job-name=a\n"
    assert codec.job(BatchScript("a", "", script, "/d"), {})["job"]["name"] == "a"
    with pytest.raises(SubmitRefused, match=r"slurmrestd v0.0.40 does not support --qos.*--cluster cli"):
        codec.job(BatchScript("a", "", f"{script}#SBATCH --qos=high\n", "/d"), {})


@pytest.mark.parametrize("column", [0, 1])
def test_a_number_of_nodes_that_is_no_number_is_refused(column: int) -> None:
    with pytest.raises(SubmitRefused, match=r"'--nodes=1k': write a whole number"):
        job_fields({"nodes": "1k"}, column, "v0.0.40", None)


async def test_what_no_table_knows_is_refused_by_its_name(rest_cluster: Cluster, tmp_path: Path) -> None:
    ground = Ground(open_rest(rest_cluster, 10.0), tmp_path, rest_cluster)
    for option, value in (("hint", "nomultithread"), ("export", "A=b")):
        with pytest.raises(SubmitRefused, match=f"--{option}"):
            await ground.submit("true", extra_directives={option: value})
    await ground.close()


async def test_a_job_may_have_the_environment_of_a_login_on_its_node(clusters: Clusters, tmp_path: Path) -> None:
    cluster = clusters(**HERE)  # not 26.05: whoever logs in there finds another tree
    ground = Ground(open_rest(cluster, 10.0), tmp_path, cluster)
    id = await ground.submit("echo ${ROLLYARD_ALLOCATION-none} ${SLURM_JWT-none}", extra_directives={"export": "NONE"})
    assert (await ground.ended(id)).state is JobState.COMPLETED
    assert (tmp_path / "job.log").read_text() == f"{tmp_path} none\n"
    await ground.close()


SBATCHS_OWN = {"SLURM_SUBMIT_HOST", "SLURM_PRIO_PROCESS", "SLURM_TRES_PER_TASK", "SLURM_SUBMIT_DIR", "OLDPWD", "PATH"}
OF_ONE_JOB = {
    "SLURM_JOB_ID",
    "SLURM_JOBID",
    "SLURM_TASK_PID",
    "SLURM_JOB_START_TIME",
    "SLURM_JOB_END_TIME",
    "SLURM_JOB_SLUID",
}


async def test_a_job_sees_what_sbatch_would_show_it(rest_cluster: Cluster, tmp_path: Path) -> None:
    template = {"cpus_per_task": 2, "memory": "200M", "gpus_per_node": 1}
    seen = []
    for number, open_driver in enumerate((open_cli, open_rest)):
        ground = Ground(open_driver(rest_cluster, 30.0), tmp_path, rest_cluster)
        id = await ground.submit(f"env -0 > {number}; umask", **template)
        assert (await ground.ended(id)).state is JobState.COMPLETED
        seen.append(set((tmp_path / str(number)).read_text().split("\0")))
        await ground.close()
    differ = {pair.partition("=")[0] for pair in seen[0] ^ seen[1]} - SBATCHS_OWN - OF_ONE_JOB
    assert {name for name in differ if not name.startswith(MPI)} == set()
    first, second = (tmp_path / "job.log").read_text().split()
    assert first == second


MPI = ("HYDRA_", "I_MPI_", "OMPI_", "PRTE_")
"""For the mpirun of others, since 25.05."""


# what the table of options means to Slurm

TOGETHER = {
    "tmp": {"hold": ""},
    "gpus-per-node": {"hold": ""},
    "ntasks-per-node": {"nodes": "2"},
    "time-min": {"time": "01:30:00"},
    "mem-per-gpu": {"gpus": "1"},
    "cpus-per-gpu": {"gpus": "1"},
    "gpu-bind": {"gpus": "1"},
    "gpu-freq": {"gpus": "1"},
    "gpus-per-task": {"ntasks": "2"},
    "gpus-per-socket": {"sockets-per-node": "1"},
    "gres-flags": {"gres": "gpu:1"},
    "mail-user": {"mail-type": "END"},
}
"""Other options that an option needs. A held job may request resources that no node has."""
VALUES = {
    "account": ["x"],
    "partition": ["low"],
    "qos": ["x"],
    "job-name": ["a b"],
    "comment": ['it\'s "a b" | 100 %'],
    "wckey": ["w"],
    "nodes": ["2", "1-2"],
    "ntasks": ["3"],
    "ntasks-per-node": ["1", "2"],
    "ntasks-per-core": ["1"],
    "ntasks-per-socket": ["1"],
    "cpus-per-task": ["3"],
    "mincpus": ["2"],
    "cores-per-socket": ["2"],
    "sockets-per-node": ["1"],
    "threads-per-core": ["1"],
    "core-spec": ["1"],
    "mem": ["2G", "0", "300", "2048K"],
    "mem-per-cpu": ["300M"],
    "mem-per-gpu": ["300M"],
    "tmp": ["10"],
    "gres": ["gpu:1"],
    "gpus": ["3"],
    "gpus-per-node": ["2", "a:1"],
    "gpus-per-socket": ["1"],
    "gpus-per-task": ["1"],
    "cpus-per-gpu": ["2"],
    "gpu-bind": ["closest"],
    "gpu-freq": ["high"],
    "gres-flags": ["enforce-binding", "disable-binding"],
    "bb": ["x"],
    "network": ["x"],
    "nodelist": ["n1", "n[2-3],n1"],
    "exclude": ["n1", "n[2-3],n1"],
    "exclusive": ["", "user", "mcs"],
    "oversubscribe": [""],
    "overcommit": [""],
    "contiguous": [""],
    "spread-job": [""],
    "use-min-nodes": [""],
    "switches": ["1", "1@2:00"],
    "distribution": ["block", "cyclic:block"],
    "reboot": [""],
    "time": ["01:30:00", "0-00:00:01", "2-3", "90"],
    "time-min": ["10"],
    "begin": ["2040-02-02T00:00:00"],
    "hold": [""],
    "deadline": ["2041-01-01T00:00:00"],
    "dependency": ["afterany:1"],
    "kill-on-invalid-dep": ["yes", "no"],
    "array": ["0-3", "0-6:2%2"],
    "nice": ["100"],
    "priority": ["100"],
    "signal": ["USR1@120", "B:USR1@120"],
    "requeue": [""],
    "no-requeue": [""],
    "no-kill": [""],
    "wait-all-nodes": ["1", "0"],
    "output": ["/tmp/%j.out"],
    "error": ["/tmp/%j.err"],
    "input": ["/dev/zero"],
    "open-mode": ["append", "truncate"],
    "mail-type": ["END,FAIL"],
    "mail-user": ["a@b.c"],
    "acctg-freq": ["10"],
    "cpu-freq": ["high"],
}
"""Values to try, for each option that can be tried on these clusters."""
NOT_TRIED = {"reservation", "licenses", "constraint", "prefer", "mcs-label", "cluster-constraint"}
"""Refused where there is no such thing."""
PASSING = re.compile(
    r"(?s)(JobId|ArrayJobId|SubmitTime|EligibleTime|AccrueTime|LastSchedEval|StartTime|EndTime|Priority|Command|WorkDir"
    r"|AllocNode:Sid|SubmitLine|Scheduler|SLUID|OOMKillStep|TresPerTask)=.*|Reason=(?!JobHeld).*"
)
"""Fields that differ between any two jobs, and those that sbatch sets for itself."""


def test_every_option_of_the_table_is_tried() -> None:
    assert VALUES.keys() | NOT_TRIED == TABLE.keys()


def held(cluster: Cluster) -> dict[str, set[str]]:
    """Map each job's id to the fields that do not differ between any two jobs."""
    found = {}
    for text in cluster.run("scontrol", "show", "job").split("\n\n"):
        id = text.partition("=")[2].split()[0]
        text = re.sub(rf"(?<=slurm-){id}|(?<=/){id}(?=\.)", "ID", text)
        words = re.split(r"\s+(?=[A-Z][\w/:]*=)", text.strip())
        found[id] = {word for word in words if not PASSING.fullmatch(word)}
    return found


async def test_an_option_means_to_slurmrestd_what_it_means_to_sbatch(rest_cluster: Cluster, tmp_path: Path) -> None:
    driver = open_rest(rest_cluster, 10.0)
    refused, pairs = set(), {}
    for option, values in VALUES.items():
        for value in values:
            options = {"job-name": "x", "begin": "2040-01-01T00:00:00", **TOGETHER.get(option, {}), option: value}
            words = [f"--{name}={text}" if text else f"--{name}" for name, text in options.items()]
            lines = [f"#SBATCH --{name}" + (f"={json.dumps(text)}" if text else "") for name, text in options.items()]
            script = BatchScript("x", "", "\n".join(["#!/bin/bash", *lines, "true", ""]), str(tmp_path))
            try:
                ours = (await driver.submit(script))[0].partition("_")[0]
            except SubmitRefused:
                refused.add(f"{option}={value}")
                continue
            path = tmp_path / "script"
            path.write_text("#!/bin/bash\ntrue\n")
            theirs = await asyncio.to_thread(
                rest_cluster.run, "sbatch", "--parsable", f"--chdir={tmp_path}", *words, str(path)
            )
            pairs[" ".join(words)] = (ours, theirs)
    jobs = held(rest_cluster)
    different = {
        words: (jobs[ours] - jobs[theirs], jobs[theirs] - jobs[ours])
        for words, (ours, theirs) in pairs.items()
        if jobs[ours] != jobs[theirs]
    }
    await asyncio.to_thread(rest_cluster.run, "scancel", "-u", getpass.getuser(), "--name=x,a b")
    assert not different, "\n".join(f"{k}: {v}" for k, v in different.items())
    assert refused == REFUSED[rest_cluster.wrapper != ()]


REFUSED = {
    False: {"network=x", "overcommit=", "contiguous=", "switches=1", "switches=1@2:00", "reboot=", "signal=B:USR1@120"},
    True: set(),
}
