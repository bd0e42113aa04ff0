"""Commands on sets of tasks."""

from __future__ import annotations

import click

from rollyard.cli.task_import import import_


@click.group()
def tasks() -> None:
    """Make sets of tasks from those of others."""


@tasks.group("import")
def import_group() -> None:
    """Convert the rows of other projects' data sets to tasks."""


import_group.add_command(import_)
