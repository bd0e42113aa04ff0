"""The files with which the sandbox of EVAL begins, if its task kind wants all that the sandbox of RUN has changed.

They are a snapshot. The node agent that ran RUN has it in a file, also if it is too large for the server. Another node
agent reads it from the server.
"""

from __future__ import annotations

import io

from rollyard.core.errors import Invalid, NodeFault, NotFound, RollyardError, SandboxBroken, SnapshotUnusable, TooLarge
from rollyard.node.result_uploads import ResultUploads
from rollyard.sandbox.sandbox import Sandbox
from rollyard.sandbox.snapshot import RestoreRules, SandboxSnapshot
from rollyard.wire.node import LeaseRef


class EvalFiles:
    """The snapshot at the end of RUN. `close` deletes the file of this node agent."""

    def __init__(self) -> None:
        self._snapshot: SandboxSnapshot | None = None
        self._image = ""

    def keep(self, snapshot: SandboxSnapshot, image: str) -> None:
        """Take over the snapshot of a sandbox with this image."""
        self.close()
        self._snapshot, self._image = snapshot, image

    def has(self, snapshot: SandboxSnapshot) -> bool:
        return self._snapshot is snapshot

    def missing(self, error: OSError | TooLarge) -> RollyardError:
        """Return the error of a rollout whose EVAL lacks its files, because no snapshot could be taken."""
        if isinstance(error, TooLarge):
            return SandboxBroken(f"EVAL begins with a snapshot of the agent's sandbox: {error}")
        why = error.strerror or str(error)
        return NodeFault(
            f"EVAL begins with a snapshot of the agent's sandbox, which the node agent cannot write: {why}"
        )

    async def restore(
        self, sandbox: Sandbox, uploads: ResultUploads, ref: LeaseRef, rules: RestoreRules | None = None
    ) -> None:
        """Give a fresh sandbox the files; more than once, if wanted. Raises SnapshotUnusable, and NodeFault if they are
        gone."""
        if self._snapshot is not None:
            check_image(self._image, sandbox)
            await sandbox.restore(self._snapshot.file, rules)
            return
        try:
            about, archive = await uploads.run_snapshot(ref)
        except (NotFound, Invalid) as error:
            raise NodeFault(
                "EVAL begins with a snapshot of the agent's sandbox; the node agent that had it is gone, and the server has "
                f"none: {error}"
            ) from None
        check_image(about.image, sandbox)
        await sandbox.restore(io.BytesIO(archive), rules)

    def close(self) -> None:
        if self._snapshot is not None:
            self._snapshot.close()
            self._snapshot = None


def check_image(image: str, sandbox: Sandbox) -> None:
    """Raise SnapshotUnusable if the sandbox has another image than the one of a snapshot."""
    if image != sandbox.image.fingerprint:
        raise SnapshotUnusable(
            f"the snapshot belongs to {image or 'the default image'}, but the sandbox now has "
            f"{sandbox.image.fingerprint or 'the default image'}: the image has changed; begin with a rollout of its own"
        )
