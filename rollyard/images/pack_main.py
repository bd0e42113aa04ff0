"""The process that packs layers for the shared tier. Its argument is a job in JSON; it prints the result in JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rollyard.core.process_tree import die_with
from rollyard.images.flat_packer import pack
from rollyard.images.layer_stack import LayerStack


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Pack the folder `root` of each of `layers` into its new file `file`. `below`: the folders of the layers below, if it is
    whole. `names`: the number of files that it must have, or nobody may use it."""
    die_with(os.getppid())
    os.nice(5)
    for number, layer in enumerate(job["layers"]):
        try:
            with open(layer["file"], "xb") as file:
                names = pack(layer["root"], file, LayerStack(layer["below"]) if layer["below"] else None)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            return {"packed": number, "failed": str(error.strerror or error)}
        if names < layer["names"]:
            lost = layer["names"] - names
            return {"packed": number, "failed": f"{lost} files of a layer were deleted from the node's cache"}
    return {"packed": len(job["layers"])}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
