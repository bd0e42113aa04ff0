"""The kind of a refusal, from answers that sbatch of Slurm 22.05 gave on a cluster with a job_submit plug-in."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from rollyard.core.errors import Refusal, SlurmUnreachable, SubmitRefused
from rollyard.slurm.base import BatchScript
from rollyard.slurm.cli_driver import CliDriver
from rollyard.slurm.refusal import MAX_CHARS, read_refusal

FAILED = "Batch job submission failed: "
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
ACCOUNT = "Invalid account or account/partition combination specified"
SITE = "Dear user of this site, please read the pages about accounts, projects and the time limit. " * 12


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["AssocMaxSubmitJobLimit", FAILED + POLICY], Refusal.LIMIT),
        ([SITE, "AssocMaxSubmitJobLimit", FAILED + POLICY], Refusal.LIMIT),
        ([FAILED + ACCOUNT], Refusal.FINAL),
        ([SITE, FAILED + ACCOUNT], Refusal.FINAL),
        (["invalid partition specified: nowhere", FAILED + "Invalid partition name specified"], Refusal.FINAL),
        ([FAILED + "Invalid job array specification"], Refusal.ARRAY),
        (["you may have 3 jobs; this is the limit", FAILED + "Unspecified error"], Refusal.LIMIT),
        (["name your project", FAILED + "Unspecified error"], Refusal.FINAL),
        ([FAILED + POLICY, "have a nice day"], Refusal.LIMIT),
        (["Invalid qos specification"], Refusal.FINAL),
    ],
)
def test_slurms_verdict_decides_the_kind_and_no_sites_message_hides_it(lines: list[str], kind: Refusal) -> None:
    refused = read_refusal(lines)
    assert refused.kind is kind
    verdict = next((line for line in lines if line.startswith(FAILED)), lines[-1])
    assert str(refused).startswith(verdict.removeprefix(FAILED)), "people read the first 120 characters"
    assert len(str(refused)) <= MAX_CHARS


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        (["name your project", FAILED + "Unspecified error"], SubmitRefused),
        ([FAILED + "Unspecified error"], SlurmUnreachable),
        (["Unable to contact slurm controller (connect failure)", FAILED + "Unspecified error"], SlurmUnreachable),
    ],
)
async def test_a_plugin_that_refuses_in_its_own_words_is_no_silent_slurm(
    tmp_path: Path, lines: list[str], error: type[Exception]
) -> None:
    said = "\n".join(f"sbatch: error: {line}" for line in lines)
    (tmp_path / "sbatch").write_text(f"#!/bin/bash\ncat >&2 <<'END'\n{said}\nEND\nexit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    driver = CliDriver({**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    with pytest.raises(error, match=re.escape(lines[0])):
        await driver.submit(BatchScript("rollyard-x", "rollyard:s:u", "#!/bin/bash\ntrue\n", str(tmp_path)))
