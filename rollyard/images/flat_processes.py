"""Unpacks a flat layer with several processes, in one that is the account of the sandboxes (`unpack_main.py`).

The children end with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from pathlib import Path
from typing import Any, BinaryIO

from rollyard.core.process_tree import die_with
from rollyard.images.flat_layer import BrokenFlatLayer, read_index, read_list
from rollyard.images.flat_unpacker import FlatUnpacker
from rollyard.images.layer_stack import LayerStack
from rollyard.images.layer_unpacker import LayerUnpacker, TooBig
from rollyard.images.tree_size import bytes_on_disk, count_names
from rollyard.images.unpack_outcome import outcome

_MOST_PROCESSES = 4


class ChildFailed(Exception):
    """A child has not unpacked its part. `result`: as that of the process."""

    def __init__(self, result: dict[str, Any]) -> None:
        super().__init__(str(result))
        self.result = result


def unpack_flat(file: BinaryIO, number: int, root: str, limit: int, below: LayerStack | None) -> tuple[int, int]:
    """Unpack layer `number` of an image into the empty folder `root`, which becomes the working folder. `below`: the layers
    below, if the layer is to be whole. Return the bytes on disk, without links to files of the layers below, and the number of
    files and folders. Raises BrokenFlatLayer, TooBig, NoWhiteouts, ChildFailed and OSError."""
    gc.disable()  # nothing here refers to itself
    os.chdir(root)
    try:
        index = read_index(file)
        unpacker = FlatUnpacker(file.fileno(), index, read_list(file.fileno(), index))
        linked = LayerUnpacker(root, limit)
        if below is not None:
            linked.link(below)
            unpacker.clear()
        if linked.bytes + unpacker.bytes > limit:
            raise TooBig
        unpacker.make_folders()
        if below is None:
            unpacker.make_whiteouts()
        _make_files(unpacker, number, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(index.frames)))
        linked.finish()
        unpacker.finish()
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise BrokenFlatLayer(f"its list is damaged: {error}") from None
    finally:
        gc.enable()
    if below is not None:
        return bytes_on_disk(Path(root), linked.linked), count_names(Path(root))
    return unpacker.bytes, unpacker.names


def _make_files(unpacker: FlatUnpacker, number: int, processes: int) -> None:
    """Make the files, with children for all parts except the first."""
    children = [_start(unpacker, number, part, processes) for part in range(1, processes)]
    results = [_made(unpacker, number, 0, processes)]
    for pid, reader in children:
        if results[0]:
            os.kill(pid, signal.SIGKILL)
        with open(reader) as printed:
            text = printed.read()
        os.waitpid(pid, 0)
        results.append(json.loads(text) if text else {"failed": "a process that unpacked it was killed"})
    for result in results:
        if result:
            raise ChildFailed(result)


def _start(unpacker: FlatUnpacker, number: int, part: int, parts: int) -> tuple[int, int]:
    """Start a child. Return its process id and the descriptor from which its result is read."""
    reader, writer = os.pipe()
    own = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        die_with(own)
        os.write(writer, json.dumps(_made(unpacker, number, part, parts)).encode())
    finally:
        os._exit(0)


def _made(unpacker: FlatUnpacker, number: int, part: int, parts: int) -> dict[str, Any]:
    try:
        unpacker.make_files(part, parts)
    except BrokenFlatLayer as error:
        return {"broken": number, "why": str(error)}
    except OSError as error:
        return outcome(error, number)
    return {}
