"""The process that unpacks a flat image, as the account of the sandboxes, with children that help it. Its argument is a job in
JSON; it prints the result in JSON (`unpack.py`).

It ends when the node agent ends, and its children end with it.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
from typing import Any

from rollyard.core.process_tree import die_with
from rollyard.core.regular_file import open_regular
from rollyard.images.child_account import become_sandbox_account
from rollyard.images.flat_image import BrokenFlatImage, read_index, read_list
from rollyard.images.flat_unpacker import FlatUnpacker
from rollyard.images.unpack_outcome import outcome

_MOST_PROCESSES = 4
_MOST_MEMORY = 4 << 30
"""Address space of each process. The list of files is in memory."""


def main(job: dict[str, Any]) -> dict[str, Any]:
    """Unpack the file into the folder `root`."""
    gc.disable()  # nothing here refers to itself
    parent = os.getppid()
    try:
        opened = open_regular(job["file"])  # it may be readable for root only
    except FileNotFoundError:
        return {"broken": 0, "why": "it was deleted meanwhile"}
    except OSError as error:
        return outcome(error, 0)
    with opened as file:
        become_sandbox_account(job["uid"], job["gid"], parent)
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
        os.chdir(job["root"])
        try:
            index = read_index(file)
            unpacker = FlatUnpacker(file.fileno(), index, read_list(file.fileno(), index))
            if unpacker.bytes > job["limit"]:
                return {"too_big": True}
            unpacker.make_folders()
            if failed := _make_files(unpacker, min(_MOST_PROCESSES, len(os.sched_getaffinity(0)), len(index.frames))):
                return failed
            unpacker.finish()
        except BrokenFlatImage as error:
            return {"broken": 0, "why": str(error)}
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            return {"broken": 0, "why": f"its list is damaged: {error}"}
        except MemoryError:
            return {"broken": 0, "why": "it has too many files"}
        except OSError as error:
            return outcome(error, 0)
    return {"bytes": unpacker.bytes}


def _make_files(unpacker: FlatUnpacker, processes: int) -> dict[str, Any]:
    """Make the files, with children for all parts except the first. Return a failure, or an empty object."""
    children = [_start(unpacker, part, processes) for part in range(1, processes)]
    results = [_made(unpacker, 0, processes)]
    for pid, reader in children:
        if results[0]:
            os.kill(pid, signal.SIGKILL)
        with open(reader) as printed:
            text = printed.read()
        os.waitpid(pid, 0)
        results.append(json.loads(text) if text else {"failed": "a process that unpacked it was killed"})
    return next((result for result in results if result), {})


def _start(unpacker: FlatUnpacker, part: int, parts: int) -> tuple[int, int]:
    """Start a child. Return its process id and the descriptor from which its result is read."""
    reader, writer = os.pipe()
    own = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writer)
        return pid, reader
    try:
        die_with(own)
        os.write(writer, json.dumps(_made(unpacker, part, parts)).encode())
    finally:
        os._exit(0)


def _made(unpacker: FlatUnpacker, part: int, parts: int) -> dict[str, Any]:
    try:
        unpacker.make_files(part, parts)
    except BrokenFlatImage as error:
        return {"broken": 0, "why": str(error)}
    except OSError as error:
        return outcome(error, 0)
    return {}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))  # noqa: T201
