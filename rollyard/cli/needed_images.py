"""The built images that a server needs. Whoever deletes images asks for them, because a built image is no copy."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from rollyard.core.errors import RollyardError

if TYPE_CHECKING:
    from rollyard.kinds.values.image_reference import BuiltImage


class NeededImages:
    """Which built images must stay. The server is asked once, when the first of them would be deleted; never on the event
    loop."""

    def __init__(self, kubeconfig: Path | None) -> None:
        self._kubeconfig = kubeconfig
        self._names: set[str] | None = None
        self._unknown = False
        self.why = "rollouts or pools need it"
        self.spared = set[str]()

    def __call__(self, image: BuiltImage) -> bool:
        if self._names is None:
            self._names = self._ask()
        if self._unknown or image.text in self._names:
            self.spared.add(image.text)
            return True
        return False

    def _ask(self) -> set[str]:
        from rollyard.client.async_client import AsyncClient
        from rollyard.client.kubeconfig import VARIABLE

        async def names() -> set[str]:
            async with AsyncClient(kubeconfig=self._kubeconfig, retry_seconds=0) as client:
                return await client.images_needed()

        named = self._kubeconfig or os.environ.get(VARIABLE)
        if not named and not (Path.home() / ".rollyard" / "config").exists():
            return set()  # no server is known here
        try:
            return asyncio.run(names())
        except RollyardError as error:
            self._unknown, self.why = True, f"the server must say that no rollout needs it ({error})"
            return set()
