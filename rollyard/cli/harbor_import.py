"""`rollyard tasks import harbor` and `rollyard tasks list`: task folders of Harbor."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rollyard.cli.image_build import image_places
from rollyard.cli.output import align
from rollyard.cli.parameter_types import FOLDER
from rollyard.cli.written_file import say, written_file
from rollyard.core.errors import Invalid, TaskError
from rollyard.kinds.installed_task_fields import check_task
from rollyard.kinds.task import Task
from rollyard.kinds.values.image_reference import BuiltImage, parse_image
from rollyard.server.batches.task_lines import MAX_TASK_LINE_BYTES
from rollyard.tasks.harbor.task_folder import TaskFolder, context_digest, read_folder, task_folders

_FOLDERS = click.argument(
    "folders",
    nargs=-1,
    required=True,
    metavar="FOLDER...",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
_ENV = click.option(
    "--env", multiple=True, metavar="NAME[=VALUE]", help="value of ${NAME} in a task; NAME alone: of this variable"
)
_Place = tuple[Path, Callable[[str], str]]
"""Folder of images, and a function that gives an image's name."""
_NO_PLACE: _Place = Path("/no-folder-for-images"), lambda name: f"oci-archive:/no-folder-for-images/{name}.tar"
"""Place of images that are never built, because their tasks are only listed."""


@click.command("harbor")
@_FOLDERS
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="file of tasks; default: standard output"
)
@click.option(
    "--images",
    type=click.Path(file_okay=False, path_type=Path),
    help="folder, which nodes see, for whole archives of the images that are built",
)
@click.option(
    "-t",
    "--tag",
    metavar="NAME",
    help="in place of --images: name of the images that are built, which store a base once",
)
@click.option(
    "--shared",
    type=FOLDER,
    help="with --tag: a pool's `sandbox.images.sharedFolder`, for all its nodes  [default: this machine's cache]",
)
@click.option(
    "--allow-folder",
    type=click.Path(path_type=Path),
    multiple=True,
    metavar="PATH",
    help="folder outside of a task folder that FROM and COPY --from may read",
)
@click.option("--at-once", type=click.IntRange(min=1), default=4, show_default=True, help="builds at a time")
@click.option("--cluster", default="local", show_default=True, help="`slurm` builds in a job array")
@click.option(
    "--verifier",
    type=click.Choice(["fresh", "shared"]),
    default="fresh",
    show_default=True,
    help="sandbox of a verifier that is not separate: a fresh one, or the agent's, which steps need",
)
@_ENV
def import_harbor(
    folders: tuple[Path, ...],
    output: Path | None,
    images: Path | None,
    tag: str | None,
    shared: Path | None,
    allow_folder: tuple[Path, ...],
    at_once: int,
    cluster: str,
    verifier: str,
    env: tuple[str, ...],
) -> None:
    """Make a task of the kind harbor of each task folder at or below FOLDER, one JSON line a task.

    Images are built from their Dockerfiles. An image of the same files, under --tag or in --images, is used again. Folders
    that cannot become a task are refused, each with a reason, on standard error. Exit code 1: no folder became a task."""
    place, made, refused = _place(images, tag, shared, cluster), 0, 0
    found = [(path, _read(path, place, verifier, _variables(env))) for path in _below(folders)]
    contexts = {path for _, one in found if not isinstance(one, str) for path in one[0].contexts}
    failed = _built(contexts, place, shared, allow_folder, at_once, cluster)
    with written_file(output) as lines:
        for path, one in found:
            reason = one if isinstance(one, str) else next((failed[c] for c in one[0].contexts if c in failed), None)
            if reason is not None:
                say(f"{path}: refused: {reason}")
                refused += 1
            else:
                lines.write(json.dumps(one[1]) + "\n")
                made += 1
    say(f"{made:7} converted")
    if refused:
        say(f"{refused:7} refused")
    if not made:
        sys.exit(1)


@click.command("list")
@_FOLDERS
@_ENV
def list_folders(folders: tuple[Path, ...], env: tuple[str, ...]) -> None:
    """List the task folders of Harbor at or below FOLDER: their names, images and verifiers, and why one cannot become a
    task of the kind harbor."""
    rows = [("FOLDER", "TASK", "IMAGE", "VERIFIER", "REFUSED")]
    for path in _below(folders):
        one = _read(path, _NO_PLACE, None, _variables(env))
        if isinstance(one, str):
            rows.append((str(path), "", "", "", one))
            continue
        folder, task = one
        image = "Dockerfile" if isinstance(folder.image, Path) else str(task["image"])
        verifier = "separate" if folder.config.verifier.mode == "separate" else str(task.get("verifier", "fresh"))
        rows.append((str(path), folder.name, image, verifier, ""))
    for line in align(rows):
        click.echo(line)


