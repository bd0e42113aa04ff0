"""`rollyard images build` and `build-many`: images from Dockerfiles and Apptainer's definition files, without root."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rollyard.cli.parameter_types import FOLDER

if TYPE_CHECKING:
    from rollyard.image_builds.build_burst import BuildBurst, BurstProgress
    from rollyard.image_builds.run_build import BuildOptions
    from rollyard.image_builds.run_step import Network
    from rollyard.kinds.values.image_reference import BuiltImage


_SHARED_OPTIONS = (
    click.option(
        "--build-arg",
        multiple=True,
        metavar="NAME=VALUE",
        help="value of an ARG or {{ NAME }}; NAME alone: of this variable",
    ),
    click.option("--target", help="stage to build, by name or number  [default: the last]"),
    click.option(
        "--network",
        type=click.Choice(["host", "none"]),
        default="host",
        show_default=True,
        help="network of RUN: this machine's, or none",
    ),
    click.option(
        "--allow-folder",
        type=click.Path(path_type=Path),
        multiple=True,
        metavar="PATH",
        help="folder outside of CONTEXT that FROM and COPY --from may read",
    ),
    click.option("--no-cache", is_flag=True, help="do every step, also if its layer is known"),
    click.option(
        "--runtime",
        type=click.Choice(["auto", "bubblewrap", "apptainer"]),
        default="auto",
        help="container runtime of RUN  [default: the first of bubblewrap and Apptainer that works]",
    ),
    click.option("--credentials-file", type=click.Path(path_type=Path), help="credentials of registries, mode 0600"),
    click.option("--insecure-registry", multiple=True, metavar="HOST", help="registry that is asked by plain HTTP"),
)
"""Options of both commands, which `_options` takes."""
_JOB_FIELDS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "time": "timeLimit",
    "cpus_per_task": "cpusPerTask",
    "mem": "memory",
}
"""Options of a job -> fields of an AllocationTemplate."""


def _with_shared_options(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_SHARED_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.argument("context", type=click.Path(path_type=Path))
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="the Dockerfile or .def file  [default: CONTEXT/Dockerfile]"
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
    type=FOLDER,
    help="with --tag: a pool's `sandbox.images.sharedFolder`, for all its nodes  [default: this machine's cache]",
)
@_with_shared_options
def build(
    context: Path, file: Path | None, output: tuple[str, ...], tag: str | None, shared: Path | None, **given: Any
) -> None:
    """Build an image from the Dockerfile in the folder CONTEXT, without root. Prints the image's digest.

    CONTEXT may be an Apptainer definition file, FILE.def: then its folder is the context.

    Steps whose inputs are as before are not done again. `build-many` builds many images at once.
    """
    from rollyard.image_builds.run_build import run_build

    built = None if tag is None else _built_image(tag)
    if shared is not None and built is None:
        raise click.UsageError("--shared needs --tag NAME, the name of the image in the shared folder")
    if built is not None:
        output = (*output, built.text)
    options = replace(_options([context], file, **given), outputs=output, shared=shared)
    digest = asyncio.run(run_build(options, sys.stderr.fileno(), _print_line))
    click.echo(digest)
    if built is not None:
        _print_line(f"pools and tasks name it {built.text}")
    if not output:
        _print_line(
            "no image was written: add --tag NAME, --output oci-archive:/FILE.tar or --output /FOLDER; the steps are kept"
        )


@click.command()
@click.argument("contexts", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="CONTEXT...")
@click.option(
    "-t", "--tag", metavar="NAME", help="name of the images: pools and tasks find each as built:NAME:CONTEXT's name"
)
@click.option(
    "--shared",
    type=FOLDER,
    help="with --tag: a pool's `sandbox.images.sharedFolder`, for all its nodes  [default: this machine's cache]",
)
@click.option(
    "--into", type=click.Path(path_type=Path), help="without --tag: folder that gets a whole archive for each CONTEXT"
)
@click.option(
    "-f",
    "--file",
    type=click.Path(path_type=Path),
    help="the Dockerfile or .def file, relative to each CONTEXT  [default: Dockerfile]",
)
@click.option("--cluster", default="local", show_default=True, help="`slurm` builds in a job array")
@click.option(
    "--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="builds at a time on this machine"
)
@click.option("--partition", help="with --cluster slurm: option of sbatch")
@click.option("--account", help="with --cluster slurm: option of sbatch")
@click.option("--qos", help="with --cluster slurm: option of sbatch")
@click.option("--time", default="02:00:00", show_default=True, help="with --cluster slurm: walltime of each build")
@click.option("--cpus-per-task", type=int, default=2, show_default=True, help="with --cluster slurm: option of sbatch")
@click.option("--mem", help="with --cluster slurm: option of sbatch  [default: the partition's]")
@_with_shared_options
def build_many(
    contexts: tuple[Path, ...],
    tag: str | None,
    shared: Path | None,
    into: Path | None,
    file: Path | None,
    cluster: str,
    at_once: int,
    **given: Any,
) -> None:
    """Build an image from the Dockerfile in each folder CONTEXT, several at a time. Prints the images' names and digests.

    With --tag, images that share a base store it once. A CONTEXT may be an Apptainer definition file, FILE.def. The images
    have the names of the folders or files. Exit code 1: some images could not be built.
    """
    from pydantic import ValidationError

    from rollyard.image_builds.build_burst import BuildBurst, BurstPlace
    from rollyard.kinds.allocation import AllocationTemplate

    job = {field: given.pop(name) for name, field in _JOB_FIELDS.items()}
    try:
        template = AllocationTemplate.model_validate(
            {field: value for field, value in job.items() if value is not None}
        )
    except ValidationError as error:
        raise click.UsageError("; ".join(str(one["msg"]) for one in error.errors())) from None
    folder, output = image_places(tag, shared, into, cluster)
    burst = BuildBurst(contexts, folder, output, replace(_options(contexts, file, **given), file=file, shared=shared))
    with _progress(burst) as report:
        results = asyncio.run(burst.run(BurstPlace(cluster, at_once, template), report))
    failed = sorted(name for name, result in results.items() if result.digest is None)
    if failed:
        click.echo(f"{len(failed)} of {len(results)} images could not be built: {', '.join(failed)}", err=True)
    sys.exit(1 if failed else 0)


def image_places(
    tag: str | None, shared: Path | None, into: Path | None, cluster: str
) -> tuple[Path, Callable[[str], str]]:
    """Return the folder of the builds' output, and the function that names each image's place."""
    from rollyard.host.node_cache import node_cache

    if (tag is None) == (into is None):
        raise click.UsageError("name the images: --tag NAME stores a base once; --into FOLDER writes whole archives")
    if into is not None:
        if shared is not None:
            raise click.UsageError("--shared needs --tag NAME")
        whole = into.resolve()
        return whole, lambda name: f"oci-archive:{whole / name}.tar"
    if cluster != "local" and shared is None:
        raise click.UsageError(f"with --cluster {cluster}, --tag needs --shared FOLDER, which all nodes see")
    assert tag is not None
    _built_image(f"{tag}:x")
    return (shared or node_cache() / "image-cache") / "built", lambda name: _built_image(f"{tag}:{name}").text


def _options(
    contexts: Sequence[Path],
    file: Path | None,
    *,
    build_arg: tuple[str, ...],
    target: str | None,
    network: Network,
    allow_folder: tuple[Path, ...],
    no_cache: bool,
    runtime: str,
    credentials_file: Path | None,
    insecure_registry: tuple[str, ...],
) -> BuildOptions:
    """Return the options of a build of the first context, without outputs."""
    from rollyard.image_builds.run_build import BuildOptions, named_build
    from rollyard.images.settings import CacheSettings

    if file is not None and any(named_build(one)[1] is not None for one in contexts):
        raise click.UsageError("a .def file is the CONTEXT itself; leave out --file")
    credentials = None if credentials_file is None else str(credentials_file.resolve())
    settings = CacheSettings(credentials_file=credentials, insecure_registries=insecure_registry)
    context, own_file = named_build(contexts[0])
    return BuildOptions(
        context, file or own_file, arguments=_arguments(build_arg), target=target, network=network, runtime=runtime,
        use_cache=not no_cache, images=settings, folders=allow_folder,
    )  # fmt: skip


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
                    click.echo(f"{burst.outputs[name]} {result.digest}")
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
