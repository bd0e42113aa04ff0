"""GRPO on software tasks: an under-trained tiny-policy learns to repair functions of small repositories.

python -m examples.swe.train

It makes the repositories, builds an image of each, lets `rollyard tasks check` find the sound tasks, and trains on these as
`examples.grpo` does.
"""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from examples.grpo.train import Options, TaskSets, option_parser, parse_options, run
from examples.swe.repositories import Repository
from examples.tiny_policy.families import FILES
from rollyard.client.task_report import TaskReport
from rollyard.kinds.task import Task

DOCKERFILE = Path(__file__).with_name("Dockerfile")


@dataclass(frozen=True)
class SweOptions(Options):
    repositories: int
    held_out_repositories: int
    modules: int
    base: str


def sound_tasks(options: SweOptions, kubeconfig: Path, console: Console) -> TaskSets:
    """Make the tasks with their images, and leave out those that the check does not find sound."""
    rng, folder = random.Random(options.seed), options.out.resolve() / "set"
    repositories = [Repository(f"train-{i}", rng, options.modules) for i in range(options.repositories)]
    for i in range(options.held_out_repositories):
        repositories.append(Repository(f"held-out-{i}", rng, options.modules, held_out=True))
    _build(folder, repositories, options.base)
    images = {one.name: f"oci-archive:{folder / 'archives' / one.name}.tar" for one in repositories}
    tasks = [Task.model_validate(task) for one in repositories for task in one.tasks(images[one.name])]
    file, report = folder / "tasks.jsonl", folder / "report.jsonl"
    file.write_text("".join(f"{task.canonical()}\n" for task in tasks))
    _rollyard("tasks", "check", file, "--pool", "train", "--runs", 1, "-o", report, "--kubeconfig", kubeconfig)
    sound, left_out = TaskReport.read(report).choose(tasks, lambda task: task)
    console.print(f"{len(sound)} of {len(tasks)} tasks are sound; left out: {dict(left_out)}", highlight=False)
    held_out = itertools.cycle(task for task in sound if task.metadata["held_out"])
    train = [task for task in sound if not task.metadata["held_out"]]
    return train, [*itertools.islice(held_out, options.held_out)]


def _build(folder: Path, repositories: Sequence[Repository], base: str) -> None:
    contexts = [folder / "images" / one.name for one in repositories]
    for repository, context in zip(repositories, contexts, strict=True):
        repository.write(context)
    own = ("--allow-folder", base) if base.startswith("/") else ()
    words = ("--into", folder / "archives", "--file", DOCKERFILE, "--build-arg", f"BASE={base}", *own)
    if _rollyard("images", "build-many", *contexts, *words):
        raise SystemExit("not every image was built; if the base is the reason, name another one with --base")


def _rollyard(*words: object) -> int:
    """Run a command. Return its exit code."""
    return subprocess.run([sys.executable, "-m", "rollyard.cli.main", *map(str, words)]).returncode


if __name__ == "__main__":
    parser = option_parser(__doc__, "swe", steps=16, rate=1e-4)
    parser.add_argument("--repositories", type=int, default=8, help="for the training  [default: 8]")
    parser.add_argument("--held-out-repositories", type=int, default=4)
    parser.add_argument(
        "--modules", type=int, default=len(FILES), choices=range(1, len(FILES) + 1), help="of each repository"
    )
    parser.add_argument("--base", default="debian:12", help="image of the repositories; a folder may be one, with git")
    given = parse_options(parser, SweOptions)
    run(given, lambda kubeconfig, console: sound_tasks(given, kubeconfig, console))
