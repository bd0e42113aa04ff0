"""Commands on sets of tasks."""

from __future__ import annotations

import click

from rollyard.cli.code_import import import_code
from rollyard.cli.gym_import import import_gym
from rollyard.cli.harbor_import import import_harbor, list_folders
from rollyard.cli.stem_import import import_stem
from rollyard.cli.task_check import check
from rollyard.cli.task_import import import_
from rollyard.cli.task_regrade import regrade


@click.group()
def tasks() -> None:
    """Make sets of tasks from those of others, check them, and score old results again."""


@tasks.group("import")
def import_group() -> None:
    """Convert the rows or folders of other projects' data sets to tasks."""


import_group.add_command(import_)
import_group.add_command(import_harbor)
import_group.add_command(import_stem)
import_group.add_command(import_code)
import_group.add_command(import_gym)
tasks.add_command(list_folders)
tasks.add_command(check)
tasks.add_command(regrade)
