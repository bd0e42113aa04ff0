"""Maps an image to a folder that a runtime can use as a root file system, and keeps it on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rollyard.core.errors import ImageNotFound, ImageUnavailable
from rollyard.host.sandbox_account import sandbox_account
from rollyard.images.base import ImageConfig
from rollyard.images.cache import ImageCache
from rollyard.images.folder_config import CONFIG_FILE, BadFolderConfig, read_folder_config
from rollyard.images.layer_stack import LayerStack
from rollyard.images.pinned_image import PinnedImage
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.image_reference import FORMS, ImageReference, PathImage
from rollyard.sandbox.base import OWN, Root
from rollyard.sandbox.build_once import build_once
from rollyard.sandbox_agent.settings import HOME, WORKSPACE

_IMAGE_FORMS = f"{FORMS}, or null for the default image"
_FOLDERS = {WORKSPACE: 0o755, HOME: 0o755, "/run": 0o755, "/tmp": 0o1777, "/var/tmp": 0o1777}
"""Folders that a sandbox has although the image may lack them, with their modes then."""
_USR_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_CERTIFICATES = ("/etc/ssl/certs", "/etc/pki/ca-trust", "/etc/pki/tls/certs")
_NAME_SERVICE = ("/etc/resolv.conf", "/etc/hosts")
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:{HOME}:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    "group": "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "hostname": "sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


@dataclass(frozen=True)
class PinnedRoot:
    """The root of an image, which stays on this machine until `release`."""

    root: Root
    image: PinnedImage | None = None
    """None: the image is used where it is."""
    identity: tuple[object, ...] | None = None
    """Marks of the image's file or folder. Another file or folder under the same name has others."""

    @property
    def fingerprint(self) -> str:
        """Identity of the image, the same on all nodes. Empty: the default image."""
        if self.image is not None:
            return self.image.digest
        if self.identity is None:
            return ""
        path, _, _, size, mtime_ns = self.identity
        return f"{path}, {size} bytes, {mtime_ns}"

    def release(self) -> None:
        if self.image is not None:
            self.image.release()


class _NoRoot(Exception):
    """The folder of an image is not a root file system. `str()` says why, and what one can do."""


class Images:
    """The images of a node's sandboxes. An image that must be unpacked is unpacked once on a node, into `cache`."""

    def __init__(self, folder: Path, settings: CacheSettings | None = None) -> None:
        """`folder`: folder for everything that is built once on a node."""
        self._folder = folder
        self.cache = ImageCache(folder / "image-cache", settings)

    async def pin(self, image: ImageReference | None, pinned: PinnedImage | None = None) -> PinnedRoot:
        """Return the root of an image, and keep the image on this machine until it is released. An image that is not a folder
        is pulled or unpacked into the node's cache if it is missing there. `pinned`: the image, if the caller pins it.

        Raises SandboxStartFailed, ImageUnavailable, and ImageNotFound, for which no retry helps.
        """
        if image is None:
            return PinnedRoot(await asyncio.to_thread(default_root, self._folder))
        if is_in_place(image):
            identity = await asyncio.to_thread(_identity, image)
            return PinnedRoot(await asyncio.to_thread(self.folder_root, image), identity=identity)
        local = await self.cache.get(image) if pinned is None else pinned.again()
        try:
            return PinnedRoot(_configured(self._root_of(local.layers), local.config), local)
        except BaseException as error:
            local.release()
            if isinstance(error, _NoRoot | BadFolderConfig):
                raise ImageNotFound(f"the image {image.text}: {error}") from None
            raise

    def is_current(self, image: ImageReference, pinned: PinnedRoot) -> bool:
        """Return whether `pin` would give the same root now. No registry is asked."""
        if pinned.image is not None:
            return self.cache.known(image) == pinned.image.digest
        return pinned.identity is not None and pinned.identity == _identity(image)

    def folder_root(self, image: ImageReference) -> Root:
        """Return the root of an image that is used where it is. Raises ImageUnavailable, and ImageNotFound for what can never
        be an image."""
        name = image.text
        try:
            if not os.path.exists(name):  # Path.exists raises if a name is too long
                raise _NoRoot(f"there is no such folder: make it, or {_IMAGE_FORMS}")
            if not os.path.isdir(name):
                raise _NoRoot(f"it is not a folder, and its name ends like none of the known files; {_IMAGE_FORMS}")
            folder = Path(name).resolve()
            if own := next(
                (own for own in (Path(os.path.expanduser("~")), self._folder) if own.resolve().is_relative_to(folder)),
                None,
            ):
                raise ImageNotFound(
                    f"the image {name}: it holds {own}, where the job's account keeps files of its own; {_IMAGE_FORMS}"
                )
            if not (folder / "usr").is_dir() and not (folder / "bin").is_dir():
                raise _NoRoot(f"{folder} has neither usr nor bin, so it is not a root file system; {_IMAGE_FORMS}")
            return self._root_of([folder])
        except (_NoRoot, BadFolderConfig) as error:
            raise ImageUnavailable(name, str(error), permanent=True) from None

    def _root_of(self, layers: Sequence[Path]) -> Root:
        if not sandbox_account().can_reach(layers[0]):
            raise _NoRoot(
                f"the user of the sandboxes cannot read {layers[0]}: allow it to read this folder and the folders above"
            )
        config = next((one for one in layers if os.path.lexists(one / CONFIG_FILE)), layers[0])
        return _configured(_plain_root(layers), read_folder_config(config))


