"""Fields of tasks: those that every task may have, and the base of a kind's own model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ConfigDict

from rollyard.kinds.base import WireModel
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.stage_needs import StageNeeds
from rollyard.kinds.task_evaluator import TaskEvaluator
from rollyard.kinds.task_metadata import Metadata
from rollyard.kinds.values.image_reference import ImageName


class CommonFields(WireModel):
    """Fields that a task of every kind may have."""

    model_config = ConfigDict(extra="ignore")

    image: ImageName | None = None
    """Sandbox image. Default: the image of the pool."""
    metadata: Metadata = {}
    """Anything that you want to know about the task later, such as difficulty and source. Rollouts can be listed by it."""
    evaluator: TaskEvaluator | None = None
    """Sandbox of EVAL, where it differs from that of RUN."""

    @property
    def run_needs(self) -> StageNeeds:
        """Needs of RUN's sandbox, beyond what the pool gives."""
        return StageNeeds()

    @property
    def eval_needs(self) -> StageNeeds:
        """Needs of EVAL's sandbox, beyond what `evaluator` says."""
        return StageNeeds()

    def check_pool(self, sandbox: SandboxTemplate, eval_seconds: float) -> None:
        """Raise Invalid with a cause for each need that a pool does not meet. `eval_seconds`: the pool's time for EVAL."""
        if self.evaluator is not None:
            self.evaluator.check(sandbox, eval_seconds)
        for needs in (self.run_needs, self.eval_needs):
            needs.check(sandbox)

    def check_roles(self, roles: Collection[str]) -> None:
        """Raise Invalid if the score needs a model whose role is none of the pool's `roles`."""


class TaskFields(CommonFields):
    """Base of the fields of a task kind: `class HaikuFields(TaskFields)`. Unknown fields are errors.

    The server imports the model's module to check tasks, so the module should import nothing that takes long.
    """

    model_config = ConfigDict(extra="forbid")

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        """Return whether the agent of a task with these fields, which may be wrong or missing, surely has tools. If so, a
        submit is refused while the model's tool calls would not be read. If not, the node agent finds out."""
        return False
