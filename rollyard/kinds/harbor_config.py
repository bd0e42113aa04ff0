"""Tables of a `task.toml` of Harbor, schema 1.4 and the older forms that it accepts. Unknown fields have no effect, as in
Harbor."""

from __future__ import annotations

import re
import reprlib
import unicodedata
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from rollyard.kinds.base import WireModel

NetworkMode = Literal["public", "no-network", "allowlist"]
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})([GMK])")
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


class HarborTable(WireModel):
    model_config = ConfigDict(extra="ignore")


def _user(value: Any) -> Any:
    return str(value) if isinstance(value, int) else value


def _step_name(name: str) -> str:
    if not name.strip() or name in (".", "..") or re.search(r'[<>:"/\\|?*\x00-\x1f\x7f]', name) or name[-1] in ". ":
        raise ValueError(f"{name!r} is not the name of a step: write the name of a folder below steps/")
    return name


User = Annotated[str | None, BeforeValidator(_user)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Networked(HarborTable):
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] | None = None

    @model_validator(mode="after")
    def _hosts_of_a_list(self) -> Self:
        if self.allowed_hosts is not None and self.network_mode != "allowlist":
            raise ValueError('`allowed_hosts` needs `network_mode = "allowlist"`')
        return self


class Agent(Networked):
    timeout_sec: Seconds | None = None
    user: User = None


class Healthcheck(HarborTable):
    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: Seconds = 30.0
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = 3


class HarborMcpServer(HarborTable):
    name: str
    transport: str = "sse"
    command: str | None = None
    args: list[str] = []

    @model_validator(mode="after")
    def _has_a_command(self) -> Self:
        if self.transport == "stdio" and not self.command:
            raise ValueError("an MCP server of the transport stdio needs `command`")
        return self


class HarborEnvironment(Networked):
    docker_image: str | None = None
    os: Annotated[str, BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)] = "linux"
    cpus: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    memory_mb: int | None = Field(default=None, gt=0, le=1 << 30)
    gpus: int | None = None
    tpu: dict[str, Any] | None = None
    mcp_servers: list[HarborMcpServer] = []
    env: dict[str, str] = {}
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    workdir: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _older_forms(cls, data: Any) -> Any:
        """Read `memory` and `allow_internet` of older schemas."""
        if not isinstance(data, dict):
            return data
        data = dict(data)
        memory, internet = data.pop("memory", None), data.pop("allow_internet", None)
        if isinstance(memory, str):
            found = _SIZE.fullmatch(memory.strip().upper())
            if found is None:
                raise ValueError(f"`memory` is {reprlib.repr(memory)}: write a size such as 2G or 512M")
            size = int(float(found[1]) * _MIB[found[2]])
            if data.setdefault("memory_mb", size) != size:
                raise ValueError(f"`memory` is {memory}, and `memory_mb` is {data['memory_mb']}: leave out `memory`")
        if internet is not None and "network_mode" not in data and data.get("allowed_hosts") is None:
            data["network_mode"] = "public" if internet else "no-network"
        return data


class CollectHook(HarborTable):
    command: str
    service: str = "main"
    timeout_sec: Seconds = 60.0
    user: User = None


class Verifier(Networked):
    timeout_sec: Seconds = 600.0
    env: dict[str, str] = {}
    user: User = None
    environment_mode: Literal["shared", "separate"] | None = None
    environment: HarborEnvironment | None = None
    collect: list[CollectHook] = []

    @model_validator(mode="after")
    def _one_mode(self) -> Self:
        if self.environment_mode == "shared" and self.environment is not None:
            raise ValueError(
                'a shared verifier has no `environment`: leave it out, or set environment_mode = "separate"'
            )
        return self

    @property
    def mode(self) -> Literal["shared", "separate"] | None:
        """Mode that this table says; None: none."""
        return self.environment_mode or ("separate" if self.environment is not None else None)


class HarborArtifact(HarborTable):
    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, data: Any) -> Any:
        return {"source": data} if isinstance(data, str) else data

    @model_validator(mode="after")
    def _inside(self) -> Self:
        if ".." in self.source.split("/"):
            raise ValueError(f"the artifact {self.source!r} has `..` in its path")
        return self


class HarborStep(HarborTable):
    name: Annotated[str, AfterValidator(_step_name)]
    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[HarborArtifact] = []

    @property
    def thresholds(self) -> Mapping[str, float]:
        """Least value of each key of the step's rewards."""
        if self.min_reward is None or isinstance(self.min_reward, dict):
            return self.min_reward or {}
        return {"reward": self.min_reward}


class Solution(HarborTable):
    env: dict[str, str] = {}


class HarborConfig(HarborTable):
    """A whole `task.toml`."""

    agent: Agent = Agent()
    verifier: Verifier = Verifier()
    environment: HarborEnvironment = HarborEnvironment()
    solution: Solution = Solution()
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    steps: list[HarborStep] = []
    artifacts: list[HarborArtifact] = []

    @model_validator(mode="after")
    def _one_step_a_name(self) -> Self:
        names = [unicodedata.normalize("NFC", step.name).casefold() for step in self.steps]
        if twice := [step.name for step, name in zip(self.steps, names, strict=True) if names.count(name) > 1]:
            raise ValueError(f"two steps have the name {twice[0]!r}; rename one")
        return self


def resolved(env: Mapping[str, str], variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with the values of their `${NAME}` and `${NAME:-default}`. Raises ValueError for a wrong name, and for
    one without a value."""
    found = {}
    for name, value in env.items():
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable: write letters, digits and _")
        form = _VARIABLE.fullmatch(value)
        if form is not None:
            given = variables.get(form[1], form[2])
            if given is None:
                raise ValueError(f"the variable {name} is {value}: give {form[1]} a value")
            value = given
        found[name] = value
    return found