def is_in_place(image: ImageReference) -> bool:
    """Return whether an image is a folder, which is used where it is."""
    return isinstance(image, PathImage) and (image.kind == "folder" or os.path.isdir(image.path))


def _identity(image: ImageReference) -> tuple[object, ...] | None:
    try:
        path = Path(image.text).resolve()
        info = path.stat()
    except (OSError, ValueError):
        return None
    return path, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns


def default_root(cache: Path) -> Root:
    """Return the root of the default image: a small root folder of our own, in which this machine's /usr appears
    read-only, and the settings that its programs cannot start without: Debian keeps those of Java in /etc."""
    java = sorted(map(str, Path("/etc").glob("java*")))
    folder = build_once(cache / "-".join(("skeleton-4", *map(os.path.basename, java))), _make_skeleton)
    binds = ["/usr", *(f"/{name}" for name in _USR_LINKS if _is_real_folder(f"/{name}"))]
    binds += [path for path in ("/etc/alternatives", "/etc/ld.so.cache", *java) if os.path.exists(path)]
    return replace(_plain_root([folder]), binds=tuple(binds), user="agent")


def _configured(root: Root, config: ImageConfig) -> Root:
    return replace(root, env=config.env, workdir=config.workdir, user=config.user or root.user)


def _plain_root(layers: Sequence[Path]) -> Root:
    """Return the root that folders make up, the topmost first. Raises _NoRoot."""
    files = LayerStack(layers)
    own = _place(files, OWN)
    folders = {own: 0o755, "proc": 0o755, "dev": 0o755}
    for path, mode in _FOLDERS.items():
        with contextlib.suppress(_NoRoot):  # an image may have a file there
            folders[_place(files, path)] = mode
    return Root(layers, own, folders)


def _place(files: LayerStack, path: str) -> str:
    """Return where a folder of a sandbox lies in its root, without symbolic links. Raises _NoRoot."""
    try:
        place = files.real_path(path)
    except OSError:
        raise _NoRoot(f"its {path} is a loop of symbolic links: make it a folder, or delete it") from None
    parts = place.split("/")
    for count in range(1, len(parts) + 1):
        above = files.find(os.fsencode("/".join(parts[:count])))
        if above is not None and not os.path.isdir(above):
            raise _NoRoot(f"{os.fsdecode(above)} is not a folder, and a sandbox needs a folder there: delete it")
    return place


def with_certificates(root: Root) -> Root:
    """Add this machine's CA certificates to the default image, for TLS."""
    return replace(root, binds=(*root.binds, *(path for path in _CERTIFICATES if os.path.isdir(path))))


def with_name_service(root: Root) -> Root:
    """Add this machine's name servers and host names, for a sandbox with this machine's network."""
    return replace(root, binds=(*root.binds, *(path for path in _NAME_SERVICE if os.path.isfile(path))))


def _is_real_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def _make_skeleton(folder: Path) -> None:
    for name in ("usr", "etc", "root", "etc/alternatives", "home", "mnt", "srv", "proc", "dev", OWN[1:]):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name in _USR_LINKS:
        if os.path.islink(f"/{name}"):
            (folder / name).symlink_to(os.readlink(f"/{name}"))
        elif os.path.isdir(f"/{name}"):
            (folder / name).mkdir()
    for path in (*_CERTIFICATES, *map(str, Path("/etc").glob("java*"))):
        (folder / path[1:]).mkdir(parents=True)
    for path in ("/etc/ld.so.cache", *_NAME_SERVICE):
        (folder / path[1:]).touch()
    for name, text in _ETC.items():
        (folder / "etc" / name).write_text(text)
    _give_away(folder)


def _give_away(folder: Path) -> None:
    """Give the folder to the account of sandboxes, and make it readable for everybody, regardless of the umask."""
    account = sandbox_account()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
