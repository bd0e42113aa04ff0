"""Samples the turns of a session on one endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rollyard.kinds.rollout import Sampling
from rollyard.tokens.sampled_tokens import Sampled
from rollyard.tokens.streamed_response import OnProgress
from rollyard.tokens.token_client import TokenClient
from rollyard.wire.endpoint import Endpoint


@dataclass
class EndpointSampler:
    tokens: TokenClient
    endpoint: Endpoint
    stop_ids: Sequence[int]

    @property
    def context(self) -> int | None:
        return self.tokens.known_context(self.endpoint)

    async def sample(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> Sampled:
        return await self.tokens.complete(
            self.endpoint, prompt_ids, sampling, sampling.max_tokens, self.stop_ids, on_progress
        )
