"""Fields of the task kind `env`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, JsonValue, model_validator

from rollyard.kinds.task_fields import TaskFields

_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


class EnvTask(TaskFields):
    """Environment with `reset` and `step`. Its observations are user messages, and its rewards are the turns' rewards."""

    framework: Literal["class", "gem", "openenv", "textarena", "verifiers"]
    """class: a Python class. gem: an environment of GEM. openenv: a running server of OpenEnv. textarena: a game of TextArena
    with one player. verifiers: a task of a taskset of verifiers 0.4."""
    env: str = Field(min_length=1)
    """class: `module:Class`. gem: an id, such as game:GuessTheNumber-v0. openenv: the server's URL. textarena: a game, such as
    Wordle-v0. verifiers: the id of a taskset, such as gsm8k-v1."""
    index: int | None = Field(default=None, ge=0)
    """verifiers: place of the task in its taskset."""
    seed: int | None = Field(default=0, ge=0)
    """Seed of `reset`. All rollouts of a group, and all attempts, begin with the same seed. Null: `reset` gets no seed."""
    arguments: dict[str, JsonValue] = {}
    """Keyword arguments of the class, or of `make` of GEM and TextArena. openenv: further fields of the reset. verifiers:
    fields of the environment's config, such as `taskset`."""
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

    @model_validator(mode="after")
    def _env_of_the_framework(self) -> Self:
        if self.framework == "class" and not _CLASS.fullmatch(self.env):
            raise ValueError("with `framework: class`, `env` is `module:Class`, such as my_games.words:Hangman")
        if self.framework == "openenv" and not self.env.startswith(("http://", "https://")):
            raise ValueError(
                "with `framework: openenv`, `env` is the URL of a running server, such as http://node7:8000"
            )
        if self.framework == "openenv" and self.python is not None:
            raise ValueError("`python` is for environments in a process of ours, not for openenv; leave it out")
        if (self.framework == "verifiers") != (self.index is not None):
            raise ValueError("`index` is the place of a task in a taskset: write it with `framework: verifiers` alone")
        if self.where == "sandbox" and (self.tools or self.framework == "openenv"):
            raise ValueError(
                "`where: sandbox` is for environments without `tools`, and not for openenv; with tools in the same sandbox "
                "the agent could change its environment"
            )
        return self

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return bool(fields.get("tools"))
