"""Builds the image of a Dockerfile: its stages, as far as they are needed, and the images they start from."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from rollyard.core.errors import ImageBuildFailed, ImageNotFound, ImageUnavailable
from rollyard.image_builds.build_request import BuildParts, BuildRequest
from rollyard.image_builds.build_steps import BuildSteps
from rollyard.image_builds.dockerfile import BuildStage, Instruction
from rollyard.image_builds.image_state import ImageState
from rollyard.image_builds.image_state import digest as digest_of
from rollyard.image_builds.site_network import PROXIES
from rollyard.image_builds.tree_changes import KERNEL_FOLDERS, Layer, layer_of_file, read_signatures, write_layer
from rollyard.image_builds.variables import BadText, expand
from rollyard.image_builds.work_root import WorkRoot
from rollyard.images.base import ImageConfig
from rollyard.images.folder_config import CONFIG_FILE, BadFolderConfig, read_folder_config
from rollyard.images.named_image import named_image
from rollyard.images.oci_manifest import machine
from rollyard.images.pinned_image import PinnedImage
from rollyard.kinds.values.image_reference import ImageReference, PathImage

_NAMED_FORMS = ("docker://", "built:", "oci:", "oci-archive:", "docker-archive:", "/", "./", "../")
_WHOLE_NAMES = (".", "..")
_WITHOUT_REGISTRY = (
    "; without this registry, name a mirror as HOST/NAME:TAG, an archive as oci-archive:/FILE.tar or docker-archive:/FILE.tar, "
    "or a folder with a root file system. Or make a base of Debian with `mmdebstrap bookworm base.tar`, and write "
    "`FROM scratch` and `ADD base.tar /`"
)


class ImageBuild:
    """One build. Use once."""

    def __init__(self, request: BuildRequest, parts: BuildParts, work: Path, lock_fd: int) -> None:
        """`work`: an empty folder that belongs to this build. `lock_fd`: descriptor of its lock."""
        self._request = request
        self._parts = parts
        self._file = request.file
        self._work = work
        self._lock_fd = lock_fd
        self._done: dict[int, tuple[ImageState, WorkRoot]] = {}
        self._bases: dict[str, tuple[ImageState, WorkRoot]] = {}
        self._folders = 0
        self._held = parts.images.held_layers()
        self._variables = self._variables_of_from()

    async def run(self) -> ImageState:
        """Raises ImageBuildFailed and SandboxStartFailed."""
        for name in sorted(self._request.arguments.keys() - self._declared_arguments() - set(PROXIES)):
            self._parts.say(f"--build-arg {name} has no effect: the file has no ARG {name}")
        with self._held:
            state, _ = await self._stage(self._target())
        return state

    def _target(self) -> BuildStage:
        stages, target = self._file.stages, self._request.target
        if target is None:
            return stages[-1]
        found = self._named(target, len(stages))
        if found is None:
            names = ", ".join(stage.name or str(stage.number) for stage in stages)
            raise ImageBuildFailed(f"{self._file.name} has no stage {target!r}: choose one of {names}")
        return found

    def _named(self, name: str, before: int) -> BuildStage | None:
        """Return the stage with this name or number, if it stands before the stage `before`."""
        stages = self._file.stages[:before]
        if name.isdigit():
            return stages[int(name)] if int(name) < len(stages) else None
        return next((stage for stage in reversed(stages) if stage.name == name.lower()), None)

    def _declared_arguments(self) -> set[str]:
        bodies = (stage.instructions for stage in self._file.stages)
        lines = [*self._file.arguments, *(one for body in bodies for one in body)]
        return {one.text.partition("=")[0].strip() for one in lines if one.keyword == "ARG"}

    def _variables_of_from(self) -> dict[str, str]:
        own = machine()
        values = {"PLATFORM": f"linux/{own}", "OS": "linux", "ARCH": own}
        values = {f"{side}{name}": value for side in ("TARGET", "BUILD") for name, value in values.items()}
        for one in self._file.arguments:
            name, equals, default = one.text.partition("=")
            value = self._request.arguments.get(name.strip())
            if value is None and equals:
                value = self._expanded(one.line, default, values)
            if value is not None:
                values[name.strip()] = value
        return values

    def _expanded(self, line: int, text: str, variables: Mapping[str, str]) -> str:
        try:
            return expand(text, variables, self._file.escape)
        except BadText as error:
            raise self._file.at(line, str(error)) from None

    # stages

    async def _stage(self, stage: BuildStage) -> tuple[ImageState, WorkRoot]:
        if stage.number not in self._done:
            base, _ = await self._start(
                stage.line, self._expanded(stage.line, stage.base, self._variables), stage.number
            )
            folder, root = self._new_root()

            async def other(one: Instruction, name: str) -> tuple[ImageState, WorkRoot]:
                return await self._start(one.line, name, stage.number)

            steps = BuildSteps(self._request, self._parts, stage, base, root, folder, self._variables, other)
            self._done[stage.number] = await steps.run(), root
        return self._done[stage.number]

    async def _start(self, line: int, name: str, before: int) -> tuple[ImageState, WorkRoot]:
        """Return an earlier stage, an image, or scratch."""
        if (stage := self._named(name, before)) is not None:
            return await self._stage(stage)
        if not name or name.isdigit() or any(char.isspace() for char in name):
            raise self._file.at(line, f"{name!r} is neither an earlier stage nor the name of an image")
        if name not in self._bases:
            state = ImageState(digest_of(["scratch"])) if name == "scratch" else await self._image(line, name, before)
            self._bases[name] = state, self._new_root()[1]
        return self._bases[name]

    def _new_root(self) -> tuple[Path, WorkRoot]:
        """Return an empty folder, and a root in it."""
        self._folders += 1
        folder = self._work / str(self._folders)
        folder.mkdir()
        folder.chmod(0o755)
        return folder, WorkRoot(self._parts.store, self._held, folder, self._lock_fd, self._parts.overlay)

    # images

    async def _image(self, line: int, name: str, before: int) -> ImageState:
        """Return an image with its own layers; a folder or a file without layers as one layer."""
        plain = (
            not name.startswith(_NAMED_FORMS) and name not in _WHOLE_NAMES and not name.endswith((".sif", ".squashfs"))
        )
        try:
            image = named_image(f"docker://{name}" if plain else name, self._request.context)
            self._parts.say(f"FROM {image.text}")
            if isinstance(image, PathImage) and image.kind == "folder":
                root = Path(image.path)
                config = self._folder_config(line, root)
                key, layers = await asyncio.to_thread(self._layers_of_folder, root)
                return ImageState.of_base(key, layers, config)
            with await self._parts.images.get(image) as pinned:
                key = digest_of(["image", pinned.digest])
                layers = self._parts.store.find_base(key) or await self._layers_of(image, pinned)
            self._parts.store.keep_base(key, layers)
            return ImageState.of_base(key, layers, pinned.config)
        except (ImageNotFound, ImageUnavailable) as error:
            raise self._file.at(line, f"{error}{self._hint(before, plain)}") from error

    async def _layers_of(self, image: ImageReference, pinned: PinnedImage) -> list[Layer]:
        """Take the layers of an image into the store."""
        with contextlib.ExitStack() as pins:
            files = await self._parts.images.layer_files(image, pinned.digest, pins)
            layers = [await asyncio.to_thread(layer_of_file, one.file, one.digest, one.diff_id) for one in files]
            for one, layer in zip(files, layers, strict=True):
                await asyncio.to_thread(self._parts.store.add_copy, one.file, layer)
        if not files:
            shown = await asyncio.to_thread(lambda: [*pinned.files.walk()])
            layers = await asyncio.to_thread(
                self._packed, pinned.layers[0], {os.fsdecode(path): os.fsdecode(place) for path, place in shown}
            )
        return layers

    def _folder_config(self, line: int, root: Path) -> ImageConfig:
        """Raise ImageBuildFailed for a folder that is missing, or that the Dockerfile may not read."""
        real = root.resolve()
        if not any(real.is_relative_to(folder) for folder in (self._request.context, *self._request.folders)):
            raise self._file.at(
                line,
                f"{root} is outside of the context, and a Dockerfile may not read it: if you trust the file, "
                f"add --allow-folder {shlex.quote(str(real))}",
            )
        if not root.is_dir():
            raise self._file.at(
                line, f"there is no folder {root}: name a folder with a root file system, or NAME:TAG of a registry"
            )
        try:
            return read_folder_config(root)
        except BadFolderConfig as error:
            raise self._file.at(line, str(error)) from None

    def _hint(self, before: int, plain: bool) -> str:
        """Return what one can write in place of an image that cannot be had."""
        stages = [stage.name or str(stage.number) for stage in self._file.stages[:before]]
        earlier = f"; the earlier stages are {', '.join(stages)}" if stages else ""
        return earlier + (_WITHOUT_REGISTRY if plain else "")

    def _layers_of_folder(self, root: Path) -> tuple[str, list[Layer]]:
        """Return the key and the layers of a folder, which is as before if no file in it has changed."""
        signatures = read_signatures(root)
        key = digest_of(["image", sorted(signatures.items())])
        layers = self._parts.store.find_base(key)
        if layers is None:
            layers = self._packed(root, {path: os.path.join(root, path) for path in signatures})
            self._parts.store.keep_base(key, layers)
        return key, layers

    def _packed(self, root: Path, files: Mapping[str, str]) -> list[Layer]:
        """Return files as one layer, which is in the store; none if there are none. `files`: path -> place on this machine."""
        wanted = {path: place for path, place in files.items() if path != CONFIG_FILE and not _is_of_kernel(path)}
        if not wanted:
            return []
        growing = self._work / "base"
        try:
            with open(growing, "wb") as file:
                layer = write_layer(wanted, (), file)
        except OSError as error:
            raise ImageBuildFailed(f"{root} cannot be read as an image: {error.strerror} ({error.filename})") from error
        self._parts.store.add(growing, layer)
        return [layer]


def _is_of_kernel(path: str) -> bool:
    """Return whether a file is in a folder whose content the kernel shows."""
    above, _, below = path.partition("/")
    return bool(below) and above in KERNEL_FOLDERS
