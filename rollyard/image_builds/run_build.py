"""One build from a context on disk to its outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from rollyard.core.errors import ImageBuildFailed, SandboxStartFailed
from rollyard.host.node_cache import node_cache
from rollyard.image_builds.build_request import BuildParts, BuildRequest
from rollyard.image_builds.builder import ImageBuild
from rollyard.image_builds.definition_file import is_definition, parse_definition
from rollyard.image_builds.dockerfile import parse
from rollyard.image_builds.file_patterns import IgnoreRules
from rollyard.image_builds.image_state import sha256
from rollyard.image_builds.layer_store import LayerStore
from rollyard.image_builds.outputs import parse_output, write_output
from rollyard.image_builds.run_step import Network
from rollyard.image_builds.step_root import find_overlay
from rollyard.images.cache import ImageCache
from rollyard.images.settings import CacheSettings
from rollyard.kinds.values.runtime_name import RuntimeName
from rollyard.sandbox.base import Runtime
from rollyard.sandbox.bundled_python import own_python
from rollyard.sandbox.find_runtime import find_runtime

CACHE_BYTES = 20 << 30
"""Greatest size of the build cache after a build."""


@dataclass(frozen=True)
class BuildOptions:
    context: Path
    file: Path | None = None
    """The Dockerfile or definition file; None: the Dockerfile in the context."""
    outputs: Sequence[str] = ()
    """Forms of `parse_output`."""
    shared: Path | None = None
    """Shared folder that gets the images with a name; None: the node's cache of images."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    target: str | None = None
    network: Network = "host"
    runtime: str = "auto"
    use_cache: bool = True
    images: CacheSettings = field(default_factory=CacheSettings)
    cache: Path | None = None
    """Folder of what many sandboxes of this machine share; None: the node's."""
    folders: Sequence[Path] = ()
    """Folders outside the context that FROM may name."""


async def run_build(options: BuildOptions, output: int, say: Callable[[str], None]) -> str:
    """Build an image, write its outputs, and return its digest. `output`: descriptor that gets what the commands print.

    Raises ImageBuildFailed, ImageUnavailable, ImageNotFound and SandboxStartFailed.
    """
    outputs = [parse_output(text) for text in options.outputs]
    request = _request(options)
    cache = options.cache or node_cache()
    store, images = LayerStore(cache / "image-builds"), ImageCache(cache / "image-cache", options.images)
    try:
        async with store.work_folder() as (work, lock_fd):
            parts = BuildParts(
                store,
                images,
                functools.cache(lambda: _runtime(options.runtime, cache)),
                functools.cache(lambda: own_python(cache)),
                functools.cache(lambda: find_overlay(work)),
                output,
                say,
            )
            state = await ImageBuild(request, parts, work, lock_fd).run()
            for one in outputs:
                say(f"writing {one.text}")
                await write_output(one, state, store, lock_fd, options.shared or cache / "image-cache")
        await images.room.make()
    finally:
        await images.close()
    store.trim(CACHE_BYTES)
    return sha256(state.manifest_json())


def _request(options: BuildOptions) -> BuildRequest:
    context = options.context.resolve()
    if context.is_file():
        raise ImageBuildFailed(
            f"{options.context} is a file: name its folder, and the file with --file if it is not Dockerfile"
        )
    if not context.is_dir():
        raise ImageBuildFailed(f"there is no folder {options.context}: name the folder that COPY takes files from")
    file = options.file or context / "Dockerfile"
    try:
        text = file.read_text()
    except FileNotFoundError:
        raise ImageBuildFailed(f"there is no {file}: write one, or name it with --file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ImageBuildFailed(f"{file} cannot be read: {error}") from None
    parsed = (
        parse_definition(text, file.name, options.arguments) if is_definition(file.name) else parse(text, file.name)
    )
    return BuildRequest(
        context, parsed, options.arguments, options.target, options.network, options.use_cache,
        _rules(context, file), [folder.resolve() for folder in options.folders],
    )  # fmt: skip


def named_build(path: Path) -> tuple[Path, Path | None]:
    """Return the context and the file that a word of the command line names: a folder, or a definition file in it."""
    return (path.absolute().parent, path.absolute()) if is_definition(path.name) and not path.is_dir() else (path, None)


def _rules(context: Path, file: Path) -> IgnoreRules:
    if is_definition(file.name):
        return IgnoreRules()
    for path in (file.with_name(f"{file.name}.dockerignore"), context / ".dockerignore"):
        if path.is_file():
            return IgnoreRules(path.read_text(errors="replace").splitlines())
    return IgnoreRules()


def _runtime(name: str, cache: Path) -> Runtime:
    """Return a runtime. Of two that work, bubblewrap starts faster."""
    if name == "auto":
        try:
            return find_runtime("bubblewrap", cache)
        except SandboxStartFailed:
            pass
    return find_runtime(cast(RuntimeName, name), cache)
