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

from rollyard.core.regular_file import open_regular
from rollyard.host.removed_folder import remove
from rollyard.images.child_account import become_sandbox_account
from rollyard.images.flat_layer import BrokenFlatLayer
from rollyard.images.flat_processes import ChildFailed, unpack_flat
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
        files = list[BinaryIO | None]()
        for number, path in enumerate(paths):  # they may be readable for root only
            try:
                files.append(path and stack.enter_context(open_regular(path)))
            except FileNotFoundError:
                return {"broken": number, "why": "it was deleted meanwhile"}
            except OSError as error:
                return outcome(error, number)
        become_sandbox_account(job["uid"], job["gid"], parent)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        for number, file in enumerate(files):
            try:
                work.apply(number, file)
            except (BrokenArchive, BrokenFlatLayer) as error:
                return {"broken": number, "why": str(error)}
            except ChildFailed as error:
                return error.result
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

    def apply(self, _: int, file: BinaryIO | None) -> None:
        assert file is not None
        self._unpacker.apply(layer_chunks(file))

    def finish(self) -> dict[str, Any]:
        self._unpacker.finish()
        return {"bytes": self._unpacker.bytes}


class _Differences:
    """Each layer in a folder of its own (`unpacked_layers.py`)."""

    def __init__(self, layers: Sequence[dict[str, Any]], limit: int) -> None:
        self._layers = [{**one, "root": os.path.abspath(one["root"])} for one in layers]
        self._limit = limit
        self._below: list[str] = []
        """Folders of the layers below the next one, as far as they are seen, the topmost first."""
        self._made: list[dict[str, Any]] = []

    def apply(self, number: int, file: BinaryIO | None) -> None:
        """`file`: None for a layer that is unpacked already."""
        layer = self._layers[number]
        if file is not None:
            made = self._unpacked(number, file, layer["whole"])
            self._made.append(made)
            layer |= made
        self._limit -= layer["bytes"]
        self._below = [layer["root"], *(() if layer["whole"] else self._below)]

    def _unpacked(self, number: int, file: BinaryIO, whole: bool) -> dict[str, Any]:
        """Unpack one layer. Where no whiteout can be had, it becomes whole."""
        layer, below = self._layers[number], LayerStack(self._below)
        root = layer["root"]
        try:
            if layer["packed"]:
                size, names = unpack_flat(file, number, root, self._limit, below if whole else None)
            else:
                size, names = self._unpacked_archive(file, root, below, whole)
        except NoWhiteouts:
            for entry in os.scandir(root):
                remove(Path(entry.path))
            file.seek(0)
            return self._unpacked(number, file, whole=True)
        return {"bytes": size, "names": names, "whole": whole}

    def _unpacked_archive(self, file: BinaryIO, root: str, below: LayerStack, whole: bool) -> tuple[int, int]:
        unpacker = LayerUnpacker(root, self._limit, LayerStack(()) if whole else below)
        if whole:
            unpacker.link(below)
        unpacker.apply(layer_chunks(file))
        unpacker.finish()
        return bytes_on_disk(Path(root), unpacker.linked), count_names(Path(root))

    def finish(self) -> dict[str, Any]:
        return {"made": self._made}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
