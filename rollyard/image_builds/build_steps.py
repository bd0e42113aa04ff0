"""The steps of one stage. A step whose inputs are as before takes its layer from the cache of builds.

All instructions are in one file, because each of them reads and replaces the same state of the stage.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from rollyard.core.errors import ImageBuildFailed
from rollyard.host.removed_folder import remove_folder
from rollyard.image_builds.build_request import BuildParts, BuildRequest
from rollyard.image_builds.container_environment import DEFINITION_VARIABLES, PRINTED, exported, printing
from rollyard.image_builds.copied_files import (
    CopySource,
    CopyTree,
    NoSuchFile,
    digest,
    host_tree,
    resolve_in,
    write_copy,
)
from rollyard.image_builds.copied_mode import BadMode, Mode
from rollyard.image_builds.definition_file import NO_EFFECT, shell_of
from rollyard.image_builds.dockerfile import PASSED_OVER, BuildStage, Instruction
from rollyard.image_builds.image_state import ImageState
from rollyard.image_builds.run_mounts import BadMount, RunMount, parse_mount
from rollyard.image_builds.run_step import PASSED_OVER as CONTAINER_PATHS
from rollyard.image_builds.run_step import PATH, Network, StepCommand, run_step
from rollyard.image_builds.site_network import proxies
from rollyard.image_builds.step_root import StepRoot, own_folder
from rollyard.image_builds.tree_changes import Layer
from rollyard.image_builds.variables import BadText, expand, expand_plain, pairs
from rollyard.image_builds.work_root import WorkRoot
from rollyard.image_builds.written_sources import download, text_source
from rollyard.images.layer_stack import LayerStack
from rollyard.images.site_certificates import certificates

_SCRIPT = "/dev/rollyard-step"
_MOST_ARGUMENT = (128 << 10) - 1
"""Greatest length of one argument of a program in bytes (MAX_ARG_STRLEN, without the zero at its end)."""
_SHELLS = ("sh", "ash", "bash", "dash", "ksh", "mksh", "zsh", "busybox")
"""Programs that read a file into the same shell by `. FILE`."""
_ONLY_HEREDOC = re.compile(r"<<-?(['\"]?)[A-Za-z_][A-Za-z0-9_.]*\1")

OtherTree = Callable[[Instruction, str], Awaitable[tuple[ImageState, WorkRoot]]]
"""Returns the stage or image that `COPY --from` names."""


@dataclass(frozen=True)
class _FoundFiles:
    fingerprint: object
    """All that the files depend on."""
    find: Callable[[], Awaitable[list[CopySource]]] | None
    """None: no files, an empty folder."""


class BuildSteps:
    """Runs the instructions of a stage, one after the other. Use once."""

    def __init__(
        self,
        request: BuildRequest,
        parts: BuildParts,
        stage: BuildStage,
        base: ImageState,
        root: WorkRoot,
        work: Path,
        inherited: Mapping[str, str],
        other: OtherTree,
    ) -> None:
        """`work`: an empty folder. `inherited`: values for each ARG without a default."""
        self._request = request
        self._parts = parts
        self._file = request.file
        self._stage = stage
        self._state = base
        self._root = root
        self._work = work
        self._inherited = inherited
        self._other = other
        self._arguments: dict[str, str] = {}
        self._own_cmd = False
        self._said: set[str] = set()

    async def run(self) -> ImageState:
        """Raises ImageBuildFailed and SandboxStartFailed."""
        count = len(self._stage.instructions)
        for number, one in enumerate(self._stage.instructions, 1):
            name = f"{self._stage.name} " if self._stage.name else ""
            self._parts.say(f"[{name}{number}/{count}] {one.shown}")
            with self._errors_of(one):
                await self._do(one)
        return self._state

    async def _do(self, one: Instruction) -> None:
        state, text = self._state, one.text
        match one.keyword:
            case "RUN" | "%post":
                await self._run(one)
            case "COPY" | "ADD" | "%files":
                await self._copy(one)
            case "%environment":
                await self._environment(one)
            case "%test":
                await self._test(one)
            case "WORKDIR":
                await self._workdir(posixpath.normpath(posixpath.join(state.workdir, self._expanded(text))))
            case "ENV":
                self._state = replace(state, env={**state.env, **pairs(text, self._variables, self._file.escape)})
            case "LABEL":
                self._state = replace(state, labels={**state.labels, **pairs(text, self._variables, self._file.escape)})
            case "ARG":
                name, equals, default = text.partition("=")
                name = name.strip()
                value = self._expanded(default) if equals else self._inherited.get(name)
                value = self._request.arguments.get(name, value)
                if value is not None:
                    self._arguments[name] = value
            case "USER":
                self._state = replace(state, user=self._expanded(text))
                self._say_once(
                    "USER is kept in the image; commands of a build run as root, sandboxes as their own user"
                )
            case "SHELL":
                if not one.listed:
                    raise self._file.at(one.line, 'write SHELL ["PROGRAM", "ARGUMENT", …]')
                self._state = replace(state, shell=one.listed)
            case "CMD":
                self._own_cmd = True
                self._state = replace(state, cmd=self._command_line(one))
            case "ENTRYPOINT":
                cmd = state.cmd if self._own_cmd else ()
                self._state = replace(state, entrypoint=self._command_line(one), cmd=cmd)
            case _:
                self._say_once(f"{one.keyword} has no effect: {(PASSED_OVER | NO_EFFECT)[one.keyword]}")

    # RUN

    async def _run(self, one: Instruction) -> None:
        network = self._network_of(one)
        argv, script = self._argv(one)
        env = self._environment_of_run(one)
        mounts = [await self._mount(one, text) for text in one.flags.get("mount", "").split()]
        seen = [[mount.kind, mount.target, files.fingerprint] for mount, files in mounts]
        key = self._state.next_key(
            "RUN", argv, script, sorted(env.items()), self._state.workdir, network, *([seen] if seen else [])
        )

        async def command(root: StepRoot) -> None:
            shown = {}
            try:
                for number, (mount, files) in enumerate(mounts):
                    folder = self._work / f"mount-{number}"
                    shown[posixpath.join(self._state.workdir, mount.target)] = await self._shown(folder, files)
                await self._command(one, root, argv, env, script, network, mounts=shown)
            finally:
                for number in range(len(mounts)):
                    await asyncio.to_thread(remove_folder, self._work / f"mount-{number}")

        await self._step(key, lambda layers: self._root.run(layers, command, CONTAINER_PATHS))

    async def _mount(self, one: Instruction, text: str) -> tuple[RunMount, _FoundFiles]:
        """Return what a --mount says, and the files that the command sees there."""
        mount = parse_mount(text, self._expanded)
        if mount.kind != "bind":
            return mount, _FoundFiles("", None)
        if mount.stage is not None:
            return mount, await self._files_of(one, mount.stage, [mount.source])
        tree = CopyTree(LayerStack([self._request.context]), self._request.ignored)
        sources = await asyncio.to_thread(tree.find, mount.source)

        async def found() -> list[CopySource]:
            return sources

        return mount, _FoundFiles(await asyncio.to_thread(digest, sources), found)

    async def _files_of(self, one: Instruction, stage: str, names: Sequence[str]) -> _FoundFiles:
        """Return files of another stage or of an image."""
        state, other = await self._other(one, stage)

        async def found() -> list[CopySource]:
            tree = CopyTree(await other.open(state.layers), what=stage)
            return [source for name in names for source in await asyncio.to_thread(tree.find, name)]

        return _FoundFiles([state.key, list(names)], found)

    async def _shown(self, folder: Path, files: _FoundFiles) -> Path:
        """Make a copy of files in the new folder, or an empty folder, and return its path."""
        own_folder(folder)
        if files.find is None:
            return folder
        async with self._archive(await files.find(), "files", False) as archive:
            await self._root.unpack_archive(archive, folder)
        return folder / "files"

    @contextlib.asynccontextmanager
    async def _archive(
        self,
        sources: Sequence[CopySource],
        place: str,
        into: bool,
        *,
        mode: Mode | None = None,
        unpack: bool = False,
        named: bool = False,
    ) -> AsyncIterator[Path]:
        """Yield a tar archive of files, as they are to be in a root file system."""
        archive = self._work / "copied.tar"
        await asyncio.to_thread(write_copy, archive, sources, place, into, mode=mode, unpack=unpack, named=named)
        yield archive
        archive.unlink()

    async def _command(
        self,
        one: Instruction,
        root: StepRoot,
        argv: Sequence[str],
        env: Mapping[str, str],
        script: str | None,
        network: Network,
        output: int | None = None,
        mounts: Mapping[str, Path] = MappingProxyType({}),
    ) -> None:
        """Run a command in the container. `output`: descriptor in place of the build's. Raises ImageBuildFailed."""
        if network == "host":
            env = {**proxies(self._request.arguments), **env}
        runtime = await asyncio.to_thread(self._parts.runtime)
        own = await asyncio.to_thread(self._parts.own_python)
        folder = "/" if one.keyword.startswith("%") else self._state.workdir
        try:
            trusted = certificates() if network == "host" else None
        except ValueError as error:
            raise ImageBuildFailed(str(error)) from None
        command = StepCommand(argv, env, folder, script, trusted)
        output = self._parts.output if output is None else output
        status = await run_step(runtime, own, root, command, network, output, mounts)
        if status:
            raise self._file.at(one.line, f"{one.shown} ended with exit status {status}; its output is above")

    def _environment_of_run(self, one: Instruction) -> dict[str, str]:
        env = {"PATH": PATH, "HOME": "/root", **self._arguments, **self._state.env}
        return {**env, **DEFINITION_VARIABLES} if one.keyword == "%post" else env

    # %environment, %test

    async def _environment(self, one: Instruction) -> None:
        """Run the script of %environment, and keep the variables that it exports."""
        env = self._environment_of_run(one)
        key = self._state.next_key(one.keyword, one.text, sorted(env.items()))
        known = self._parts.store.find(key) if self._request.use_cache else None
        if known is not None and known.env is not None:
            self._parts.say("    as before, from the build cache")
            variables = known.env
        else:
            argv, listed = ["/bin/sh", "-c", printing(one.text)], b""

            async def look(root: StepRoot) -> None:
                nonlocal listed
                with tempfile.TemporaryFile() as output:
                    try:
                        await self._command(one, root, argv, env, None, "none", output.fileno())
                    finally:
                        output.seek(0)
                        printed, _, listed = output.read().partition(PRINTED)
                        os.write(self._parts.output, printed)

            await self._root.look(self._state.layers, look)
            variables = exported(listed, env, self._state.env)
            self._parts.store.keep(key, None, variables)
        self._state = replace(self._state, key=key, env=variables)

    async def _test(self, one: Instruction) -> None:
        """Run a script that fails if the image is wrong. What it writes is not part of the image."""
        env = self._environment_of_run(one)
        network = self._request.network
        key = self._state.next_key(one.keyword, one.text, one.listed, sorted(env.items()), network)
        if self._request.use_cache and self._parts.store.find(key) is not None:
            self._parts.say("    as before, from the build cache")
            return
        argv, script = self._argv(one)
        await self._root.look(self._state.layers, lambda root: self._command(one, root, argv, env, script, network))
        self._parts.store.keep(key, None)

    def _network_of(self, one: Instruction) -> Network:
        chosen = one.flags.get("network", "default")
        if chosen not in ("default", "host", "none"):
            raise self._file.at(one.line, f"RUN has no --network={chosen}: write none, or leave it out")
        return "none" if chosen == "none" else self._request.network

    def _argv(self, one: Instruction) -> tuple[list[str], str | None]:
        if one.keyword.startswith("%"):
            return shell_of(one, _SCRIPT), one.text
        if one.listed is not None:
            if not one.listed:
                raise self._file.at(one.line, 'RUN [] runs nothing: write RUN ["PROGRAM", "ARGUMENT", …]')
            return list(one.listed), None
        if not one.heredocs:
            return self._by_shell(one, one.text)
        if _ONLY_HEREDOC.fullmatch(one.text):
            text = one.heredocs[0].text
            return ([_SCRIPT], text) if text.startswith("#!") else self._by_shell(one, text)
        bodies = "".join(f"{heredoc.text}{heredoc.name}\n" for heredoc in one.heredocs)
        return self._by_shell(one, f"{one.text}\n{bodies}")

    def _by_shell(self, one: Instruction, text: str) -> tuple[list[str], str | None]:
        """Return the command of a text. A text that is too long for an argument is a file that the shell reads."""
        shell, size = self._state.shell, len(os.fsencode(text))
        if size <= _MOST_ARGUMENT:
            return [*shell, text], None
        if posixpath.basename(shell[0]) not in _SHELLS or shell[-1] != "-c":
            raise self._file.at(
                one.line,
                f"the text has {size} bytes, and Linux passes at most {_MOST_ARGUMENT} to the program of SHELL: begin the "
                "text with #! and a program, or COPY it into the image as a file and RUN the file",
            )
        return [*shell, f". {_SCRIPT}"], text

    # COPY, ADD, WORKDIR

    async def _copy(self, one: Instruction) -> None:
        names, place, chmod = self._names(one)
        if "chown" in one.flags:
            self._say_once("--chown has no effect: all files of a sandbox belong to its user")
        texts = {heredoc.name: heredoc for heredoc in one.heredocs}
        sources: list[CopySource] = []
        if "from" in one.flags:
            files = await self._files_of(one, self._expanded(one.flags["from"]), names)
            fingerprint: object = files.fingerprint
        else:
            tree = CopyTree(LayerStack([self._request.context]), self._request.ignored)
            if one.keyword == "%files":
                tree, names = host_tree(names[0], self._request.context, self._request.folders)
            for number, name in enumerate(names):
                if name.startswith("<<") and (heredoc := texts.get(name.lstrip("<-").strip("'\""))):
                    text = heredoc.text if heredoc.literal else expand_plain(heredoc.text, self._variables)
                    sources.append(text_source(self._work / f"text-{number}", heredoc.name, text))
                elif re.match(r"https?://", name) and one.keyword == "ADD":
                    sources.append(await asyncio.to_thread(download, self._work / f"download-{number}", name))
                else:
                    sources += await asyncio.to_thread(tree.find, name)
            fingerprint = await asyncio.to_thread(digest, sources)
        kept = None if chmod is None else chmod.key
        key = self._state.next_key(one.keyword, fingerprint, place, kept, self._state.workdir)

        async def copied(layers: Sequence[Layer]) -> Layer:
            if "from" in one.flags:
                assert files.find is not None
                sources.extend(await files.find())
            root = await self._root.open(layers)
            below = resolve_in(root, posixpath.join(self._state.workdir, place))
            is_folder = bool(root.folders(os.fsencode(below)))
            into = place.endswith(("/", "/.")) or place == "." or len(sources) > 1 or is_folder
            unpack = one.keyword == "ADD" and not names[0].startswith("http")
            named = one.keyword == "%files"
            async with self._archive(sources, below, into, mode=chmod, unpack=unpack, named=named) as archive:
                return await self._root.add(layers, archive)

        await self._step(key, copied)

    def _names(self, one: Instruction) -> tuple[list[str], str, Mode | None]:
        """Return the names of the sources, the place, and the mode of --chmod."""
        words = [self._expanded(word) for word in (one.listed or one.text.split()) if not word.startswith("<<")]
        heredocs = [word for word in one.text.split() if word.startswith("<<")] if one.heredocs else []
        if one.listed is None and one.heredocs:
            words = [*heredocs, *words]
        if len(words) < 2:
            raise self._file.at(one.line, f"write {one.keyword} FILE… PLACE")
        chmod = one.flags.get("chmod")
        return words[:-1], words[-1], Mode(self._expanded(chmod)) if chmod is not None else None

    async def _workdir(self, path: str) -> None:
        self._state = replace(self._state, workdir=path)

        async def made(layers: Sequence[Layer]) -> Layer | None:
            root = await self._root.open(layers)
            below = resolve_in(root, path)
            if root.folders(os.fsencode(below)):
                return None
            async with self._archive([CopySource("", True, ())], below, True) as archive:
                return await self._root.add(layers, archive)

        await self._step(self._state.next_key("WORKDIR", path), made)

    # all steps

    async def _step(self, key: str, do: Callable[[Sequence[Layer]], Awaitable[Layer | None]]) -> None:
        """Do a step that changes files, or take its layer from the cache. `do`: returns the layer over those below it."""
        known = self._parts.store.find(key) if self._request.use_cache else None
        if known is not None:
            self._parts.say("    as before, from the build cache")
            self._state = self._state.with_layer(key, known.layer)
            return
        layer = await do(self._state.layers)
        self._parts.store.keep(key, layer)
        self._state = self._state.with_layer(key, layer)

    @property
    def _variables(self) -> dict[str, str]:
        return {**self._arguments, **self._state.env}

    def _expanded(self, text: str) -> str:
        return expand(text, self._variables, self._file.escape)

    def _command_line(self, one: Instruction) -> tuple[str, ...]:
        return one.listed if one.listed is not None else (*self._state.shell, one.text)

    def _say_once(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._parts.say(f"    {text}")

    @contextlib.contextmanager
    def _errors_of(self, one: Instruction) -> Iterator[None]:
        try:
            yield
        except (BadMode, BadMount, BadText, NoSuchFile) as error:
            raise self._file.at(one.line, str(error)) from None
        except OSError as error:
            raise self._file.at(one.line, f"{one.shown}: {error.strerror or error} {error.filename or ''}") from error
