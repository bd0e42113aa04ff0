"""Slurm commands that misbehave on demand: each shim follows a file's orders, then runs the real command."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

TEXT = """#!/bin/bash
# Each line of the order is one call: what to do instead of, or around, the real command.
exec 9> {folder}/{name}.lock; flock 9
order=$(head -n 1 {folder}/{name}.orders 2>/dev/null)
[ -n "$order" ] && sed -i 1d {folder}/{name}.orders
exec 9>&-
echo "$order" >> {folder}/{name}.calls
case $order in
  silence) exit 0 ;;
  header) {real} "$@" | head -n 1; exit 0 ;;
  half) {real} "$@" > {folder}/$$.table; head -n 2 {folder}/$$.table; rm {folder}/$$.table; exit 0 ;;
  but-one) {real} "$@" | grep -v -- "$(cat {folder}/{name}.word)"; exit 0 ;;
  record) {real} "$@" | tee {folder}/{name}.recorded; exit 0 ;;
  replay) cat {folder}/{name}.recorded; exit 0 ;;
  over) {real} "$@" | sed s/RUNNING/COMPLETED/; exit 0 ;;
  rewound) {real} "$@" | sed s/RUNNING/PENDING/; exit 0 ;;
  hang) sleep 40; exec {real} "$@" ;;
  complaint) {real} "$@"; echo "{name}: error: the site's plug-in failed" >&2; exit 1 ;;
  failure) echo "{name}: error: Unable to contact slurm controller (connect failure)" >&2; exit 1 ;;
  garbage) echo "<html>502 Bad Gateway</html>"; exit 0 ;;
  late) sleep 7; exec {real} "$@" ;;
  lost) {real} "$@" > /dev/null; echo "{name}: error: Socket timed out on send/recv operation" >&2; exit 1 ;;
  *) exec {real} "$@" ;;
esac
"""


class Shims:
    """A folder of shims to put first in PATH."""

    def __init__(self, folder: Path, path: str) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("squeue", "sbatch", "sacct"):
            real = shutil.which(name, path=path)
            if real is None:
                continue
            (folder / name).write_text(TEXT.format(folder=folder, name=name, real=real))
            (folder / name).chmod(0o755)

    def order(self, name: str, what: str, times: int = 1, *, word: str = "") -> None:
        """Make the next `times` calls of this command fail; `but-one` omits output lines with this word."""
        (self.folder / f"{name}.word").write_text(word)
        fresh = self.folder / f"{name}.fresh"
        fresh.write_text(f"{what}\n" * times)
        with (self.folder / f"{name}.lock").open(
            "a"
        ) as lock:  # a call at the same moment must not restore the old orders
            fcntl.flock(lock, fcntl.LOCK_EX)
            fresh.replace(self.folder / f"{name}.orders")

    def clear(self) -> None:
        """Drop the orders that have not happened yet."""
        for orders in self.folder.glob("*.orders"):
            self.order(orders.stem, "", 0)

    def done(self, name: str) -> bool:
        """Return whether all ordered failures have happened."""
        orders = self.folder / f"{name}.orders"
        return not orders.exists() or not orders.read_text()
