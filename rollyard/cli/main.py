"""The entry point: maps commands to modules. A command's module is imported on use, so that help is instant."""

from __future__ import annotations

import importlib
import sys

import click

from rollyard.core.errors import RollyardError

COMMANDS = {
    "api-resources": "objects",
    "apply": "objects",
    "delete": "objects",
    "describe": "describe",
    "diff": "diff",
    "doctor": "doctor",
    "endpoints": "endpoints",
    "events": "objects",
    "explain": "explain",
    "get": "objects",
    "inference-server": "processes",
    "logs": "logs",
    "node-agent": "processes",
    "resume": "objects",
    "rollouts": "rollouts",
    "scale": "objects",
    "serve": "processes",
    "server-job": "processes",
    "submit": "rollouts",
    "suspend": "objects",
    "top": "top",
    "try": "rollouts",
    "version": "processes",
    "wait": "objects",
    "weights": "weights",
}
"""Command -> module of this package; the function in it has the name of the command."""


class _Lazy(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"rollyard.cli.{COMMANDS[cmd_name]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_").replace("try", "try_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_text(", ".join(self.list_commands(ctx)))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """Rollout-as-a-service for RL of multi-turn LLM agents: pools in YAML, allocations in Slurm, trajectories over
    HTTP."""


def main() -> None:
    try:
        cli(prog_name="rollyard")
    except RollyardError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
