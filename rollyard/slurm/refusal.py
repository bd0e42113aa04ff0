"""Slurm's refusal of a submit: the kind and the message, from all lines of Slurm's answer. Pure.

A site's job_submit plug-in may add lines of any length before Slurm's verdict. So the verdict decides the kind, and the
message begins with the verdict. The plug-in's lines decide only if the plug-in itself refused the job.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rollyard.core.errors import Refusal, SubmitRefused

MAX_CHARS = 1_000
BY_PLUGIN = "Unspecified error"
"""Verdict if a plug-in returned `slurm.ERROR`. Without other lines it means that Slurm's command got no answer."""
_SUBMIT_FAILED = "Batch job submission failed: "
_LIMIT = re.compile(r"policy|[Ll]imit|[Tt]oo many")


def read_refusal(lines: Sequence[str]) -> SubmitRefused:
    """Return the refusal. `lines`: at least one, without the command's name. The last line is the verdict, unless sbatch
    marks another one."""
    marked = [line for line in lines if line.startswith(_SUBMIT_FAILED)]
    last = marked[-1] if marked else lines[-1]
    verdict, others = last.removeprefix(_SUBMIT_FAILED), [line for line in lines if line != last]
    message = "; ".join(dict.fromkeys((verdict, *others)))[:MAX_CHARS]
    return SubmitRefused(message, _kind("; ".join(others) if verdict == BY_PLUGIN and others else verdict))


def _kind(text: str) -> Refusal:
    if _LIMIT.search(text):
        return Refusal.LIMIT
    return Refusal.ARRAY if "array" in text else Refusal.FINAL
