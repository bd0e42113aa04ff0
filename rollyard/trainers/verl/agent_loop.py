"""Agent loop of verl that runs each session as a rollout of a RolloutPool."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput

from rollyard.client import AsyncClient
from rollyard.client.rollout_results import result_of
from rollyard.core.errors import Conflict
from rollyard.trainers.verl.session_samples import LoopSettings, request_of, samples_of


@dataclass
class _Open:
    client: AsyncClient
    users: int = 0


_clients: dict[tuple[asyncio.AbstractEventLoop, str | None], _Open] = {}


class RollyardAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One session. verl makes an object for each session; those of one process share a client."""

    def __init__(
        self,
        *args: Any,
        pool: str,
        kubeconfig: str | None = None,
        namespace: str | None = None,
        mode: Literal["train", "eval"] = "train",
        wait_for_weights: bool = True,
        version_prefix: str = "step",
        request: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """The options stand in verl's agent loop file.

        `mode`: eval for the rows of the validation. `wait_for_weights`: rollouts wait until the pool serves the newest
        checkpoint that verl has written. `version_prefix`: the `--prefix` of `rollyard weights follow`. `request`:
        fields of a rollout request that all rows share.
        """
        super().__init__(*args, **kwargs)
        self._kubeconfig, self._namespace = kubeconfig, namespace
        shared: Any = OmegaConf.to_container(request) if OmegaConf.is_config(request) else dict(request or {})
        self._settings = LoopSettings(
            pool=pool,
            prompt_length=self.rollout_config.prompt_length,
            response_length=self.rollout_config.response_length,
            save_freq=self.config.trainer.save_freq,
            mode=mode,
            wait_for_weights=wait_for_weights,
            version_prefix=version_prefix,
            request=shared,
        )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Run the session. Raises NoReward, Invalid: then verl counts the session as failed, and never as a reward."""
        request = request_of(row, sampling_params, self._settings)
        async with shared_client(self._kubeconfig) as client:
            try:
                trajectory = await result_of(client, request, self._namespace)
            except Conflict:  # a resumed trainer asks for a session of an earlier step again: other weights are due now
                trajectory = await client.wait(str(request.id), self._namespace)
        samples = samples_of(trajectory, self._settings, logprobs=bool(sampling_params.get("logprobs")))
        return [AgentLoopOutput(**sample) for sample in samples]


@asynccontextmanager
async def shared_client(kubeconfig: str | None) -> AsyncIterator[AsyncClient]:
    """Yield the client of this event loop. It is closed when nobody uses it any more: verl tells no agent loop its end."""
    key = asyncio.get_running_loop(), kubeconfig
    if key not in _clients:
        _clients[key] = _Open(AsyncClient(kubeconfig=kubeconfig))
    entry = _clients[key]
    entry.users += 1
    try:
        yield entry.client
    finally:
        entry.users -= 1
        if not entry.users:
            async with _clients.pop(key).client:
                pass
