"""The calls `snapshot` and `restore`. The archive goes through a pipe of the owner, so it may be longer than memory."""

from __future__ import annotations

import os

from rollyard.sandbox_agent.changed_files import ChangeArchive, Part, TooManyChanges
from rollyard.sandbox_agent.incremental_tar import BrokenChanges
from rollyard.sandbox_agent.left_out import LeftOut
from rollyard.sandbox_agent.mounts import read_mounts
from rollyard.sandbox_agent.restored_files import ChangeRestorer, ImageDiffers, exact_reader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rollyard.sandbox_agent.clock_mark import ClockMark
    from rollyard.sandbox_agent.frames import Header
    from rollyard.sandbox_agent.settings import Settings

_BUFFER = 1 << 18


def write_snapshot(pipe: int, since: ClockMark, header: Header) -> Header:
    """Write the archive of the changed files, of at most `limit` bytes, to the pipe."""
    part = Part(header["part"]) if header.get("part") else None
    try:
        with os.fdopen(pipe, "wb", _BUFFER) as file:
            archive = ChangeArchive(read_mounts(), since.ns(), file.write, header["limit"], part)
            archive.write()
    except TooManyChanges as error:
        return {"too_large": str(error)}
    except BrokenPipeError:
        return {"broken": "the owner has stopped reading"}
    return {"files": archive.files, "left_out": archive.left_out, "left_out_count": archive.left_out_count}


def restore_snapshot(pipe: int, header: Header, settings: Settings) -> Header:
    """Apply the archive that comes from the pipe."""
    restorer = rules = None
    try:
        with os.fdopen(pipe, "rb", _BUFFER) as file:
            rules = LeftOut(header["rules"], settings) if header.get("rules") else None
            restorer = ChangeRestorer(read_mounts(), exact_reader(file.read), rules)
            restorer.apply()
    except BrokenChanges as error:
        return {"broken": str(error)}
    except (
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
    ) as error:  # a number or a name that no file can have
        return {"broken": f"it is not a snapshot ({type(error).__name__})"}
    except ImageDiffers:
        return {"differs": _text(restorer)}
    except OSError as error:
        return {"errno": error.errno, "error": error.strerror, "path": _text(restorer)}
    return {"named": [os.fsdecode(path) for path in rules.named] if rules is not None else []}


def _text(restorer: ChangeRestorer | None) -> str:
    return restorer.path[-200:].decode("utf-8", "backslashreplace") if restorer else ""
