"""The process that packs a layer for the shared tier. Its argument is a job in JSON; it prints the result in JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rollyard.core.process_tree import die_with
from rollyard.images.flat_packer import pack
from rollyard.images.layer_stack import LayerStack


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Pack the folder `root` of a layer into the new file `file`. `below`: the folders of the layers below, if it is whole.
    `names`: the number of files that it must have, or nobody may use it."""
    die_with(os.getppid())
    os.nice(5)
    try:
        with open(job["file"], "xb") as file:
            names = pack(job["root"], file, LayerStack(job["below"]) if job["below"] else None)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"failed": str(error.strerror or error)}
    if names < job["names"]:
        return {"failed": f"{job['names'] - names} of its files and folders were deleted from the node's cache"}
    return {"packed": True}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
