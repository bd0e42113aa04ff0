"""The process that unpacks the layers of an image, as the account of the sandboxes. Its argument is a job in JSON; it prints
the result in JSON (`unpack.py`).

It ends when the node agent ends.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

from rollyard.host.removed_folder import remove
from rollyard.images.child_account import become_sandbox_account
from rollyard.images.layer_chunks import layer_chunks
from rollyard.images.layer_stack import LayerStack
from rollyard.images.layer_unpacker import LayerUnpacker, NoWhiteouts, TooBig
from rollyard.images.tar_stream import BrokenArchive
from rollyard.images.tree_size import bytes_on_disk, count_names
from rollyard.images.unpack_outcome import outcome

_MOST_MEMORY = 4 << 30
"""Address space of this process. The names of a layer's files are in memory: a million take 0.3 GB."""


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Unpack `layers` into the folder `root`, or each of `differences` into a folder of its own."""
    parent = os.getppid()
    work = _Differences(job["differences"], job["limit"]) if "differences" in job else _Whole(job["root"], job["limit"])
    paths = [one["file"] for one in job["differences"]] if "differences" in job else job["layers"]
    with ExitStack() as stack:
        files = [path and stack.enter_context(open(path, "rb")) for path in paths]  # they may be readable for root only
        become_sandbox_account(job["uid"], job["gid"], parent)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        for number, file in enumerate(files):
            try:
                work.apply(number, file)
            except BrokenArchive as error:
                return {"broken": number, "why": str(error)}
            except TooBig:
                return {"too_big": True}
            except MemoryError:
                return {"broken": number, "why": "it has too many files"}
            except OSError as error:
                return outcome(error, number)
        return work.finish()


class _Whole:
    """All layers over each other in one folder."""

    def __init__(self, root: str, limit: int) -> None:
        self._unpacker = LayerUnpacker(root, limit)

    def apply(self, _: int, file: BinaryIO) -> None:
        self._unpacker.apply(layer_chunks(file))

    def finish(self) -> dict[str, Any]:
        self._unpacker.finish()
        return {"bytes": self._unpacker.bytes}


class _Differences:
    """Each layer in a folder of its own (`unpacked_layers.py`)."""

    def __init__(self, layers: Sequence[dict[str, Any]], limit: int) -> None:
        self._layers = layers
        self._limit = limit
        self._below: list[str] = []
        """Folders of the layers below the next one, as far as they are seen, the topmost first."""
        self._made: list[dict[str, Any]] = []

    def apply(self, number: int, file: BinaryIO | None) -> None:
        """`file`: None for a layer that is unpacked already."""
        layer = self._layers[number]
        if file is not None:
            made = self._unpacked(layer["root"], file, layer["whole"])
            self._made.append(made)
            layer |= made
        self._limit -= layer["bytes"]
        self._below = [layer["root"], *(() if layer["whole"] else self._below)]

    def _unpacked(self, root: str, file: BinaryIO, whole: bool) -> dict[str, Any]:
        """Unpack one layer. Where no whiteout can be had, it becomes whole."""
        below = LayerStack(self._below)
        unpacker = LayerUnpacker(root, self._limit, LayerStack(()) if whole else below)
        try:
            if whole:
                unpacker.link(below)
            unpacker.apply(layer_chunks(file))
        except NoWhiteouts:
            for entry in os.scandir(root):
                remove(Path(entry.path))
            file.seek(0)
            return self._unpacked(root, file, whole=True)
        unpacker.finish()
        folder = Path(root)
        return {"bytes": bytes_on_disk(folder, unpacker.linked), "names": count_names(folder), "whole": whole}

    def finish(self) -> dict[str, Any]:
        return {"made": self._made}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
