"""Manifests: every mistake is told at once, where it stands, with what one can write instead."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.allocation import AllocationTemplate
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import RolloutPool
from rollyard.kinds.sandbox_template import SandboxTemplate, sandbox_capacity
from rollyard.kinds.schema.yaml import load_manifests
from rollyard.kinds.values.quantity import walltime_seconds

HEAD = "apiVersion: rollyard.dev/v1alpha1\nkind: RolloutPool\nmetadata: {name: swe}\n"
"""Three lines, so that `spec` stands on the fourth."""


def load(text: str) -> RolloutPool:
    [found] = load_manifests(text, "pool.yaml")
    assert isinstance(found, RolloutPool)
    return found


def mistakes(spec: str) -> list[str]:
    """Return the errors of a RolloutPool with this spec, one a line."""
    return refused(HEAD + textwrap.dedent(spec))


def refused(text: str) -> list[str]:
    with pytest.raises(Invalid) as error:
        load_manifests(text, "pool.yaml")
    return str(error.value).splitlines()


def test_yaml_s_traps_are_disarmed() -> None:
    env = '{A: "1", B: yes, C: 0x10, D: 12:30:00, E: 010, F: 2024-01-01, G: on, H: .inf, I: 1_000}'
    found = load(HEAD + f"spec: {{replicas: 2, allocation: {{timeLimit: 12:00:00, env: {env}}}}}")
    assert found.spec.replicas == 2
    assert found.spec.allocation.time_limit == "12:00:00"
    assert list(found.spec.allocation.env.values()) == [
        "1", "yes", "0x10", "12:30:00", "010", "2024-01-01", "on", ".inf", "1_000",
    ]  # fmt: skip


def test_an_unknown_field_is_told_with_the_one_that_was_meant() -> None:
    [line] = mistakes("""\
        spec:
          replicas: 1
          maxAtempts: 3
        """)
    assert line.startswith("pool.yaml:6:3: spec.maxAtempts: unknown field; did you mean `maxAttempts`?; fields here: ")


def test_a_field_in_the_wrong_place_is_told_where_it_belongs() -> None:
    [line] = mistakes("spec: {replicas: 1, timeLimit: '01:00:00'}")
    assert line.startswith("pool.yaml:4:21: spec.timeLimit: unknown field; it belongs to `spec.allocation.timeLimit`")


def test_a_key_given_twice_is_refused() -> None:
    [line] = mistakes("""\
        spec:
          replicas: 1
          suspend: false
          replicas: 2
        """)
    assert line == "pool.yaml:7:3: spec.replicas: is given twice, first on line 5; keep one of them"


def test_all_mistakes_are_told_together_in_order() -> None:
    lines = mistakes("""\
        spec:
          replicaz: 2
          maxAttempts: many
          suspend: yes
          allocation:
            nodes: 0
            timeLimit: 99
            env: {A: 1}
          stages:
            run:
              workers: {min: 5, max: 2}
        ---
        apiVersion: rollyard.dev/v1alpha1
        kind: RolloutPol
        metadata: {name: other}
        """)
    assert [line.split(": ")[:2] for line in lines] == [
        ["pool.yaml:5:3", "spec.replicaz"],
        ["pool.yaml:6:16", "spec.maxAttempts"],
        ["pool.yaml:7:12", "spec.suspend"],
        ["pool.yaml:9:12", "spec.allocation.nodes"],
        ["pool.yaml:10:16", "spec.allocation.timeLimit"],
        ["pool.yaml:11:14", "spec.allocation.env.A"],
        ["pool.yaml:14:16", "spec.stages.run.workers"],
        ["pool.yaml:17:7", "kind"],
    ]
    for line, advice in zip(
        lines,
        [
            "did you mean `replicas`?", 'must be a whole number, not "many"', "write true", "must be at least 1, not 0",
            'write it in quotes: "99"', 'write it in quotes: "1"', "must be at least `min` (5)", "did you mean `RolloutPool`?",
        ],
        strict=True,
    ):  # fmt: skip
        assert advice in line


@pytest.mark.parametrize(
    ("spec", "advice"),
    [
        ("{replicas: 1, autoscaling: {maxReplicas: 3}}", "not both"),
        (
            "{replicas: 1, sandbox: {network: host}}",
            'must be none, not "host" (Network of sandboxes: a loopback of their own. `allowedHosts` and `hostNetwork` give',
        ),
        ("{suspend: true}", "set `replicas` for a fixed size, or `autoscaling`"),
        ("{autoscaling: {minReplicas: 3, maxReplicas: 2}}", "`maxReplicas` must be at least `minReplicas` (3)"),
        ("{replicas: 1, allocation: {extraDirectives: {job-name: x}}}", "Rollyard sets job-name"),
        (
            "{replicas: 1, stages: {run: {workers: {min: 6, max: 8}}}}",
            "at least 1 + 6 + 1 = 8 workers, but an allocation has room for 4 sandboxes: lower `stages.*.workers.min`, or "
            "write `allocation.cpusPerTask` 2 or a `sandbox.cpus` of at most 0.125",
        ),
        (
            "{replicas: 1, allocation: {cpusPerTask: 8, memory: 4G}}",
            "room for 2 sandboxes: lower `stages.*.workers.min`, or write more memory in `allocation` or a `sandbox.memory` "
            "below 2G",
        ),
        (
            "{replicas: 1, sandbox: {cpus: 1, memory: 8G}, allocation: {memory: 16G}}",
            "`allocation.cpusPerTask` 3 or a `sandbox.cpus` of at most 0.333, and more memory in `allocation`",
        ),
        (
            "{replicas: 1, sandbox: {gpus: 2}, allocation: {gpusPerNode: 4}}",
            "room for 2 sandboxes: lower `stages.*.workers.min`, or write `allocation.gpusPerNode` 6 or a smaller "
            "`sandbox.gpus`",
        ),
        (
            '{replicas: 1, resume: never, allocation: {timeLimit: "00:50:00"}}',
            '`allocation.timeLimit`: write "00:50:35" or more, or lower `stages.*.timeoutSeconds`; it must cover '
            "the budgets of the stages (3000 s in all)",
        ),
        ("{replicas: 1, maxGpuHours: 8}", "set `allocation.gpusPerNode`, or leave out `maxGpuHours`"),
    ],
)
def test_contradictions_are_told(spec: str, advice: str) -> None:
    [line] = mistakes(f"spec: {spec}")
    assert advice in line


@pytest.mark.parametrize("stages", ["{}", "{init: {}, run: {workers: {max: 8}}, eval: {workers: {min: 1}}}"])
def test_a_stage_that_leaves_its_budget_out_has_the_default_of_that_stage(stages: str) -> None:
    found = load(HEAD + f"spec: {{replicas: 1, stages: {stages}}}").spec.stages
    assert [s.timeout_seconds for s in (found.init, found.run, found.eval)] == [300, 1800, 900]


def test_the_shortest_walltime_that_is_advised_is_accepted() -> None:
    load(HEAD + 'spec: {replicas: 1, resume: never, allocation: {timeLimit: "00:50:35"}}')


def test_a_pool_whose_rollouts_move_needs_walltime_for_a_turn_or_for_eval() -> None:
    [line] = mistakes('spec: {replicas: 1, allocation: {timeLimit: "00:15:00"}}')
    assert 'write "00:15:35" or more' in line
    assert "it must cover INIT and a turn, or EVAL (900 s in all)" in line
    short = "stages: {init: {timeoutSeconds: 60}, run: {timeoutSeconds: 6000}, eval: {timeoutSeconds: 60}}"
    load(HEAD + f'spec: {{replicas: 1, {short}, allocation: {{timeLimit: "00:03:05"}}}}')
    [line] = mistakes(f'spec: {{replicas: 1, {short}, allocation: {{timeLimit: "00:03:04"}}}}')
    assert "(150 s in all)" in line


def test_a_contradiction_is_told_beside_a_misspelt_field() -> None:
    lines = mistakes("spec: {replicaz: 1, autoscaling: {maxReplicas: 3}}")
    assert len(lines) == 2
    assert "did you mean `replicas`?" in lines[0] + lines[1]
    assert "not both" in lines[0] + lines[1]


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a: [1,\n b", "pool.yaml:2:3: while parsing a flow sequence"),
        ("a: &a [*a]", "pool.yaml:1:1: it is nested too deeply, or an alias contains itself"),
        ("[" * 5000, "pool.yaml:1:1: it is nested too deeply"),
        ("- 1", "pool.yaml:1:1: must be a mapping with apiVersion, kind, metadata and spec, not a list"),
        (HEAD.replace("RolloutPool", "Allocation"), "pool.yaml:2:7: kind: Rollyard creates every Allocation itself"),
        (HEAD, "pool.yaml:1:1: spec: is missing"),
    ],
)
def test_what_is_no_manifest_is_refused_at_its_place(text: str, start: str) -> None:
    assert refused(text)[0].startswith(start)


def test_no_tag_makes_anything_but_plain_values() -> None:
    lines = mistakes("spec: {replicas: 1, allocation: {setup: !!python/object/apply:os.system ['true']}}")
    assert any("pool.yaml:4:41: spec.allocation.setup: the tag" in line for line in lines)


def test_aliases_that_blow_up_are_refused() -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40))
    assert "write it out" in refused(text)[0]


def test_several_documents_and_lists_are_read() -> None:
    pool = HEAD + "spec: {replicas: 1}\n"
    inference = """\
