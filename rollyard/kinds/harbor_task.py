"""Fields of the task kind `harbor`: a task folder of Harbor, packed into the task."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, model_validator

from rollyard.kinds.base import WireModel
from rollyard.kinds.harbor_config import HarborConfig, Networked, resolved
from rollyard.kinds.stage_needs import StageNeeds
from rollyard.kinds.task_fields import TaskFields
from rollyard.kinds.values.host_pattern import HostPattern

INSTRUCTION, TEST, SOLVE, LOOSE = "instruction.md", "tests/test.sh", "solution/solve.sh", "environment/"


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
    """Path in the folder -> the file: instruction.md, tests/, solution/, and with an image that was not built from the folder
    also environment/."""
    variables: dict[str, str] = {}
    """Values of `${NAME}` in the variables of `config`."""
    verifier: Literal["fresh"] = "fresh"
    """Place of a shared verifier. fresh: a fresh sandbox of the image with the files that the agent has changed."""
    reward_key: str = "reward"
    """Key of the reward, if reward.json has several."""
    system: str | None = None
    """System prompt. Default: one that explains the tools and the end."""

    @model_validator(mode="after")
    def _runs_here(self) -> Self:
        if refused := [*self._refused()]:
            raise ValueError("; ".join(refused))
        for file in (INSTRUCTION, TEST):
            if file not in self.files:
                raise ValueError(f"the folder has no {file}")
        for env in (self.config.environment.env, self.config.verifier.env, self.config.solution.env):
            resolved(env, self.variables)
        return self

    def _refused(self) -> Iterator[str]:
        config = self.config
        if self.config.environment.os != "linux":
            yield f"`environment.os` is {config.environment.os!r}, and sandboxes are Linux"
        if config.environment.tpu is not None:
            yield "`environment.tpu` is not supported"
        if config.environment.gpus:
            yield "`environment.gpus` is not supported"
        if config.steps:
            yield "`steps` is not supported"
        if config.verifier.mode == "separate":
            yield "a separate verifier is not supported"
        if config.verifier.collect:
            yield "`verifier.collect` is not supported"
        if config.artifacts:
            yield "`artifacts` is not supported"
        if config.environment.mcp_servers:
            yield "`environment.mcp_servers` is not supported"
        if config.environment.skills_dir is not None:
            yield "`environment.skills_dir` is not supported"
        if config.environment.healthcheck is not None:
            yield "`environment.healthcheck` is not supported"
        for path in (
            "trajectory.json",
            ".harborignore",
            *(f"{place}/docker-compose.yaml" for place in ("environment", "tests")),
        ):
            if path in self.files:
                yield f"{path} is not supported"
        for table in (config.environment, config.agent, config.verifier):
            yield from _unusable_hosts(table)

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

    @property
    def run_needs(self) -> StageNeeds:
        return self._needs(self.config.agent, self.config.agent.user, self.config.agent.timeout_sec)

    @property
    def eval_needs(self) -> StageNeeds:
        return self._needs(self.config.verifier, self.config.verifier.user, None)

    def _needs(self, phase: Networked, user: str | None, seconds: float | None) -> StageNeeds:
        environment = self.config.environment
        mode = phase if phase.network_mode is not None else environment
        hosts = {"no-network": (), "allowlist": tuple(mode.allowed_hosts or ())}.get(mode.network_mode or "")
        return StageNeeds(
            hosts=hosts,
            network=mode.network_mode == "public",
            memory_mib=environment.memory_mb,
            cpus=environment.cpus,
            seconds=seconds,
            env=self.env(environment.env),
            workdir=environment.workdir,
            user=user,
        )


def _unusable_hosts(table: Networked) -> Iterator[str]:
    for host in table.allowed_hosts or ():
        try:
            HostPattern.parse(host)
        except ValueError:
            yield f"the host {host!r} in `allowed_hosts` is not supported: write names or addresses, not networks"
