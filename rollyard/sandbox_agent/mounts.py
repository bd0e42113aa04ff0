"""The mounts of the sandbox, and which of them hold files that the sandbox may have written."""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_OF_THE_KERNEL = ("/proc", "/sys", "/dev")
_SHARED_MEMORY = "/dev/shm"


class Mounts:
    def __init__(self, lines: Iterable[bytes]) -> None:
        """`lines`: lines of /proc/self/mountinfo (proc(5))."""
        writable: dict[bytes, bool] = {}
        """Mount point -> whether everything in it is the sandbox's own: a tmpfs is empty at the start."""
        self.points: set[bytes] = set()
        """All mount points, without the root."""
        for line in lines:
            left, _, right = line.partition(b" - ")
            point, options = left.split(b" ")[4:6]
            point = re.sub(rb"\\(\d{3})", lambda found: bytes([int(found[1], 8)]), point)
            if point != b"/":
                self.points.add(point)
            writable.pop(point, None)  # a later mount hides the earlier one
            if b"rw" in options.split(b",") and not _is_of_the_kernel(point.decode("utf-8", "surrogateescape")):
                writable[point] = point != b"/" and right.split(b" ")[0] == b"tmpfs"
        self.writable = writable
        self.above: set[bytes] = {b"/"}
        """Folders above mount points. The runtime made some of them, so nothing follows from their times."""
        for point in self.points:
            while point != b"/":
                point = point.rpartition(b"/")[0] or b"/"
                self.above.add(point)

    def is_whole(self, path: bytes) -> bool:
        """Whether everything at `path` is the sandbox's own."""
        while path not in self.writable and path not in self.points and path != b"/":
            path = path.rpartition(b"/")[0] or b"/"
        return self.writable.get(path, False)


def read_mounts() -> Mounts:
    with open("/proc/self/mountinfo", "rb") as file:
        return Mounts(file.read().splitlines())


def _is_of_the_kernel(point: str) -> bool:
    inside = any(point == place or point.startswith(place + "/") for place in _OF_THE_KERNEL)
    return inside and point != _SHARED_MEMORY
