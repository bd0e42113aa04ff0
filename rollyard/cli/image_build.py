"""`rollyard images build`: images from Dockerfiles and Apptainer's definition files, without root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rollyard.image_builds.build_burst import BuildBurst, BurstProgress
    from rollyard.image_builds.run_build import BuildOptions
    from rollyard.kinds.values.image_reference import BuiltImage


@click.command()
@click.argument("contexts", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="CONTEXT...")
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="the Dockerfile or .def file; with --into relative to each CONTEXT  [default: CONTEXT/Dockerfile]",
)
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="PLACE",
    help="where the image goes: a new folder, oci-archive:/FILE.tar or oci:/LAYOUT:TAG",
)
@click.option(
    "-t", "--tag", metavar="NAME[:TAG]", help="name under which pools and tasks find the image: built:NAME:TAG"
)
@click.option(
    "--shared",
    type=click.Path(path_type=Path),
    help="with --tag: a pool's `sandbox.images.sharedFolder`, for all its nodes  [default: this machine's cache]",
)
@click.option("--into", type=click.Path(path_type=Path), help="folder that gets an archive NAME.tar for each CONTEXT")
@click.option("--cluster", default="local", show_default=True, help="with --into: `slurm` builds in a job array")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="with --into, on this machine: builds at a time",
)
@click.option("--partition", help="with --cluster slurm: option of sbatch")
@click.option("--account", help="with --cluster slurm: option of sbatch")
@click.option("--qos", help="with --cluster slurm: option of sbatch")
@click.option("--time", default="02:00:00", show_default=True, help="with --cluster slurm: walltime of each build")
@click.option("--cpus-per-task", type=int, default=2, show_default=True, help="with --cluster slurm: option of sbatch")
@click.option("--mem", help="with --cluster slurm: option of sbatch  [default: the partition's]")
@click.option(
    "--build-arg",
    multiple=True,
    metavar="NAME=VALUE",
    help="value of an ARG or {{ NAME }}; NAME alone: of this variable",
)
@click.option("--target", help="stage to build, by name or number  [default: the last]")
@click.option(
    "--network",
    type=click.Choice(["host", "none"]),
    default="host",
    show_default=True,
    help="network of RUN: this machine's, or none",
)
@click.option(
    "--allow-folder",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="folder outside of CONTEXT that FROM and COPY --from may read",
)
@click.option("--no-cache", is_flag=True, help="do every step, also if its layer is known")
@click.option(
    "--runtime",
    type=click.Choice(["auto", "bubblewrap", "apptainer"]),
    default="auto",
    help="container runtime of RUN  [default: the first of bubblewrap and Apptainer that works]",
)
@click.option("--credentials-file", type=click.Path(path_type=Path), help="credentials of registries, mode 0600")
@click.option("--insecure-registry", multiple=True, metavar="HOST", help="registry that is asked by plain HTTP")
def build(
    contexts: tuple[Path, ...],
    file: Path | None,
    output: tuple[str, ...],
    tag: str | None,
    shared: Path | None,
    into: Path | None,
    cluster: str,
    at_once: int,
    build_arg: tuple[str, ...],
    target: str | None,
    network: str,
    allow_folder: tuple[Path, ...],
    no_cache: bool,
    runtime: str,
    credentials_file: Path | None,
    insecure_registry: tuple[str, ...],
    **job: str | int | None,
) -> None:
    """Build an image from the Dockerfile in the folder CONTEXT, without root. Prints the image's digest.

    CONTEXT may be an Apptainer definition file, FILE.def: then its folder is the context.

    Steps whose inputs are as before are not done again. With --into many images are built at once.
    """
    from rollyard.image_builds.run_build import BuildOptions, named_build, run_build
    from rollyard.image_builds.run_step import Network
    from rollyard.images.settings import CacheSettings

    if into is None and len(contexts) > 1:
        raise click.UsageError("several CONTEXTs need --into FOLDER, which gets an archive for each")
    built = None if tag is None else _built_image(tag)
    if shared is not None and built is None:
        raise click.UsageError("--shared needs --tag NAME, the name of the image in the shared folder")
    if into is not None and built is not None:
        raise click.UsageError("--into names the archives by their CONTEXTs; leave out --tag or --into")
    if built is not None:
        output = (*output, f"oci-archive:{built.archive(os.fspath(_tag_folder(shared)))}")
    if into is not None and output:
        raise click.UsageError("--into names the archives by their CONTEXTs; leave out --output or --into")
    chosen: Network = "none" if network == "none" else "host"
    credentials = None if credentials_file is None else str(credentials_file.resolve())
    settings = CacheSettings(credentials_file=credentials, insecure_registries=insecure_registry)
    context, own_file = named_build(contexts[0])
    if file is not None and any(named_build(one)[1] is not None for one in contexts):
        raise click.UsageError("a .def file is the CONTEXT itself; leave out --file")
    options = BuildOptions(
        context, file or own_file, output, _arguments(build_arg), target, chosen, runtime, not no_cache, settings,
        folders=allow_folder,
    )  # fmt: skip
    if into is not None:
        options = replace(options, file=file)
        sys.exit(asyncio.run(_build_many(contexts, into, options, cluster, at_once, job)))
    digest = asyncio.run(run_build(options, sys.stderr.fileno(), _print_line))
    click.echo(digest)
    if built is not None:
        _print_line(f"pools and tasks name it {built.text}")
    if not output:
        _print_line(
            "no image was written: add --tag NAME, --output oci-archive:/FILE.tar or --output /FOLDER; the steps are kept"
        )


async def _build_many(
    contexts: tuple[Path, ...],
    into: Path,
    options: BuildOptions,
    cluster: str,
    at_once: int,
    job: dict[str, str | int | None],
) -> int:
    """Build all; return the exit code."""
    from pydantic import ValidationError

    from rollyard.image_builds.build_burst import BuildBurst, BurstPlace
    from rollyard.kinds.allocation import AllocationTemplate

    names = {"time": "timeLimit", "cpus_per_task": "cpusPerTask", "mem": "memory"}
    fields = {names.get(name, name): value for name, value in job.items() if value is not None}
    try:
        template = AllocationTemplate.model_validate(fields)
    except ValidationError as error:
        raise click.UsageError("; ".join(str(one["msg"]) for one in error.errors())) from None
    burst = BuildBurst(contexts, into, options)
    with _progress(burst) as report:
        results = await burst.run(BurstPlace(cluster, at_once, template), report)
    failed = sorted(name for name, result in results.items() if result.digest is None)
    if failed:
        click.echo(f"{len(failed)} of {len(results)} images could not be built: {', '.join(failed)}", err=True)
    return 1 if failed else 0


@contextlib.contextmanager
def _progress(burst: BuildBurst) -> Iterator[Callable[[BurstProgress], None]]:
    """Yield a function that shows progress: a line for each image that is done, and in a terminal a bar."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console,
        disable=not console.is_terminal,
    )  # fmt: skip
    printed: set[str] = set()
    noted = ""
    with bar:
        shown = bar.add_task("waiting", total=None)

        def report(now: BurstProgress) -> None:
            nonlocal noted
            for name in sorted(now.results.keys() - printed):
                printed.add(name)
                result = now.results[name]
                if result.digest is not None:
                    click.echo(f"{burst.archive(name)} {result.digest}")
                else:
                    click.echo(f"{name}: {result.error}; its output is in {burst.tasks[name].log}", err=True)
            if now.note and now.note != noted:
                click.echo(now.note, err=True)
            noted = now.note
            words = f"{now.running} running, {now.total - len(now.results) - now.running} waiting"
            bar.update(shown, description=words, total=now.total, completed=len(now.results))

        yield report


def _built_image(text: str) -> BuiltImage:
    from rollyard.kinds.values.image_reference import built_image

    try:
        return built_image(text)
    except ValueError as error:
        raise click.UsageError(f"--tag: {error}") from None


def _tag_folder(shared: Path | None) -> Path:
    from rollyard.host.node_cache import node_cache

    if shared is not None and not shared.is_dir():
        raise click.UsageError(f"--shared: there is no folder {shared}")
    return node_cache() / "image-cache" if shared is None else shared.resolve()


def _print_line(line: str) -> None:
    click.echo(line, err=True)


def _arguments(words: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found
