"""The sandbox of EVAL is what its task asks for, within what the pool has."""

from __future__ import annotations

from typing import Any, cast

import pytest

from rollyard.core.errors import Invalid, RollyardError, TaskError
from rollyard.kinds.rollout_pool import Stages
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import parse_image
from rollyard.node.sandbox_specs import EVAL_DISK_BYTES, SandboxSpecs, sandbox_specs
from rollyard.tasks.base import Handler
from rollyard.tasks.code.handler import CodeHandler
from rollyard.tasks.guarded_handler import GuardedHandler
from rollyard.tasks.math import MathHandler

POOL = SandboxTemplate(cpus=2, memory="2G", disk="1G", allowed_hosts=["pypi.org"])
RUN, EVAL = "docker://r.example/run:1", "docker://r.example/eval:1"


def specs(task: dict[str, Any], pool: SandboxTemplate = POOL, handler: Any = CodeHandler) -> SandboxSpecs:
    fields = {"problem": "?", "solution": "/s.py", "cases": [{"call": "f()", "expect": "1"}], "image": RUN}
    if handler is MathHandler:
        fields = {"problem": "?", "answer": "1"}
    kind = "code" if handler is CodeHandler else "math"
    made = GuardedHandler(kind, cast(Handler, handler()))
    return sandbox_specs(Task(kind=kind, **fields, **task), made, pool, Stages(), None)


def test_without_an_evaluator_eval_has_the_sandbox_of_run() -> None:
    found = specs({})
    assert (found.eval, found.eval_seconds, found.eval_has_own_image) == (found.run, 900.0, False)
    assert specs({"evaluator": {}}) == found


def test_an_evaluator_has_its_own_image_limits_network_and_time() -> None:
    limits = {"memory": "512M", "disk": "16M", "cpus": 0.5, "seconds": 60}
    found = specs({"evaluator": {"image": EVAL, "network": False, **limits}})
    assert found.run == specs({}).run
    assert (found.eval.image, found.eval.allowed_hosts, found.eval_seconds) == (parse_image(EVAL), (), 60.0)
    assert (found.eval.limits.memory_bytes, found.eval.limits.disk_bytes, found.eval.limits.cpus) == (
        1 << 29,
        1 << 24,
        0.5,
    )
    assert specs({"evaluator": {"network": True}}).eval == found.run
    assert specs({"evaluator": {"network": False}}, SandboxTemplate(host_network=True)).eval.host_network is False


@pytest.mark.parametrize(
    ("evaluator", "cause"),
    [
        ({"memory": "3G"}, "task.evaluator.memory: write at most 2G, the pool's `sandbox.memory`"),
        ({"disk": "2G"}, "task.evaluator.disk: write at most 1G"),
        ({"cpus": 2.5}, "task.evaluator.cpus: write at most 2, the pool's"),
        ({"gpus": 1}, "task.evaluator.gpus: write at most 0"),
        ({"seconds": 901}, "task.evaluator.seconds: write at most 900, the pool's `stages.eval.timeoutSeconds`"),
        ({"memory": "lots"}, "write a size such as 512M"),
        ({"ram": "1G"}, "task.evaluator.ram"),
    ],
)
def test_what_the_pool_does_not_have_is_refused(evaluator: dict[str, Any], cause: str) -> None:
    with pytest.raises(Invalid, match=cause):
        specs({"evaluator": evaluator})


def test_a_network_needs_a_pool_that_has_one() -> None:
    with pytest.raises(Invalid, match=r"task\.evaluator\.network: the pool's sandboxes reach no host"):
        specs({"evaluator": {"network": True}}, SandboxTemplate())


def test_the_agents_files_need_the_image_that_they_were_made_in() -> None:
    found = specs({"eval_from_snapshot": True, "evaluator": {"image": RUN, "disk": "16M"}})
    assert found.eval.limits.disk_bytes == (16 << 20) + EVAL_DISK_BYTES
    with pytest.raises(TaskError, match="it needs RUN's image; leave out `evaluator"):
        specs({"eval_from_snapshot": True, "evaluator": {"image": EVAL}})


def test_a_kind_without_a_sandbox_in_eval_can_have_less_time_and_nothing_else() -> None:
    assert specs({"evaluator": {"seconds": 5}}, handler=MathHandler).eval_seconds == 5.0
    with pytest.raises(RollyardError, match="EVAL of task kind 'math' has no sandbox"):
        specs({"evaluator": {"image": EVAL}}, handler=MathHandler)
