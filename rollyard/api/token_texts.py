"""`GET /v1/rollouts/ID/tokens`: the text of each token of a rollout's trajectory, by the tokenizer of its policy."""

from __future__ import annotations

import asyncio

from aiohttp import web

from rollyard.api.costly_answers import costly
from rollyard.api.query_parameters import accepts, namespace_of
from rollyard.api.services import SERVICES, Services
from rollyard.api.trajectories import distinct_tokens
from rollyard.core.errors import NotFound
from rollyard.gateway.token_texts import token_texts
from rollyard.kinds.inference_pool import InferencePool
from rollyard.kinds.rollout_pool import POLICY_ROLE
from rollyard.store.base import RolloutRecord


def routes() -> list[web.RouteDef]:
    return [web.get("/v1/rollouts/{id}/tokens", _tokens)]


@accepts("namespace")
@costly
async def _tokens(request: web.Request) -> web.Response:
    """Read the text of each id that occurs in the trajectory. A token that is a part of a character has its bytes in
    hexadecimal form instead; one that the tokenizer does not know is left out."""
    services, id = request.app[SERVICES], request.match_info["id"]
    record = await services.rollouts.get(namespace_of(request), id)
    if not record.status.terminal:
        raise NotFound(f"rollout {id!r} has no tokens yet: it has not ended")
    folder = await _tokenizer(services, record)
    ids = await distinct_tokens(services, record)
    found = await asyncio.to_thread(token_texts, folder, ids)
    return web.json_response({"tokenizer": folder, "texts": found.texts, "bytes": found.parts})


async def _tokenizer(services: Services, record: RolloutRecord) -> str:
    """Return the folder of the policy's tokenizer. Raises NotFound."""
    pool = await services.pools.rollout_pool(record.pool_key)
    name = pool.spec.inference.get(POLICY_ROLE)
    if name is None:
        raise NotFound(f"RolloutPool {record.pool!r} names no InferencePool for the role {POLICY_ROLE}")
    model = (await services.pools.named(InferencePool, record.namespace, name)).spec.model
    return model.tokenizer or model.path
