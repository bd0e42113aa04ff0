"""Ends of jobs in words: the certain facts come first, and a line of the log is never given as the cause."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rollyard.reconcilers.allocation_folder import last_output
from rollyard.reconcilers.job_endings import LONG_CHARS, SHORT_CHARS, JobEnd, LastOutput, long_text, short_text

SAID = LastOutput("INFO 200 OK", 2.2)
MEANT = LastOutput("ModelMissing: /m is not a folder", 0.1, is_exit_reason=True)
REPLACED = "replaced by demo-rp-3"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # killed by whoever
        (JobEnd("FAILED", 137), "killed by signal 9 (KILL), sender unknown"),
        (
            JobEnd("FAILED", 137, "RaisedSignal:9(Killed)", output=SAID),
            "killed by signal 9 (KILL), sender unknown; its last output, 2 s before the end: INFO 200 OK",
        ),
        (
            JobEnd("FAILED", 139, by_us=REPLACED),
            "killed by signal 11 (SEGV), while Rollyard was ending it (replaced by demo-rp-3)",
        ),
        # by its own exit code
        (JobEnd("FAILED", 1, "NonZeroExitCode"), "exit code 1"),
        (JobEnd("FAILED", 1, output=MEANT), "exit code 1: ModelMissing: /m is not a folder"),
        (JobEnd("FAILED", 200), "exit code 200"),
        (JobEnd("COMPLETED", 0), "exit code 0, cause unknown"),
        (JobEnd("FAILED", 0, "JobLaunchFailure"), "FAILED: JobLaunchFailure"),
        (JobEnd("FAILED", None, "Prolog"), "FAILED: Prolog"),
        # by us
        (JobEnd("CANCELLED", 0, by_us=REPLACED, output=SAID), "ended by Rollyard: replaced by demo-rp-3"),
        (JobEnd("COMPLETED", 0, by_us="given back"), "ended by Rollyard: given back"),
        (
            JobEnd("CANCELLED", 15, by_us="still busy after 600 s of draining; unfinished work is handed back"),
            "ended by Rollyard: still busy after 600 s of draining; unfinished work is handed back",
        ),
        # by others, as Slurm names them
        (JobEnd("CANCELLED", cancelled_by="uid 0 (root)", output=SAID), "cancelled by uid 0 (root), not by Rollyard"),
        (JobEnd("CANCELLED", output=SAID), "cancelled, not by Rollyard; by whom is unknown"),
        (
            JobEnd("CANCELLED", 0, requeued=1, output=SAID),
            "requeued, not by Rollyard (restart 1); that run was ended, because its work has moved",
        ),
        (
            JobEnd("FAILED", 3, requeued=1),
            "requeued, not by Rollyard (restart 1); that run was ended, because its work has moved",
        ),
        # by Slurm
        (JobEnd("NODE_FAIL", 1, node="n3", output=MEANT), "NODE_FAIL on node n3"),
        (
            JobEnd("NODE_FAIL", node="n3", by_us=REPLACED),
            f"NODE_FAIL on node n3, while Rollyard was ending it ({REPLACED})",
        ),
        (JobEnd("TIMEOUT", 143, output=SAID), "its walltime ended (TIMEOUT)"),
        (JobEnd("PREEMPTED"), "Slurm preempted it (PREEMPTED)"),
        (JobEnd("OUT_OF_MEMORY", 137), "it used more memory than Slurm allows (OUT_OF_MEMORY)"),
        (JobEnd("BOOT_FAIL"), "its node did not boot (BOOT_FAIL)"),
        (JobEnd("DEADLINE"), "its deadline passed (DEADLINE)"),
        (JobEnd("REVOKED"), "Slurm revoked it (REVOKED)"),
        (JobEnd("GONE", output=SAID), "Slurm no longer knows it, and its end is not known"),
    ],
)
def test_what_is_certain_stands_first(end: JobEnd, expected: str) -> None:
    assert short_text(end) == expected
    assert long_text(end).startswith(expected.partition("; its last")[0].partition(": Model")[0])


def test_the_short_sentence_fits_a_table_and_the_long_one_says_all() -> None:
    end = JobEnd("FAILED", 1, "Prolog", output=LastOutput("one\ntwo  " + "x" * 5_000, 0.2))
    assert len(short_text(end)) == SHORT_CHARS
    assert "\n" not in short_text(end)
    assert "Slurm's reason: Prolog; its last output, at the end: one two xxx" in long_text(end)
    assert len(long_text(end)) == LONG_CHARS
    assert long_text(JobEnd("FAILED", 1)).endswith("; it wrote nothing in its last 5 s")
    assert "BeginTime" not in long_text(JobEnd("CANCELLED", 0, "BeginTime", requeued=1)), "for which it waited"


NOW = 1_000_000.0


def logged(message: str, before: float, level: str = "info") -> str:
    at = datetime.fromtimestamp(NOW - before, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return json.dumps({"time": at, "level": level, "logger": "x", "message": message})


@pytest.mark.parametrize(
    ("lines", "written", "expected"),
    [
        ([], 0.0, None),
        (["bye", ""], 2.0, LastOutput("bye", 2.0)),
        (["bye"], 60.0, None),
        (['b\'{"id": "chatcmpl"}\''], 1_860.0, None),
        ([logged("ready", 2.0)], 2.0, LastOutput("ready", 2.0)),
        # a log line tells its own age, whatever touched the file since
        ([logged("ready", 1_860.0)], 0.0, None),
        # Slurm writes into the log too, and moves the file's time
        (["old", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T11:00:00 ***"], 0.0, None),
        (
            [logged("no model", 1.0, "critical"), logged("closed", 0.0), "slurmstepd: error: *** JOB 7 ***"],
            0.0,
            LastOutput("no model", 1.0, is_exit_reason=True),
        ),
        ([logged("no model", 60.0, "critical"), logged("closed", 0.0)], 0.0, LastOutput("closed", 0.0)),
    ],
)
def test_the_last_output_counts_only_where_it_is_known_to_be_recent(
    lines: list[str], written: float, expected: LastOutput | None
) -> None:
    assert last_output(lines, NOW - written, NOW) == expected
