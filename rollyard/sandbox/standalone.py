"""One sandbox on this machine, for programs without a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import BinaryIO

from rollyard.images.named_image import named_image
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.host_pattern import HostPattern
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Limits, SandboxSpec
from rollyard.sandbox.find_runtime import find_runtime
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.sandbox_factory import SandboxFactory


@asynccontextmanager
async def open_sandbox(
    *,
    image: str | None = None,
    limits: Limits | None = None,
    env: Mapping[str, str] | None = None,
    allowed_hosts: Sequence[str] = (),
    snapshot: BinaryIO | None = None,
    runtime: RuntimeName = "auto",
    images: CacheSettings | None = None,
) -> AsyncIterator[Sandbox]:
    """Start a sandbox, and end it when the block is left. The first one of a machine also copies a Python and pulls the image.

    `image`: as in a pool's `sandbox.defaultImage`; None: this machine's own /usr, read-only. `limits`: by default those of
    `Limits`. `env`: variables of all programs. `allowed_hosts`: hosts that programs can reach over HTTP and HTTPS, such as
    "pypi.org"; by default none. `snapshot`: the file of a snapshot of a sandbox of the same image, whose files this one has.
    `images`: how the image is pulled and kept.

    Raises SandboxStartFailed, ImageNotFound, ImageUnavailable, SnapshotUnusable, and ValueError for a wrong host.
    """
    hosts = tuple(HostPattern.parse(host) for host in allowed_hosts)
    named = None if image is None else named_image(image)
    spec = SandboxSpec(named, limits or Limits(), env or {}, allowed_hosts=hosts)
    chosen = await asyncio.to_thread(find_runtime, runtime)
    async with SandboxFactory(chosen, image_settings=images) as factory:
        starting = factory.start(spec) if snapshot is None else factory.start_from(spec, snapshot)
        async with await starting as sandbox:
            yield sandbox