apiVersion: rollyard.dev/v1alpha1
kind: InferencePool
metadata: {name: policy}
spec: {replicas: 1, model: {path: models/tiny}, engine: {embedded: {}}}
"""
    found = load_manifests(f"---\n{pool}---\n---\n{inference}", "f", "/base")
    assert [type(o) for o in found] == [RolloutPool, InferencePool]
    assert isinstance(found[1], InferencePool)
    assert found[1].spec.model.path == str(Path("/base/models/tiny"))
    listed = "apiVersion: v1\nkind: List\nitems:\n" + textwrap.indent(pool, "  ").replace("  api", "- api", 1)
    assert [o.metadata.name for o in load_manifests(listed, "f")] == ["swe"]
    assert load_manifests("", "f") == []


def test_a_mistake_in_a_list_names_its_item() -> None:
    text = f'{{"apiVersion": "v1", "kind": "List", "items": [{{"apiVersion": "{API}", "kind": "RolloutPool"}}]}}'
    with pytest.raises(Invalid) as error:
        load_manifests(text, "f")
    assert {c.field for c in error.value.causes} == {"items[0].metadata", "items[0].spec"}


API = "rollyard.dev/v1alpha1"


@pytest.mark.parametrize(
    ("sandbox", "allocation", "room"),
    [
        ({}, {}, 4),
        ({"cpus": 0.1}, {"cpusPerTask": 6}, 60),
        ({"cpus": 2, "memory": "8G"}, {"cpusPerTask": 32, "memory": "128G"}, 16),
        ({"memory": "2G"}, {"cpusPerTask": 64, "memory": "15G"}, 7),
        ({"cpus": 3}, {"cpusPerTask": 10}, 3),
        ({"gpus": 2}, {"cpusPerTask": 8, "gpusPerNode": 5}, 2),
    ],
)
def test_an_allocation_s_places_are_counted_by_cores_and_by_memory(
    sandbox: dict[str, object], allocation: dict[str, object], room: int
) -> None:
    assert (
        sandbox_capacity(SandboxTemplate.model_validate(sandbox), AllocationTemplate.model_validate(allocation)) == room
    )


def test_a_colon_without_a_space_is_told_on_its_own_line() -> None:
    [line] = mistakes("""\
        spec:
          replicas:0
          allocation: {nodes: 1}
        """)
    assert line == 'pool.yaml:5:3: "replicas:0" has no space after the colon; write "replicas: 0"'
    [line] = mistakes("spec:\n  replicas:0\n")
    assert line.endswith('spec: "replicas:0" has no space after the colon; write "replicas: 0"')


def test_a_merge_key_is_told_as_what_it_is() -> None:
    *_, line = mistakes("spec:\n  <<: {replicas: 1}\n")
    assert line == (
        "pool.yaml:5:3: spec.<<: merge keys are not supported; write the fields here, or use an alias for a whole value"
    )


def test_an_octal_number_is_told_with_the_number_that_one_can_write() -> None:
    [line] = mistakes("spec: {replicas: 010}")
    assert line.endswith("spec.replicas: must be a whole number; write 10 without quotes and leading zeros")


def test_an_empty_field_that_is_required_cannot_be_left_out() -> None:
    [line] = mistakes("spec:\n")
    assert "spec: is empty; write a mapping" in line
    assert "leave" not in line
    [line] = mistakes("spec:\n  allocation:\n")
    assert line.endswith("spec.allocation: is empty; write a mapping, or leave the field out")


@pytest.mark.parametrize("limit", ["01:99:99", "00:60:00", "10:60", "1-24", "1-10:60:00"])
def test_a_walltime_of_99_minutes_after_an_hour_is_refused(limit: str) -> None:
    [line] = mistakes(f"spec: {{replicas: 1, allocation: {{timeLimit: '{limit}'}}}}")
    assert "spec.allocation.timeLimit: write at most 59 minutes and seconds below an hour" in line


@pytest.mark.parametrize(("limit", "seconds"), [("90", 5400), ("90:30", 5430), ("2-12", 216000), ("100:00:00", 360000)])
def test_a_walltime_s_largest_unit_has_no_limit(limit: str, seconds: int) -> None:
    assert walltime_seconds(limit) == seconds
