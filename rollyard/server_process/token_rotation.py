"""Rotation of the server's tokens: a new key, and new tokens for all running jobs and for the administrator.

A job reads its token again when the server refuses the old one. So a job follows a rotation by itself, also one without an
overlap, and a key file that somebody replaced by hand.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from rollyard.core.clock import Clock
from rollyard.kinds.allocation import Allocation
from rollyard.kinds.token import RotationRequest, RotationResult
from rollyard.reconcilers.allocation_folder import AllocationFolders
from rollyard.store.store import Store
from rollyard.trust.admin_kubeconfig import write_kubeconfig
from rollyard.trust.bearer_tokens import Role, TokenSigner
from rollyard.trust.ca import Authority
from rollyard.wire.files import EndpointFile


class TokenRotation:
    """The one place that changes the key of tokens."""

    def __init__(
        self,
        signer: TokenSigner,
        authority: Authority,
        folders: AllocationFolders,
        store: Store,
        data: Path,
        clock: Clock,
    ) -> None:
        self._signer = signer
        self._authority = authority
        self._folders = folders
        self._store = store
        self._data = data
        self._clock = clock
        self._busy = asyncio.Lock()

    async def rotate(self, request: RotationRequest) -> RotationResult:
        """Make a new key, then new tokens. Raises Unavailable and OSError; then the earlier tokens stay valid for the
        overlap, and the next start of the server completes the rotation."""
        async with self._busy:
            await self._store.confirm()  # a server that was replaced must not change keys
            now = self._clock.time()
            await asyncio.to_thread(self._signer.rotate, now, request.overlap_seconds)
            jobs = await self.renew_jobs()
            url = EndpointFile.model_validate_json((self._data / "endpoint.json").read_bytes()).url
            token = self.write_kubeconfig(url)
            return RotationResult(token=token, jobs=jobs, earlier_until=now + request.overlap_seconds)

    async def renew_jobs(self) -> int:
        """Write a new token for each job whose token the present key has not signed. Return the number of these jobs."""
        found, _ = await self._store.objects.list_objects("Allocation", None)
        live = [a for a in found if isinstance(a, Allocation) and not a.status.is_ended]
        return await asyncio.to_thread(lambda: sum(self._folders.renew_token(a, self._signer.is_current) for a in live))

    def write_kubeconfig(self, url: str) -> str:
        """Write `admin.kubeconfig` with a new token; return the token."""
        token = self._signer.issue(Role.ADMIN, "admin")
        write_kubeconfig(self._data / "admin.kubeconfig", url, self._authority.ca_pem, token)
        return token
