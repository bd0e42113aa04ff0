"""Specs of the sandboxes of RUN and EVAL: what the pool gives, and what the task asks for in EVAL."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rollyard.core.errors import TaskError
from rollyard.images.named_image import named_image
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.rollout_pool import Stages
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.stage_needs import StageNeeds
from rollyard.kinds.task import Task
from rollyard.kinds.task_evaluator import TaskEvaluator
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.kinds.values.image_reference import ImageReference
from rollyard.kinds.values.quantity import size_bytes
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.tasks.guarded_handler import GuardedHandler

EVAL_DISK_BYTES = 16 << 20
"""Bytes that an EVAL with the agent's files has beyond the limit. An agent may have filled its disk, and the evaluator writes
files too."""


@dataclass(frozen=True)
class SandboxSpecs:
    run: SandboxSpec
    eval: SandboxSpec
    run_seconds: float
    """The pool's time for RUN, or the task's if that is shorter."""
    eval_seconds: float
    """The same for EVAL."""

    @property
    def eval_has_own_image(self) -> bool:
        return self.eval.image != self.run.image


def sandbox_specs(
    task: Task, handler: GuardedHandler, pool: SandboxTemplate, stages: Stages, default: ImageReference | None
) -> SandboxSpecs:
    """Check the task's fields, and return the specs. `default`: the pool's default image.

    Raises Invalid for wrong fields and for an evaluator that needs more than the pool has, TaskError for one that the handler
    cannot have, and ImageNotFound.
    """
    fields, seconds = check_task(task), float(stages.eval.timeout_seconds)
    image = named_image(fields.image) if fields.image else default
    needs, run_seconds = fields.run_needs, float(stages.run.timeout_seconds)
    run = _spec(needs.template(pool), image, needs)
    evaluator = fields.evaluator or TaskEvaluator()
    fields.check_pool(pool, seconds)
    own_sandbox = evaluator != TaskEvaluator(seconds=evaluator.seconds)
    if own_sandbox and not handler.eval_needs_sandbox:
        raise TaskError(
            f"EVAL of task kind {task.kind!r} has no sandbox; of `evaluator` leave out everything but `seconds`"
        )
    template = fields.eval_needs.template(evaluator.template(pool))
    evaluated = _spec(template, named_image(evaluator.image) if evaluator.image else image, fields.eval_needs)
    if handler.eval_from_snapshot(task):
        if evaluated.image != image:
            raise TaskError("EVAL begins with the agent's files, so it needs RUN's image; leave out `evaluator.image`")
        disk = evaluated.limits.disk_bytes + EVAL_DISK_BYTES
        evaluated = replace(evaluated, limits=replace(evaluated.limits, disk_bytes=disk))
    seconds = min(seconds, evaluator.seconds or seconds, fields.eval_needs.seconds or seconds)
    return SandboxSpecs(run, evaluated, min(run_seconds, needs.seconds or run_seconds), seconds)


def _spec(pool: SandboxTemplate, image: ImageReference | None, needs: StageNeeds) -> SandboxSpec:
    return SandboxSpec(
        image=image,
        limits=Limits(cpus=pool.cpus, memory_bytes=size_bytes(pool.memory), disk_bytes=size_bytes(pool.disk)),
        host_network=pool.host_network,
        allowed_hosts=tuple(map(HostPattern.parse, pool.allowed_hosts)),
        gpus=pool.gpus,
        env=needs.env,
        user=needs.user,
        workdir=needs.workdir,
    )