def _below(folders: Sequence[Path]) -> list[Path]:
    found = [path for folder in folders for path in task_folders(folder)]
    if not found:
        raise click.UsageError(f"there is no task.toml in or below {', '.join(map(str, folders))}")
    return found


def _read(
    path: Path, images: _Place | None, verifier: str | None, variables: Mapping[str, str]
) -> tuple[TaskFolder, dict[str, Any]] | str:
    """Return the folder and its task, or the reason why it cannot become one. `images`: place of built images. `verifier`:
    place of a verifier that is not separate; None: shared with steps, else fresh."""
    try:
        folder = read_folder(path)
        if folder.image is None:
            raise TaskError("the folder has no environment/Dockerfile, and task.toml has no `docker_image`")
        own, separate = folder.verifier_image, folder.config.verifier.mode == "separate"
        task = folder.task(_image(folder.image, images), variables, None if own is None else _image(own, images))
        if not separate and (verifier == "shared" or (verifier is None and folder.config.steps)):
            task["verifier"] = "shared"
        check_task(Task.model_validate(task))
    except TaskError as error:
        return str(error)
    except Invalid as error:
        return "; ".join(f"{cause.field.removeprefix('task.')}: {cause.message}" for cause in error.causes)
    except (RecursionError, ValueError) as error:  # tables of any depth, and names that no JSON can have
        return f"the folder cannot be made into a task: {error}"
    size = len(json.dumps(task))
    if size > MAX_TASK_LINE_BYTES:
        return (
            f"the task has {size} bytes, and at most {MAX_TASK_LINE_BYTES} are allowed: put large files into the image"
        )
    return folder, task


def _place(images: Path | None, tag: str | None, shared: Path | None, cluster: str) -> _Place | None:
    if images is not None and tag is not None:
        raise click.UsageError("--tag NAME is in place of --images FOLDER")
    if images is None and tag is None:
        if shared is not None:
            raise click.UsageError("--shared needs --tag NAME")
        return None
    return image_places(tag, shared, images, cluster)


def _image(image: str | Path, images: _Place | None) -> str:
    if isinstance(image, str):
        return image
    if images is None:
        raise TaskError("its image must be built: name the images with --tag, or a folder for archives with --images")
    return images[1](_name(image))


def _name(context: Path) -> str:
    return f"harbor-{context_digest(context)}"


def _is_built(folder: Path, image: str) -> bool:
    reference = parse_image(image)
    if isinstance(reference, BuiltImage):
        return os.path.exists(reference.manifest(str(folder.parent)))
    return os.path.exists(image.removeprefix("oci-archive:"))


def _built(
    contexts: Collection[Path],
    images: _Place | None,
    shared: Path | None,
    allowed: Sequence[Path],
    at_once: int,
    cluster: str,
) -> Mapping[Path, str]:
    """Build the images that are not there. Return context -> reason for those that cannot be built."""
    if images is None:
        return {}
    folder, image = images
    by_name = {_name(one): one for one in contexts}
    missing = {name: one for name, one in by_name.items() if not _is_built(folder, image(name))}
    if not missing:
        return {}
    from rollyard.image_builds.build_burst import BuildBurst, BurstPlace
    from rollyard.image_builds.run_build import BuildOptions

    first = next(iter(missing.values()))
    options = BuildOptions(first, folders=allowed, shared=shared)
    burst = BuildBurst([*missing.values()], folder, image, options, [*missing])
    say(f"images to build: {len(missing)}, at most {at_once} at a time; each takes minutes")
    results = asyncio.run(burst.run(BurstPlace(cluster, at_once), lambda _: None))
    failed = {name: result.error for name, result in results.items() if result.digest is None}
    return {
        one: f"its image cannot be built: {failed[name]}; the output is in {burst.tasks[name].log}"
        for one in contexts
        if (name := _name(one)) in failed
    }


def _variables(words: Sequence[str]) -> dict[str, str]:
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
        else:
            raise click.UsageError(f"--env {name}: there is no such variable; write {name}=VALUE")
    return found
