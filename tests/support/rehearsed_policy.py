"""A policy that does what the programs of tests/clients need: the tiny policy, trained on one run of each program.

The runs come from the gateway in front of a model server with given answers. The policy then samples these answers with
probabilities near 1, on any engine.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp

from rollyard.gateway.session.session import GatewaySession
from rollyard.gateway.session.session_config import SessionConfig
from rollyard.kinds.rollout import Sampling
from rollyard.sandbox.build_once import build_once
from rollyard.tokens.chat_template import ChatTemplate
from rollyard.tokens.token_client import TokenClient
from rollyard.trajectory import Segment
from simulation.endpoint_sampler import EndpointSampler
from simulation.upstream import Upstream
from tests.gateway.conftest import Gateway
from tests.support import make
from tests.support.model_clients import CLIENTS, PROGRAMS, ModelClient
from tests.support.released import CACHE, LOCKS
from tests.support.yard import MODEL

CONTEXT = 8192
"""Tokens. The prompts of smolagents' CodeAgent have more than the tiny policy's 4096."""
BEFORE = 32
"""Unsampled tokens before the first sampled one through which gradients flow. Long prompts would take minutes otherwise."""
RATE, PASSES = 1e-3, 40
SURE = 0.3
"""Greatest loss of a token in the last pass, in nats."""


async def rehearse(client: ModelClient, folder: Path) -> GatewaySession:
    """Run the program once on its given answers; return its session."""
    template = ChatTemplate.load(MODEL)

    def script(number: int, prompt: Sequence[int]) -> list[int]:
        return [*template.encode(client.turns[number]), template.stop_ids[0]]

    async with Upstream(script).serving() as upstream, aiohttp.ClientSession() as http:
        policy = EndpointSampler(TokenClient(http), make.endpoint(url=upstream.url), template.stop_ids)
        config = SessionConfig("policy", Sampling(), fixed=False)
        async with Gateway(template, policy, config).serving() as gateway:
            ca = Path(__file__).parent / "no_ca.pem"
            key = f"session-{client.program}"
            async with client.running(f"{gateway.url}/v1", gateway.url, key, ca, folder) as process:
                await client.end(process)
            return gateway.sessions[client.program]


def rehearsed_policy() -> Path:
    """Return the policy's folder. Its training takes minutes, once for these programs and releases."""
    made_from = [Path(__file__), MODEL / "model.safetensors", *PROGRAMS.glob("*.py"), *LOCKS.glob("agent-frameworks-*")]
    parts = [file.read_bytes() for file in sorted(made_from)] + [repr(client.turns).encode() for client in CLIENTS]
    digest = hashlib.sha256(b"".join(parts)).hexdigest()[:16]
    return build_once(CACHE / "rehearsed-policy" / digest, lambda folder: _train(asyncio.run(_segments()), folder))


async def _segments() -> list[Segment]:
    with TemporaryDirectory() as folder:
        return [segment for client in CLIENTS for segment in (await rehearse(client, Path(folder))).segments()]


def _train(segments: list[Segment], folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    shutil.copytree(MODEL, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": CONTEXT}))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    order = random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    worst = 0.0
    for number in range(PASSES):
        optimizer.param_groups[0]["lr"] = RATE * (1 - number / PASSES)
        worst = 0.0
        for segment in order.sample(segments, len(segments)):
            ids = torch.tensor([segment.token_ids])
            at = torch.tensor([i for i, sampled in enumerate(segment.loss_mask) if sampled])
            start = max(0, segment.prompt_length - BEFORE)
            prompt = DynamicCache(config=model.config)
            if start:
                with torch.no_grad():
                    model.model(ids[:, :start], past_key_values=prompt, use_cache=True)
            for step in range(3):
                states = model.model(ids[:, start:], past_key_values=copy.deepcopy(prompt), use_cache=True)
                logits = model.lm_head(states.last_hidden_state[0, at - 1 - start])
                losses = torch.nn.functional.cross_entropy(logits, ids[0, at], reduction="none")
                worst = max(worst, losses.max().item()) if step == 0 else worst
                losses.mean().backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    assert worst < SURE, f"a token has a loss of {worst} nats"
    model.to(torch.bfloat16).save_pretrained(folder)
