"""`rollyard images build`: an image from a Dockerfile, without root."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import click


@click.command()
@click.argument("context", type=click.Path(path_type=Path))
@click.option("-f", "--file", type=click.Path(path_type=Path), help="the Dockerfile  [default: CONTEXT/Dockerfile]")
@click.option(
    "-o",
    "--output",
    multiple=True,
    metavar="PLACE",
    help="where the image goes: a new folder, oci-archive:/FILE.tar or oci:/LAYOUT:TAG",
)
@click.option("--build-arg", multiple=True, metavar="NAME=VALUE", help="value of an ARG; NAME alone: of this variable")
@click.option("--target", help="stage to build, by name or number  [default: the last]")
@click.option(
    "--network",
    type=click.Choice(["host", "none"]),
    default="host",
    show_default=True,
    help="network of RUN: this machine's, or none",
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
    context: Path,
    file: Path | None,
    output: tuple[str, ...],
    build_arg: tuple[str, ...],
    target: str | None,
    network: str,
    no_cache: bool,
    runtime: str,
    credentials_file: Path | None,
    insecure_registry: tuple[str, ...],
) -> None:
    """Build an image from the Dockerfile in the folder CONTEXT, without root. Prints the image's digest.

    Steps whose inputs are as before are not done again.
    """
    from rollyard.kinds.sandbox_template import SandboxImages
    from rollyard.node.image_builds.run_build import BuildOptions, run_build
    from rollyard.node.image_builds.run_step import Network

    chosen: Network = "none" if network == "none" else "host"
    credentials = None if credentials_file is None else str(credentials_file.resolve())
    settings = SandboxImages(credentials_file=credentials, insecure_registries=list(insecure_registry))
    options = BuildOptions(
        context, file, output, _arguments(build_arg), target, chosen, runtime, not no_cache, settings
    )  # fmt: skip
    digest = asyncio.run(run_build(options, sys.stderr.fileno(), lambda line: click.echo(line, err=True)))
    click.echo(digest)


def _arguments(words: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found
