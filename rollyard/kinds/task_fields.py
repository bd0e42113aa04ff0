"""Fields of the built-in task kinds. At the submit, the server checks these fields and refuses a wrong task."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from typing import Any, Literal, Self

import pydantic
from pydantic import Field, JsonValue, field_validator, model_validator

from rollyard.core.errors import Cause, Invalid
from rollyard.kinds.base import WireModel
from rollyard.kinds.rollout import Task


class MathTask(WireModel):
    """Problem with one answer. The answer is compared as mathematics, not as text."""

    problem: str = Field(min_length=1)
    answer: str = Field(min_length=1)
    """Reference answer, such as 42 or \\frac{1}{2}."""
    image: str | None = None
    """Sandbox image. Default: the image of the pool."""


class CodeCase(WireModel):
    call: str
    """Python expression that uses the solution's definitions, such as f(3). If it compares with a constant, as
    f(3) == 9, only f(3) runs in the sandbox."""
    expect: str = Field(max_length=16_000)
    """Python literal that the value of `call` must equal. The literal never enters a sandbox."""

    @field_validator("expect")
    @classmethod
    def _literal(cls, value: str) -> str:
        try:
            ast.literal_eval(value)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError("write a Python literal, such as 9, 'a' or [1, 2]") from None
        return value


class CodeTask(WireModel):
    """Task to write a file. Hidden cases score the file in a fresh sandbox."""

    problem: str = Field(min_length=1)
    solution: str = Field(pattern=r"^/")
    """Absolute path of the file that the agent has to write."""
    cases: list[CodeCase] = Field(min_length=1, max_length=1000)
    files: dict[str, str] = {}
    """Absolute path -> text of files that exist when the agent starts."""
    case_seconds: float = Field(default=10.0, gt=0, le=600)
    """Longest time of one case, in seconds."""
    relative_tolerance: float = Field(default=0.0, ge=0, lt=1)
    """Accepted difference from an expected float, as a share of the expected float. 0: floats are compared exactly."""
    absolute_tolerance: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Accepted difference from an expected float. Either of the two tolerances is enough."""
    eval_from_snapshot: bool = False
    """True: the cases run with all files that the agent's sandbox had changed, such as further modules and installed
    packages. False: they run with `files` and the solution alone."""
    image: str | None = None
    """Sandbox image. Default: the image of the pool."""


class EnvTask(WireModel):
    """Environment with `reset` and `step`. Its observations are user messages, and its rewards are the turns' rewards."""

    framework: Literal["class", "gem", "openenv"]
    """class: a Python class. gem: an environment of GEM. openenv: a running server of OpenEnv."""
    env: str = Field(min_length=1)
    """class: `module:Class`. gem: an id, such as game:GuessTheNumber-v0. openenv: the server's URL."""
    seed: int | None = Field(default=0, ge=0)
    """Seed of `reset`. All rollouts of a group, and all attempts, begin with the same seed. Null: `reset` gets no seed."""
    arguments: dict[str, JsonValue] = {}
    """Keyword arguments of the class or of `gem.make`. openenv: further fields of the reset."""
    python: str | None = Field(default=None, pattern=r"^/")
    """Absolute path of the Python interpreter in which the environment is installed. Default: the node agent's Python, or
    python3 of the sandbox. Not for openenv."""
    where: Literal["node", "sandbox"] = "node"
    """node: the environment runs beside the node agent. sandbox: it runs in the rollout's sandbox, and the agent has no
    tools."""
    files: dict[str, str] = {}
    """Path in the sandbox -> text of files that are there when the environment and the agent start."""
    system: str | None = None
    """System prompt. Default: none."""
    tools: list[Literal["bash", "ipython", "editor"]] = []
    """Tools in the rollout's sandbox. A turn with a tool call is not an action of the environment."""
    observation_role: Literal["user", "tool"] = "user"
    """Role of the messages with observations, except the first. Some templates drop earlier thoughts when a user speaks."""
    step_seconds: float = Field(default=60.0, gt=0, le=3600)
    """Longest time of one step. A longer step counts as an infrastructure failure."""
    action_field: str = "message"
    """openenv: name of the field of the action that gets the turn's text."""
    observation_field: str | None = None
    """openenv: name of the field of the observation that the model sees. Default: the whole observation, as JSON."""
    image: str | None = None
    """Sandbox image. Default: the image of the pool."""

    @model_validator(mode="after")
    def _env_of_the_framework(self) -> Self:
        if self.framework == "class" and not _CLASS.fullmatch(self.env):
            raise ValueError("with `framework: class`, `env` is `module:Class`, such as my_games.words:Hangman")
        if self.framework == "openenv" and not self.env.startswith(("http://", "https://")):
            raise ValueError(
                "with `framework: openenv`, `env` is the URL of a running server, such as http://node7:8000"
            )
        if self.framework == "openenv" and self.python is not None:
            raise ValueError("`python` is for `framework: class` and `gem`; leave it out")
        if self.where == "sandbox" and (self.tools or self.framework == "openenv"):
            raise ValueError(
                "`where: sandbox` is for `framework: class` and `gem` without `tools`; with tools in the same sandbox "
                "the agent could change its environment"
            )
        return self


_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
_MODELS: dict[str, type[MathTask] | type[CodeTask] | type[EnvTask]] = {
    "math": MathTask,
    "code": CodeTask,
    "env": EnvTask,
}
BUILT_IN = frozenset(_MODELS)
"""Task kinds that every node agent has."""


def image_field(fields: Mapping[str, Any]) -> str:
    """Return the name of a task's sandbox image, for every task kind; empty: the pool's default image. Server and node agent
    both ask here."""
    name = fields.get("image")
    return name if isinstance(name, str) else ""


def offers_tools(task: Task) -> bool:
    """Whether the agent of a task has tools. False for kinds that are not built in: only their handlers know."""
    return task.kind in ("math", "code") or (task.kind == "env" and bool(task.fields.get("tools")))


def check_task(task: Task) -> None:
    """Check a task of a built-in kind. Raises Invalid with a cause for each wrong field. Tasks of other kinds are checked by
    their handlers."""
    model = _MODELS.get(task.kind)
    if model is None:
        return
    try:
        model.model_validate(task.fields)
    except pydantic.ValidationError as error:
        causes = [Cause(".".join(["task", *map(str, e["loc"])]), e["msg"]) for e in error.errors()]
        listed = "; ".join(f"{c.field}: {c.message}" for c in causes)
        known = ", ".join(model.model_fields)
        raise Invalid(f"the {task.kind} task is invalid: {listed} (its fields are {known})", causes=causes) from None


def read_math(task: Task) -> MathTask:
    return MathTask.model_validate(_fields(task))


def read_code(task: Task) -> CodeTask:
    return CodeTask.model_validate(_fields(task))


def read_env(task: Task) -> EnvTask:
    return EnvTask.model_validate(_fields(task))


def _fields(task: Task) -> dict[str, Any]:
    check_task(task)
    return task.fields
