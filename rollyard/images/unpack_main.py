"""The process that unpacks the layers of an image, as the account of the sandboxes. Its argument is a job in JSON; it prints
the result in JSON (`unpack.py`).

It ends when the node agent ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import ExitStack
from typing import Any

from rollyard.images.child_account import become_sandbox_account
from rollyard.images.layer_chunks import layer_chunks
from rollyard.images.layer_unpacker import LayerUnpacker, TooBig
from rollyard.images.tar_stream import BrokenArchive
from rollyard.images.unpack_outcome import outcome

_MOST_MEMORY = 4 << 30
"""Address space of this process. The names of a layer's files are in memory: a million take 0.3 GB."""


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Unpack the layers into the folder `root`."""
    parent = os.getppid()
    with ExitStack() as stack:
        files = [stack.enter_context(open(path, "rb")) for path in job["layers"]]  # they may be readable for root only
        become_sandbox_account(job["uid"], job["gid"], parent)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        unpacker = LayerUnpacker(job["root"], job["limit"])
        try:
            for number, file in enumerate(files):
                try:
                    unpacker.apply(layer_chunks(file))
                except BrokenArchive as error:
                    return {"broken": number, "why": str(error)}
            unpacker.finish()
        except TooBig:
            return {"too_big": True}
        except MemoryError:
            return {"broken": number, "why": "it has too many files"}
        except OSError as error:
            return outcome(error, number)
    return {"bytes": unpacker.bytes}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
