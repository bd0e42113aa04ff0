"""The root file system in which a command of a build runs: the image's layers under an overlay. What the command changes is in
a folder of its own, so the image's size does not matter."""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollyard.core.errors import SandboxStartFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.host.sandbox_account import sandbox_account
from rollyard.images.layer_stack import LayerStack
from rollyard.sandbox.find_runtime import LAUNCH_ENVIRONMENT
from rollyard.sandbox.root_mount import ADVICE, FUSE_PLACES, LOCAL, NAMESPACES
from rollyard.sandbox.starter.client import Launch, OverlayRoot, run_alone

_PROBE_SECONDS = 30.0


class StepRoot:
    """Call `make` before its use and `remove` afterwards; both block."""

    def __init__(self, folder: Path, layers: Sequence[Path], fuse: str | None) -> None:
        """`folder`: path of a new folder, on a local disk. `layers`: the image's, the topmost first. `fuse`: fuse-overlayfs, if
        the kernel's overlay is not used."""
        self.files = LayerStack(layers)
        """Files of the image before the command."""
        self.path = folder / "root"
        """Where the launcher finds the root file system."""
        self.changed = folder / "changed"
        """Folder of what the command has changed, with whiteouts (`layer_stack.py`)."""
        self._folder = folder
        self._layers = layers
        self._fuse = fuse
        self._shown: dict[str, Path | bytes] = {}
        """Name -> folder that is mounted, or content of a file, which the command sees and the image does not get."""

    def make(self) -> None:
        self._folder.mkdir()
        self._folder.chmod(0o755)
        for name in ("root", "changed", "work", "lacking"):
            own_folder(self._folder / name)
        for number, layer in enumerate(self._layers):
            (self._folder / f"{number:x}").symlink_to(layer)  # the options of a mount end at a page

    def remove(self) -> None:
        remove_folder(self._folder)

    @property
    def overlay(self) -> OverlayRoot:
        layers = ":".join([*(f"{number:x}" for number in range(len(self._layers))), "lacking"])
        options = f"lowerdir={layers},upperdir=changed,workdir=work"
        return OverlayRoot(str(self._folder), options, self._fuse)

    def mount_point(self, path: str, shown: Path) -> str:
        """Let the root have a place where a file or a folder, `shown`, is mounted; return it, without symbolic links. Below all
        layers is what the image lacks, so nothing of it becomes part of the image."""
        place = self.files.real_path(path)
        self._shown[posixpath.basename(place)] = shown
        if self.files.find(os.fsencode(place)) is None:
            parts = place.split("/")
            for count in range(1, len(parts)):
                if not (above := self._folder.joinpath("lacking", *parts[:count])).exists():
                    own_folder(above)
            lacking = self._folder / "lacking" / place
            if not shown.is_dir():
                own_file(lacking, b"")
            elif not lacking.exists():
                own_folder(lacking)
        return f"/{place}"

    def show(self, folder: str, name: str, data: bytes) -> None:
        """Let a folder of the image, if it is one, show a file in place of its own."""
        found = self.files.folders(os.fsencode(folder))
        if found:
            place = self.changed / folder
            if not place.exists():
                own_folder(place, stat.S_IMODE(os.lstat(found[0]).st_mode))
            own_file(place / name, data)
            self._shown[name] = data

    def without_shown(self, changed: Mapping[str, str]) -> dict[str, str]:
        """Return changes, path -> place, without copies of what the command was shown: the overlay moves a folder of the image
        by a copy. A moved file of the name service is the image's own again."""
        left, copies = dict[str, str](), tuple[str, ...]()
        for path, place in changed.items():
            shown = self._shown.get(posixpath.basename(path))
            if path.startswith(copies):
                continue
            if isinstance(shown, Path) and _lists_the_same(place, shown):
                copies = (*copies, f"{path}/")
            elif isinstance(shown, bytes) and _has_content(place, shown):
                own = self.files.find(os.fsencode(f"etc/{posixpath.basename(path)}"))
                if own is not None:
                    left[path] = os.fsdecode(own)
            else:
                left[path] = place
        return left


def _lists_the_same(folder: str, other: Path) -> bool:
    if os.path.islink(folder) or not os.path.isdir(folder) or not other.is_dir():
        return False
    names = sorted(os.listdir(folder))
    return bool(names) and names == sorted(os.listdir(other))


def _has_content(place: str, data: bytes) -> bool:
    info = os.lstat(place)
    return stat.S_ISREG(info.st_mode) and info.st_size == len(data) and Path(place).read_bytes() == data


def find_overlay(folder: Path) -> str | None:
    """Return the program fuse-overlayfs, or None if the kernel's overlay works in this empty folder. Blocks, for a fraction of
    a second. Raises SandboxStartFailed if nothing works."""
    refusal = _refusal(folder, None)
    if not refusal:
        return None
    program = shutil.which("fuse-overlayfs", path=os.pathsep.join((LAUNCH_ENVIRONMENT["PATH"], *FUSE_PLACES)))
    if program is not None and not _refusal(folder, program):
        return program
    raise SandboxStartFailed(
        f"no overlay can be mounted in {folder.parent} ({refusal}): {LOCAL}, {NAMESPACES}, and {ADVICE}"
    )


def _refusal(folder: Path, fuse: str | None) -> str:
    """Return why a folder of an image cannot be removed; empty if it can."""
    below = folder / "below"
    own_folder(below)
    own_folder(below / "folder")
    root = StepRoot(folder / "probe", [below], fuse)
    try:
        root.make()
        launch = Launch(["rm", "-r", f"{root.path}/folder"], overlay=root.overlay)
        done = run_alone(launch, LAUNCH_ENVIRONMENT, _PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        root.remove()
        remove_folder(below)
    return "" if done.returncode == 0 else done.stdout.strip()[-300:] or "no reason is known"


def own_folder(path: Path, mode: int = 0o755) -> None:
    """Make a folder of the sandboxes' account, which reads and writes it."""
    account = sandbox_account()
    path.mkdir()
    path.chmod(mode)
    os.chown(path, account.uid, account.gid)


def own_file(path: Path, data: bytes) -> None:
    """Make a file of the sandboxes' account."""
    account = sandbox_account()
    path.write_bytes(data)
    path.chmod(0o644)
    os.chown(path, account.uid, account.gid)
