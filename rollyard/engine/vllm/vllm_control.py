"""Changes the weights of a running vLLM by its development routes. vLLM 0.32 has these routes; `detect` probes for
them.

Traps: `reload_weights` does not update the output head of tied embeddings, does not change the version label, and does
not clear the prefix cache. The cache cannot be cleared while paused requests hold blocks. So each weights version has
its own cache salt, and its requests never match blocks of other weights.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import aiohttp

from rollyard.engine.weights.engine_control import LOAD_SECONDS, ControlFailed, EngineControl, command, status
from rollyard.engine.weights.source import WeightsSource
from rollyard.model_folder.checkpoint_info import CheckpointInfo

log = logging.getLogger(__name__)

PAUSE, RESUME, IS_PAUSED = "/pause", "/resume", "/is_paused"
RPC, NAME, RESET = "/collective_rpc", "/update_weight_version", "/reset_prefix_cache"
LOAD_ADAPTER, UNLOAD_ADAPTER = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
INIT_TRANSFER = "/init_weight_transfer_engine"
LORA_OPTION = "--enable-lora"
TRANSFER_OPTION = "--weight-transfer-config"
UNEVEN_PARALLEL_OPTIONS = frozenset(["--stream-interval", "--api-server-count", "-asc", "--data-parallel-size", "-dp"])
"""Options with which an HTTP server may hold back tokens of a paused engine for longer than
`EpochRelay.wait_until_read` waits."""


class VllmControl(EngineControl):
    labels_tokens = False
    can_pause = False
    buffers_transfers = False

    def __init__(self, http: aiohttp.ClientSession, extra_args: Sequence[str]) -> None:
        self._http = http
        self._lora = LORA_OPTION in extra_args
        self._uneven = any(arg.partition("=")[0] in UNEVEN_PARALLEL_OPTIONS for arg in extra_args)
        self._transfers = any(_option(arg) == TRANSFER_OPTION for arg in extra_args)
        self._served: frozenset[str] = frozenset()

    async def detect(self) -> None:
        paths = (PAUSE, RESUME, IS_PAUSED, RPC, NAME, RESET, LOAD_ADAPTER, INIT_TRANSFER)
        self._served = frozenset([path for path in paths if await status(self._http, path) != 404])
        self.can_pause = self._served >= {PAUSE, RESUME, IS_PAUSED}
        if missing := sorted({*paths} - self._served):
            log.info("this vLLM has no %s", ", ".join(missing))

    def why_unsupported(self, source: WeightsSource) -> str:
        if source.adapter is not None and not self._lora:
            return f"AdapterRefused: write `{LORA_OPTION}` (and `--max-lora-rank`) in spec.engine.vllm.extraArgs"
        return ""

    def why_not_loadable(self, source: WeightsSource, now: WeightsSource, contents: CheckpointInfo) -> str:
        if source.folder != now.folder or (source.checksum != now.checksum and source.adapter is None):
            if contents.tied:
                return "its embeddings are tied, and vLLM's reload does not update a tied output head"
            if RPC not in self._served or not self.can_pause:
                return "this vLLM cannot reload weights"
        if source.adapter is not None and LOAD_ADAPTER not in self._served:
            return "this vLLM cannot load adapters at run time"
        return ""

    def can_keep_requests(self, source: WeightsSource, now: WeightsSource) -> bool:
        """Return False for adapters, because a running request names its adapter at every step and would continue with
        the old adapter. Return False also with `UNEVEN_PARALLEL_OPTIONS`."""
        return source.adapter is None and now.adapter is None and not self._uneven

    async def pause(self, requests: Literal["keep", "abort"]) -> None:
        # By default vLLM 0.32 would also clear the cache of the kept requests, and compute these requests again.
        clear = "false" if requests == "keep" else "true"
        await command(self._http, PAUSE, params={"mode": requests, "clear_cache": clear})

    async def resume(self) -> None:
        await command(self._http, RESUME)

    async def load(self, source: WeightsSource, now: WeightsSource | None) -> None:
        await self._load_folder(source, now)
        if source.adapter is not None:
            # Each adapter has its own name: if adapters were replaced in place, vLLM would read files at every step.
            body = {"lora_name": _adapter_name(source), "lora_path": str(source.adapter)}
            await command(self._http, LOAD_ADAPTER, body, seconds=LOAD_SECONDS)
        if now is not None:
            await self._unload_adapter(now)

    async def _load_folder(self, source: WeightsSource, now: WeightsSource | None) -> None:
        if now is None or (source.adapter is not None and source.folder == now.folder):
            return
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(source.folder)}}
        await command(self._http, RPC, body, seconds=LOAD_SECONDS)
        await self._reset_cache()

    def why_no_transfer(self) -> str:
        """Return why a trainer cannot move weights into this vLLM; empty if it can.

        The option is checked too: without it the routes exist, but answer 500.
        """
        if not self._transfers:
            return f"write `{TRANSFER_OPTION}` in spec.engine.vllm.extraArgs"
        return "" if INIT_TRANSFER in self._served and self.can_pause else "this vLLM has no routes for it"

    async def finish_transfer(self, now: WeightsSource) -> None:
        await self._reset_cache()
        await self._unload_adapter(now)

    async def _reset_cache(self) -> None:
        if RESET in self._served:
            answer = await command(self._http, RESET)
            if not json.loads(answer).get("success"):
                log.info("paused requests hold blocks of the prefix cache; the cache salt separates them")

    async def _unload_adapter(self, now: WeightsSource) -> None:
        if now.adapter is not None:
            await command(self._http, UNLOAD_ADAPTER, {"lora_name": _adapter_name(now)})

    async def set_version(self, version: str) -> None:
        """Set the version for `weight_versions` in the answers of /inference/v1/generate."""
        if NAME in self._served:
            await command(self._http, NAME, {"new_version": version})

    async def round_trip(self) -> None:
        if await status(self._http, IS_PAUSED) != 200:
            raise ControlFailed(f"{IS_PAUSED} does not answer")

    def request_fields(self, source: WeightsSource) -> Mapping[str, Any]:
        named = {"model": _adapter_name(source)} if source.adapter is not None else {}
        # If vLLM cannot be paused, only its adapters are changed. vLLM itself separates the cached blocks of adapters.
        return {"cache_salt": _adapter_name(source), **named} if self.can_pause else named


def _option(argument: str) -> str:
    """Return `--some-option` for `--some_option=…` and `--some-option.field`, as vLLM reads them."""
    return argument.partition("=")[0].partition(".")[0].replace("_", "-")


def _adapter_name(source: WeightsSource) -> str:
    """Return a name for these weights: the cache salt, and the adapter's name in requests. vLLM requires that an
    adapter's name differs from the model's."""
    return f"{source.version}-{source.checksum}"
