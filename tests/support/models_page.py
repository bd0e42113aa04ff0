"""Writes the table of docs/models.md from a run over the corpus of real chat templates.

python -m tests.support.models_page    # takes four minutes
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from rollyard.tokens.tool_calls.parser_choice import BUILT_IN
from tests.support.template_corpus import corpus
from tests.support.template_trials import KNOWN, Report, tried

PAGE = Path(__file__).resolve().parents[2] / "docs" / "models.md"
BEGIN = "<!-- table: python -m tests.support.models_page -->"


def table(reports: list[Report]) -> str:
    """Return one row for each family of calls."""
    families: defaultdict[str, list[Report]] = defaultdict(list)
    for report in reports:
        families[report.parser or ("–" if not report.proof else "no tools")].append(report)
    names = {family.make.__name__: name for name, family in BUILT_IN.items()}
    lines = [
        "| parser | templates | prompts, breaks | calls | `ToolCalls` | thoughts | what to know |",
        "|---|---|---|---|---|---|---|",
    ]
    for parser, found in sorted(families.items(), key=lambda item: (-len(item[1]), item[0])):
        calls, spellings = sum(r.calls for r in found), sum(r.spellings for r in found)
        breaks = sum(sum(r.breaks.values()) for r in found)
        proofs = sorted({r.proof.split()[0] for r in found if r.proof}) or ["refused"]
        thoughts = sorted({r.thoughts or "none" for r in found})
        known = {r.name: KNOWN[r.name] if r.failures and r.name in KNOWN else r.note for r in found}
        notes = [f"{name.partition('/')[2]}: {note}" for name, note in known.items() if note]
        shown = ", ".join(sorted(r.name for r in found))
        cells = [
            f"`{names[parser]}`" if parser in names else parser, f"{len(found)}: {shown}",
            f"{sum(r.prompts for r in found)}, {breaks}", f"{calls + spellings}" if calls else "–",
            ", ".join(proofs), ", ".join(thoughts), "; ".join(notes),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    made = table([tried(template) for template in corpus()])
    head = PAGE.read_text().partition(BEGIN)[0]
    PAGE.write_text(f"{head}{BEGIN}\n\n{made}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
