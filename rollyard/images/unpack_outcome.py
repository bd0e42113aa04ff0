"""Errors of the system while an image is unpacked, as results of the process that unpacks it (`unpack.py`)."""

from __future__ import annotations

import errno
from typing import Any


def outcome(error: OSError, layer: int) -> dict[str, Any]:
    """`layer`: number of the layer that was being unpacked."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return {"disk_full": True}
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.ENOTDIR, errno.EISDIR):
        return {"broken": layer, "why": f"it has an impossible file name ({error.strerror})"}
    if error.errno == errno.ESTALE:  # NFS: another machine has deleted the file
        return {"broken": layer, "why": "it was deleted meanwhile"}
    return {"failed": f"{error.strerror}"}
