"""Fields of the task kind `harbor`: a task folder of Harbor, packed into the task."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, model_validator

from rollyard.kinds.base import WireModel
from rollyard.kinds.harbor_config import (
    Agent,
    HarborConfig,
    HarborEnvironment,
    HarborStep,
    Networked,
    Verifier,
    resolved,
)
from rollyard.kinds.stage_needs import StageNeeds
from rollyard.kinds.task_fields import TaskFields
from rollyard.kinds.values.host_pattern import HostPattern

INSTRUCTION, TEST, LOOSE, DOCKERFILE = "instruction.md", "tests/test.sh", "environment/", "Dockerfile"
_UNSUPPORTED = re.compile(
    r"(?:steps/[^/]+/)?trajectory\.json|\.harborignore|(?:environment|tests)/docker-compose\.yaml"
)
_CANARY = re.compile(r"<!--.*canary.*-->|#.*canary.*", re.IGNORECASE)


def _inside(path: str) -> str:
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(path.split("/")):
        raise ValueError(f"{path!r} is not the path of a file in the task's folder")
    return path


FolderPath = Annotated[str, AfterValidator(_inside)]


class PackedFile(WireModel):
    """File of a folder that is executable, or that is not text."""

    text: str | None = None
    base64: str | None = None
    executable: bool = False

    @model_validator(mode="after")
    def _one_content(self) -> Self:
        try:
            whole = (self.text is None) != (self.base64 is None) and self.content() is not None
        except (binascii.Error, UnicodeEncodeError):
            whole = False
        if not whole:
            raise ValueError("write either `text`, or the file's bytes in `base64`")
        return self

    def content(self) -> bytes:
        return self.text.encode() if self.text is not None else base64.b64decode(self.base64 or "", validate=True)


class HarborTask(TaskFields):
    """Task folder of Harbor. `rollyard tasks import harbor` makes such tasks."""

    config: HarborConfig
    """The tables of `task.toml`."""
    files: dict[FolderPath, str | PackedFile]
    """Path in the folder -> the file: instruction.md, tests/, solution/, steps/, and with an image that was not built from the
    folder also environment/."""
    variables: dict[str, str] = {}
    """Values of `${NAME}` in the variables of `config`."""
    verifier: Literal["fresh", "shared"] = "fresh"
    """Place of a verifier that has no image of its own. fresh: a fresh sandbox of the image with the files that the agent has
    changed. shared: the agent's own sandbox, as in Harbor, which tasks with steps need."""
    reward_key: str = "reward"
    """Key of the reward, if reward.json has several."""
    system: str | None = None
    """System prompt. Default: one that explains the tools and the end."""

    @model_validator(mode="after")
    def _runs_here(self) -> Self:
        if refused := [*self._refused()]:
            raise ValueError("; ".join(refused))
        for step in self.steps:
            self.instruction(step)
            if not self.is_bundled and not any(file in self.files for file in self._tests(step)):
                raise ValueError(f"the folder has no {' and no '.join(self._tests(step))}")
            self.env(step.verifier.env if step is not None else {})
        for table in (self.config.environment, self.verifier_environment, self.config.verifier, self.config.solution):
            self.env(table.env)
        return self

    def _refused(self) -> Iterator[str]:
        config, own_image = self.config, self.evaluator is not None and self.evaluator.image is not None
        environments = {"environment": config.environment}
        if config.verifier.environment is not None:
            environments["verifier.environment"] = config.verifier.environment
        for name, environment in environments.items():
            if environment.os != "linux":
                yield f"`{name}.os` is {environment.os!r}, and sandboxes are Linux"
            if environment.tpu is not None:
                yield f"`{name}.tpu` is not supported"
            if environment.gpus:
                yield f"`{name}.gpus` is not supported"
        for server in config.environment.mcp_servers:
            if server.transport != "stdio":
                why = "nothing starts a server behind a URL here: name a program of the image with the transport stdio"
                yield f"the MCP server {server.name!r} has the transport {server.transport}; {why}"
        yield from (f"{path} is not supported" for path in self.files if _UNSUPPORTED.fullmatch(path))
        if config.steps and "separate" in {config.verifier.mode, *(step.verifier.mode for step in config.steps)}:
            yield "a separate verifier of a task with steps is not supported"
        if config.steps and self.verifier != "shared":
            yield "`steps` needs a verifier in the agent's sandbox between the steps: set `verifier` to shared"
        if self.is_separate and self.verifier == "shared":
            yield "the verifier is separate, so leave out `verifier`"
        if self.is_separate and not own_image and self._has_own_image:
            yield "the verifier has an image of its own: name it in `evaluator.image`"
        if own_image and not self.is_separate:
            yield "the verifier has the agent's image: leave out `evaluator.image`"
        yield from self._refused_files()
        if self.is_shared:
            yield from self._differences()
        for table in (config.environment, config.agent, config.verifier, self.verifier_environment):
            yield from _unusable_hosts(table)

    def _refused_files(self) -> Iterator[str]:
        """Yield what is refused of artifacts and of commands that collect them."""
        config = self.config
        for artifact in [*config.artifacts, *(one for step in config.steps for one in step.artifacts)]:
            if artifact.service not in (None, "main"):
                yield f"the artifact {artifact.source} is of the service {artifact.service}: only main is supported"
            if not artifact.source.startswith("/"):
                yield f"the artifact {artifact.source} needs an absolute path"
        for hook in [*config.verifier.collect, *(one for step in config.steps for one in step.verifier.collect)]:
            if hook.service != "main":
                yield f"`verifier.collect` is of the service {hook.service}: only main is supported"
            if hook.user not in (
                None,
                config.agent.user if self.is_shared or self.is_separate else config.verifier.user,
            ):
                yield f"`verifier.collect` has the user {hook.user}, and its sandbox has another one"

    def _differences(self) -> Iterator[str]:
        """Yield what differs between the phases of one sandbox, which has one user and one network."""
        config = self.config
        phases = [config.agent, config.verifier, *(one for step in config.steps for one in (step.agent, step.verifier))]
        users = {phase.user for phase in phases if phase.user is not None} | {config.agent.user}
        if len(users) > 1:
            yield f"a shared sandbox has one user, and the task names {', '.join(map(repr, users))}"
        if len({self._hosts(phase, config.environment) for phase in phases}) > 1:
            yield "a shared sandbox has one network, and the task's phases have several"

    @classmethod
    def offers_tools(cls, fields: Mapping[str, Any]) -> bool:
        return True

    def content(self, path: str) -> bytes:
        file = self.files[path]
        return file.encode() if isinstance(file, str) else file.content()

    def below(self, folder: str) -> Iterator[tuple[str, bytes, bool]]:
        """Yield the path below a folder, the content, and whether the file is executable, of each file in it."""
        for path, file in self.files.items():
            if path.startswith(folder):
                yield path.removeprefix(folder), self.content(path), isinstance(file, PackedFile) and file.executable

    def env(self, env: Mapping[str, str]) -> dict[str, str]:
        return resolved(env, self.variables)

    def instruction(self, step: HarborStep | None = None) -> str:
        """Return the text for the agent, without lines at its beginning that mark it for filters of training data. Raises
        ValueError."""
        path = INSTRUCTION if step is None else f"steps/{step.name}/{INSTRUCTION}"
        if path not in self.files:
            raise ValueError(f"the folder has no {path}")
        lines = self.content(path).decode(errors="replace").split("\n")
        start = next((i for i, line in enumerate(lines) if not _CANARY.fullmatch(line.strip())), len(lines))
        return "\n".join(lines[next((i for i in range(start, len(lines)) if lines[i].strip()), len(lines)) :])

    def solution(self, step: HarborStep | None = None) -> str | None:
        """Return the folder of the reference solution; None if there is none."""
        folders = ["solution/"] if step is None else [f"steps/{step.name}/solution/", "solution/"]
        return next((folder for folder in folders if f"{folder}solve.sh" in self.files), None)

    @staticmethod
    def _tests(step: HarborStep | None) -> list[str]:
        return [TEST] if step is None else [f"steps/{step.name}/{TEST}", TEST]

    @property
    def steps(self) -> Sequence[HarborStep | None]:
        """The steps; None stands for the only one of a task without steps."""
        return self.config.steps or [None]

    @property
    def is_separate(self) -> bool:
        """Whether the verifier gets artifacts alone, in a sandbox of its own."""
        return self.config.verifier.mode == "separate"

    @property
    def is_shared(self) -> bool:
        """Whether the verifier runs in the agent's sandbox."""
        return self.verifier == "shared"

    @property
    def is_bundled(self) -> bool:
        """Whether the verifier's image has the tests."""
        return self.is_separate and self.evaluator is not None and self.evaluator.image is not None

    @property
    def _has_own_image(self) -> bool:
        environment = self.config.verifier.environment
        return (environment is not None and environment.docker_image is not None) or f"tests/{DOCKERFILE}" in self.files

    @property
    def verifier_environment(self) -> HarborEnvironment:
        own = self.config.verifier.environment
        return own if self.is_separate and own is not None else self.config.environment

    @property
    def run_needs(self) -> StageNeeds:
        agent, verifier = self.config.agent, self.config.verifier
        agents = [step.agent.timeout_sec or agent.timeout_sec for step in self.config.steps] or [agent.timeout_sec]
        seconds = sum(one for one in agents if one is not None) if None not in agents else None
        if seconds is not None and self.is_shared:  # RUN has the verifiers too
            seconds += sum(step.verifier.timeout_sec for step in self.config.steps) or verifier.timeout_sec
        return self._needs(agent, self.config.environment, seconds)

    @property
    def eval_needs(self) -> StageNeeds:
        phase = self.config.agent if self.is_shared else self.config.verifier
        return self._needs(phase, self.verifier_environment, None)

    def _needs(self, phase: Agent | Verifier, environment: HarborEnvironment, seconds: float | None) -> StageNeeds:
        mode = phase if phase.network_mode is not None else environment
        return StageNeeds(
            hosts=self._hosts(phase, environment),
            network=mode.network_mode == "public",
            memory_mib=environment.memory_mb,
            cpus=environment.cpus,
            seconds=seconds,
            env=self.env(environment.env),
            workdir=environment.workdir,
            user=phase.user,
        )

    def _hosts(self, phase: Networked, environment: HarborEnvironment) -> tuple[str, ...] | None:
        """Return the hosts that can be reached in a phase; None: those of the pool."""
        mode = phase if phase.network_mode is not None else environment
        return {"no-network": (), "allowlist": tuple(mode.allowed_hosts or ())}.get(mode.network_mode or "")


def _unusable_hosts(table: Networked) -> Iterator[str]:
    for host in table.allowed_hosts or ():
        try:
            HostPattern.parse(host)
        except ValueError:
            yield f"the host {host!r} in `allowed_hosts` is not supported: write names or addresses, not networks"
