"""The process that packs an image for the shared tier. Its argument is a job in JSON; it prints the result in JSON."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from rollyard.images.flat_packer import pack


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Pack the folder `root` and the configuration into the new file `file`."""
    os.nice(5)
    try:
        with open(job["file"], "xb") as file:
            pack(job["root"], job["config"], file)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return {"failed": str(error.strerror or error)}
    return {"packed": True}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
