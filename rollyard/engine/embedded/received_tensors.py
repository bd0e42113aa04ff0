"""Tensors that a trainer sends to a running engine. The engine keeps them beside the served weights until the
trainer finishes the transfer.

The body of a call is a safetensors file with some of the tensors. The file's header is checked before any tensor is
read.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Mapping
from typing import Any

import aiohttp
import numpy as np

from rollyard.core.errors import BadRequest, Invalid
from rollyard.engine.embedded.model_weights import ModelWeights, build_weights, tensor_shapes
from rollyard.engine.embedded.safetensors_files import STORED, Array, as_float32
from rollyard.model_folder.model_config import HEAD, Config
from rollyard.model_folder.safetensors_header import TYPES_TEXT

MAX_HEADER_BYTES = 16 << 20


class ReceivedTensors:
    """The tensors of one transfer."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._shapes = tensor_shapes(config)
        self._tensors: dict[str, Array] = {}

    async def receive(self, body: aiohttp.StreamReader) -> None:
        """Read and keep the tensors of one call. If the call fails, none of its tensors is kept. Raises BadRequest,
        Invalid."""
        came: dict[str, Array] = {}
        try:
            size = int.from_bytes(await body.readexactly(8), "little")
            if size > MAX_HEADER_BYTES:
                raise BadRequest("the body is not a safetensors file")
            for name, tensor in self._checked(await body.readexactly(size)):
                raw = await body.readexactly(_bytes(tensor))
                numbers = np.frombuffer(raw, STORED[tensor["dtype"]])
                came[name] = (await asyncio.to_thread(as_float32, numbers)).reshape(tensor["shape"])
        except asyncio.IncompleteReadError:
            raise BadRequest("the body is cut short; send it again") from None
        self._tensors |= came

    def weights(self) -> ModelWeights:
        """Build the weights from the tensors. Raises Invalid if tensors are missing."""
        if missing := sorted(self._shapes.keys() - self._tensors.keys()):
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            raise Invalid(f"TransferIncomplete: {missing[0]}{more} did not arrive; send the rest and finish again")
        return build_weights(self._tensors.__getitem__, self._config)

    def _checked(self, header: bytes) -> list[tuple[str, Mapping[str, Any]]]:
        """Check the header; return its tensors in the order of their bytes in the body."""
        try:
            found = {name: tensor for name, tensor in json.loads(header).items() if name != "__metadata__"}
            ordered = sorted(found.items(), key=lambda item: int(item[1]["data_offsets"][0]))
            at = 0
            for name, tensor in ordered:
                self._fits(name, tensor)
                if list(tensor["data_offsets"]) != [at, at := at + _bytes(tensor)]:
                    raise BadRequest(f"{name} does not start where the tensor before it ends")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise BadRequest("the body is not a safetensors file") from None
        return ordered

    def _fits(self, name: str, tensor: Mapping[str, Any]) -> None:
        wanted = self._shapes.get(name)
        if wanted is None and name == HEAD:  # some trainers send the output head of a tied model too
            wanted = self._shapes["model.embed_tokens.weight"]
        if wanted is None:
            raise Invalid(f"the model has no tensor {name}")
        if tuple(tensor["shape"]) != wanted:
            raise Invalid(f"{name} has shape {tensor['shape']}, but the model's has {list(wanted)}")
        if tensor["dtype"] not in STORED:
            raise Invalid(f"{name}: tensors must be {TYPES_TEXT}, not {tensor['dtype']}")


def _bytes(tensor: Mapping[str, Any]) -> int:
    count: int = math.prod(tensor["shape"])
    return count * np.dtype(STORED[tensor["dtype"]]).itemsize
