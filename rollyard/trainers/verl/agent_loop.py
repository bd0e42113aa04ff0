"""Agent loop of verl that runs each session as a rollout of a RolloutPool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from omegaconf import OmegaConf
from verl.experimental.agent_loop import AgentLoopBase, AgentLoopOutput

from rollyard.core.errors import Conflict
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.verl.session_samples import LoopSettings, request_of, samples_of
from rollyard.trainers.verl.shared_client import shared_client


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
        save_freq = int(self.config.trainer.save_freq)
        shared: Any = OmegaConf.to_container(request) if OmegaConf.is_config(request) else dict(request or {})
        self._settings = LoopSettings(
            pool=pool,
            prompt_length=self.rollout_config.prompt_length,
            response_length=self.rollout_config.response_length,
            versions=CheckpointVersions(version_prefix, every=max(save_freq, 1)),
            wait_for_weights=wait_for_weights and save_freq > 0,
            mode=mode,
            request=shared,
        )

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> list[AgentLoopOutput]:
        """Run the session. Raises NoReward, Invalid: then verl counts the session as failed, and never as a reward."""
        request = request_of(row, sampling_params, self._settings)
        async with shared_client(self._kubeconfig) as client:
            try:
                trajectory = await client.run(request, self._namespace)
            except Conflict:  # a resumed trainer asks for a session of an earlier step again: other weights are due now
                trajectory = await client.wait(str(request.id), self._namespace)
        samples = samples_of(trajectory, self._settings, logprobs=bool(sampling_params.get("logprobs")))
        return [AgentLoopOutput(**sample) for sample in samples]
