"""The entry point: maps commands to modules. A command's module is imported when the command is used, so help is fast."""

from __future__ import annotations

import importlib
import os
import sys

import click

from rollyard.cli.printable import printable
from rollyard.core import garbage_search
from rollyard.core.errors import RollyardError

COMMANDS = {
    "api-resources": ("objects", "List the kinds."),
    "apply": ("objects", "Create or change objects as YAML files declare them."),
    "batches": ("batches", "Show or cancel batches."),
    "bridge": ("bridge", "Run a process that speaks another framework's protocol."),
    "cp": ("cp", "Copy files to or from the sandbox of a running rollout, or of a failed one that is kept."),
    "datasets": ("datasets", "Upload, list or delete datasets, which batches draw tasks from."),
    "delete": ("objects", "Delete objects."),
    "describe": ("describe", "Show an object, its conditions, allocations and events."),
    "diff": ("diff", "Show the changes that apply would make."),
    "doctor": ("doctor", "Check this machine and its cluster."),
    "drain": ("drain", "Drain allocations, by name or by node."),
    "endpoints": ("endpoints", "Show, add and remove model servers of an InferencePool."),
    "events": ("objects", "Show events, oldest first."),
    "eval": ("evaluations", "Evaluate a policy on a set of tasks, and compare evaluations."),
    "exec": ("exec", "Run a command in the sandbox of a running rollout, or of a failed one that is kept."),
    "explain": ("explain", "Describe a kind or one of its fields."),
    "export": ("export", "Write rollouts, groups or evaluations to files."),
    "get": ("objects", "Show objects of one kind, or of several: `get ip,rp`."),
    "history": ("revisions", "Show the revisions of a pool."),
    "images": ("images", "Build, list, pull or delete sandbox images of this node, or of a shared folder."),
    "inference-server": ("processes", "Run an engine; batch scripts of InferencePools call this."),
    "logs": ("logs", "Print the output of an allocation, or of a pool's jobs, or the tool calls of a rollout."),
    "node-agent": ("processes", "Run a node agent; batch scripts of RolloutPools call this."),
    "restart": ("revisions", "Replace all allocations of a pool, one after the other."),
    "resume": ("objects", "Resume a suspended pool."),
    "rollouts": ("rollouts", "Show, fork or cancel rollouts, and save their snapshots."),
    "scale": ("objects", "Set the fixed size of a pool."),
    "serve": ("processes", "Run the server, here or (with --in-slurm) as a Slurm job."),
    "server-job": ("processes", "Run the server in its own job, whose script calls this."),
    "submit": ("rollouts", "Submit tasks as rollouts."),
    "suspend": ("objects", "Give back a pool's allocations and keep the pool."),
    "tasks": ("tasks", "Make sets of tasks from those of others, check them, and score old results again."),
    "token": ("token", "Renew the tokens with which jobs and people reach the server."),
    "top": ("top", "Show live metrics of pools, or (`top nodes`) times, faults and losses of nodes."),
    "try": ("rollouts", "Run one task (a JSON file, or JSON) and print its turns."),
    "ui": ("ui", "Open the server's page in a browser."),
    "undo": ("revisions", "Give a pool the template of an earlier revision."),
    "usage": ("usage", "Show GPU-hours, CPU-hours, tokens and rollouts of pools."),
    "version": ("processes", "Print the version."),
    "wait": ("objects", "Wait until a condition holds, or an object is gone."),
    "weights": ("weights", "Show or change the weights that an InferencePool serves."),
}
"""The module of each command, and the command's line in the help. The module has a function with the command's name, in
which `_` stands for `-`."""
_FUNCTIONS = {"eval": "eval_", "exec": "exec_", "try": "try_"}
"""Commands whose names are words of Python."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        with garbage_search.imports():
            module = importlib.import_module(f"rollyard.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, _FUNCTIONS.get(cmd_name, cmd_name.replace("-", "_")))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Rollout-as-a-service for RL of multi-turn LLM agents: pools in YAML, allocations in Slurm, trajectories over
    HTTP."""


def main() -> None:
    _open_standard_streams()
    try:
        cli(prog_name="rollyard")
    except RollyardError as error:
        click.echo(printable(f"error: {error}"), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _open_standard_streams() -> None:
    """Open /dev/null for each standard stream that is closed, so that no connection gets its number."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


if __name__ == "__main__":
    main()
