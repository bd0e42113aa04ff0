"""A template's sbatch directives: none may leave its line or replace one of ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollyard.core.errors import Invalid
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.schema.validation import validate_object
from rollyard.kinds.values.hostlist import expand
from rollyard.kinds.values.sbatch_directives import OWN_OPTIONS
from rollyard.slurm.batch_script import batch_script, directives


def pool(**allocation: Any) -> RolloutPool:
    body = {"kind": "RolloutPool", "metadata": {"name": "p"}, "spec": {"replicas": 1, "allocation": allocation}}
    found = validate_object({"apiVersion": "rollyard.dev/v1alpha1", **body})
    assert isinstance(found, RolloutPool)
    return found


@pytest.mark.parametrize(
    ("allocation", "field", "message"),
    [
        ({"constraint": "a\n#SBATCH --uid=0"}, "constraint", "write it on one line"),
        ({"exclude": ["n1", "n2\r"]}, "exclude[1]", "write it on one line"),
        ({"exclude": ["n[4-1]"]}, "exclude[0]", "write names of nodes, or ranges such as n[1-4,7]"),
        ({"extraDirectives": {"begin": "a\u2028b"}}, "extraDirectives", "begin: write it on one line"),
        ({"extraDirectives": {"x y": "1"}}, "extraDirectives", "is not an option of sbatch"),
        ({"extraDirectives": {"arra": "0-9"}}, "extraDirectives", "Rollyard sets array"),
        ({"extraDirectives": {"gres": "gpu:64"}}, "extraDirectives", "write the field `gres`"),
        ({"extraDirectives": {"part": "x"}}, "extraDirectives", "write the field `partition`"),
        ({"env": {"A": "a\0b"}}, "env", "without NUL characters"),
        ({"env": {"MÜ": "1"}}, "env", "letters (a to z), digits and '_'"),
        ({"env": {"SLURM_JOB_ID": "1"}}, "env", "leave it out"),
        ({"env": {"UID": "0"}}, "env", "bash sets this variable"),
        ({"setup": "a\r\nb"}, "setup", "Unix line ends"),
        ({"account": "a b"}, "account", "without spaces"),
        ({"partition": "a,,b"}, "partition", "single commas"),
        ({"qos": "-x"}, "qos", "do not start it with a dash"),
        ({"gres": "gpu:a100:x"}, "gres", "name:count or name:type:count"),
        ({"gres": "gpu:1", "gpusPerNode": 1}, "", "both ask for GPUs"),
        ({"gpuType": "a100"}, "", "write `gpusPerNode` too"),
        ({"memory": "4096"}, "memory", "Slurm would read 4096 as 4096M"),
        ({"memory": "4G", "memoryPerCpu": "1G"}, "", "not both"),
        ({"nodelist": ["n[1-2]"]}, "", "all 2 nodes of `nodelist`, but `nodes` is 1"),
        ({"nodelist": ["n1"], "exclude": ["n[1-3]"]}, "", "n1: in `nodelist` and in `exclude`"),
        ({"scratch": "tmp"}, "scratch", "write an absolute path"),
        ({"within": "7", "partition": "main", "qos": "x"}, "", "uses job 7 as it is; leave out `partition`, `qos`"),
        ({"within": "7; id"}, "within", "^[1-9][0-9]*$"),
        ({"nodes": 2}, "", "a node agent runs on one node; write `replicas: 2` instead"),
    ],
)
def test_what_cannot_stand_in_a_script_is_refused_by_its_field(
    allocation: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(Invalid, match="spec") as refused:
        pool(**allocation)
    (cause,) = refused.value.causes
    if field:
        assert cause.field == f"spec.allocation.{field}"
    assert message in cause.message


@given(
    st.dictionaries(
        st.sampled_from(["begin", "comment", "mail-user", "switches", "wckey", "priority", "arr", "job-n", "q"]),
        st.text(max_size=12),
        max_size=3,
    ),
    st.text(max_size=12),
    st.text(max_size=12),
)
def test_whatever_is_let_through_leaves_what_is_ours_as_it_is(
    options: dict[str, str], constraint: str, setup: str
) -> None:
    try:
        template = pool(extraDirectives=options, constraint=constraint, setup=setup).spec.allocation
    except Invalid:
        return
    text = batch_script(template, name="n", comment="c", log_path="/d/log", directory="/d", command=["x"]).text
    found = directives(text)
    ours = {"job-name": "n", "comment": "c", "output": "/d/log", "open-mode": "append", "no-requeue": ""}
    assert {option: value for option, value in found.items() if option in OWN_OPTIONS} == {
        **ours,
        "ntasks-per-node": "1",
    }
    assert {option: found[option] for option in options} == options
    assert found["constraint"] == constraint


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-10],gpu1", ["n08", "n09", "n10", "gpu1"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
        ("n[1-2],n2", ["n1", "n2"]),
    ],
)
def test_lists_of_nodes_are_written_out(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["", "n1,", "n[1", "n]1", "n[1-]", "n[2-1]", "n[]", "a b", "n[0-99999999]", "n[0-999][0-999]"]
)
def test_what_is_no_list_of_nodes_is_said_to_be_none(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as n|more than 65536 nodes"):
        expand(text)
