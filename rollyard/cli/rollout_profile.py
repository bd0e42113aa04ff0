"""`rollyard rollouts profile`: where the time and the tokens of rollouts go, and which tools fail."""

from __future__ import annotations

from typing import Any

import click

from rollyard.cli.options import with_client
from rollyard.cli.output import align
from rollyard.cli.printable import printable
from rollyard.cli.rollout_lists import conditions, explain_nothing, searched
from rollyard.client.async_client import AsyncClient
from rollyard.kinds.rollout_profile import SAMPLED_PARTS, ProfileView

MEANINGS = {
    "prompt": "read: the first prompt",
    "thoughts": "sampled",
    "calls": "sampled: tool calls",
    "answers": "sampled: other text",
    "outputs": "read: outputs of tools",
    "environment": "read: replies of the environment",
    "repeated": "read again after a break of the token prefix",
}


@click.command()
@searched
@click.option("-o", "--output", "form", type=click.Choice(["table", "json"]), default="table", help="output")
@with_client
async def profile(client: AsyncClient, namespace: str, form: str, **given: Any) -> None:
    """Show where the time and the tokens of ended rollouts go: by stage, by part, by turn, by tool.

    Checks do not count. Each token counts once, also where later prompts have it again.
    """
    found = await client.profile(namespace, **conditions(given))
    if not found.matching:
        await explain_nothing(client, namespace, given)
    click.echo(found.model_dump_json() if form == "json" else printable("\n".join(_lines(found))))


def _lines(found: ProfileView) -> list[str]:
    lines = [f"{found.rollouts} ended rollouts, {found.scored} with a reward"]
    if found.rollouts < found.matching:
        lines.append(f"the newest of {found.matching}; give conditions to see others")
    lines += ["", *align([["STAGE", "P50", "P95", "MEAN", "SHARE"], *_stages(found)])]
    if not found.profiled:
        return [*lines, "", "turns and tokens: not known"] if found.rollouts else lines[:1]
    if found.profiled < found.rollouts:
        lines += ["", f"turns and tokens of {found.profiled} rollouts; those of the others are not known"]
    lines += ["", *align([["TIME OF RUN", "MEAN", "SHARE"], *_run(found)])]
    lines += ["", *align([["TOKENS", "TOTAL", "MEAN", "SHARE", ""], *_parts(found)])]
    lines += ["", *align([["TURNS", "TURNS RUN", "READ", "SAMPLED", "CONTEXT"], *_bands(found)])]
    if not found.by_tool:
        return [*lines, "", "no tool was called"]
    head = ["TOOL", "CALLS", "FAILED", "SHARE FAILED", "OUTPUT TOKENS", "ROLLOUTS"]
    return [*lines, "", *align([head, *_tools(found)])]


def _stages(found: ProfileView) -> list[list[str]]:
    whole = sum(stage.total for stage in found.stages)
    return [
        [
            "waiting" if one.stage == "queued" else one.stage.upper(),
            _seconds(one.p50),
            _seconds(one.p95),
            _seconds(one.total / one.rollouts if one.rollouts else None),
            _share(one.total, whole),
        ]
        for one in found.stages
    ]


def _run(found: ProfileView) -> list[list[str]]:
    parts = {"model": found.model, "tools": found.tools, "environment": found.environment, "other": found.other}
    whole = sum(parts.values())
    return [[name, _seconds(value / found.profiled), _share(value, whole)] for name, value in parts.items()]


def _parts(found: ProfileView) -> list[list[str]]:
    tokens = found.tokens.model_dump()
    whole = sum(tokens.values())
    rows = [
        [part, str(count), f"{count / found.profiled:.0f}", _share(count, whole), MEANINGS[part]]
        for part, count in tokens.items()
    ]
    sampled = sum(tokens[part] for part in SAMPLED_PARTS)
    return [
        *rows,
        ["sampled", str(sampled), f"{sampled / found.profiled:.0f}", _share(sampled, whole), "of all tokens"],
    ]


def _bands(found: ProfileView) -> list[list[str]]:
    return [
        [
            str(band.first) if band.first == band.last else f"{band.first}-{band.last}",
            str(band.turns),
            *(f"{count / band.turns:.0f}" if band.turns else "-" for count in (band.read, band.sampled, band.context)),
        ]
        for band in found.bands
    ]


def _tools(found: ProfileView) -> list[list[str]]:
    return [
        [
            row.tool,
            str(row.calls),
            str(row.failed) if row.judged else "-",
            _share(row.failed, row.judged),
            str(row.tokens),
            str(row.rollouts),
        ]
        for row in found.by_tool
    ]


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "-"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}s"
