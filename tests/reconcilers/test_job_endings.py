"""What is said of how a job ended: what is certain first, a line of its log never as the cause."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from rollyard.reconcilers.allocation_folder import last_output
from rollyard.reconcilers.job_endings import LONG_CHARS, SHORT_CHARS, End, Output, long, short

SAID = Output("INFO 200 OK", 2.2)
MEANT = Output("ModelMissing: /m is not a folder", 0.1, meant=True)
REPLACED = "replaced by demo-rp-3"


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        # killed by whoever
        (End("FAILED", 137), "killed by signal 9 (KILL), sender unknown"),
        (
            End("FAILED", 137, "RaisedSignal:9(Killed)", output=SAID),
            "killed by signal 9 (KILL), sender unknown; its last output, 2 s before the end: INFO 200 OK",
        ),
        (
            End("FAILED", 139, by_us=REPLACED),
            "killed by signal 11 (SEGV), while Rollyard was ending it (replaced by demo-rp-3)",
        ),
        # by its own exit code
        (End("FAILED", 1, "NonZeroExitCode"), "exit code 1"),
        (End("FAILED", 1, output=MEANT), "exit code 1: ModelMissing: /m is not a folder"),
        (End("FAILED", 200), "exit code 200"),
        (End("COMPLETED", 0), "exit code 0, cause unknown"),
        (End("FAILED", 0, "JobLaunchFailure"), "FAILED: JobLaunchFailure"),
        (End("FAILED", None, "Prolog"), "FAILED: Prolog"),
        # by us
        (End("CANCELLED", 0, by_us=REPLACED, output=SAID), "ended by Rollyard: replaced by demo-rp-3"),
        (End("COMPLETED", 0, by_us="given back"), "ended by Rollyard: given back"),
        (
            End("CANCELLED", 15, by_us="still busy after 600 s of draining; unfinished work is handed back"),
            "ended by Rollyard: still busy after 600 s of draining; unfinished work is handed back",
        ),
        # by others, as Slurm names them
        (End("CANCELLED", cancelled_by="uid 0 (root)", output=SAID), "cancelled by uid 0 (root), not by Rollyard"),
        (End("CANCELLED", output=SAID), "cancelled, not by Rollyard; by whom is unknown"),
        (
            End("CANCELLED", 0, requeued=1, output=SAID),
            "requeued, not by Rollyard (restart 1); that run was ended, because its work has moved",
        ),
        (
            End("FAILED", 3, requeued=1),
            "requeued, not by Rollyard (restart 1); that run was ended, because its work has moved",
        ),
        # by Slurm
        (End("NODE_FAIL", 1, node="n3", output=MEANT), "NODE_FAIL on node n3"),
        (
            End("NODE_FAIL", node="n3", by_us=REPLACED),
            f"NODE_FAIL on node n3, while Rollyard was ending it ({REPLACED})",
        ),
        (End("TIMEOUT", 143, output=SAID), "its walltime ended (TIMEOUT)"),
        (End("PREEMPTED"), "Slurm preempted it (PREEMPTED)"),
        (End("OUT_OF_MEMORY", 137), "it used more memory than Slurm allows (OUT_OF_MEMORY)"),
        (End("BOOT_FAIL"), "its node did not boot (BOOT_FAIL)"),
        (End("DEADLINE"), "its deadline passed (DEADLINE)"),
        (End("REVOKED"), "Slurm revoked it (REVOKED)"),
        (End("GONE", output=SAID), "Slurm no longer knows it, and its end is not known"),
    ],
)
def test_what_is_certain_stands_first(end: End, expected: str) -> None:
    assert short(end) == expected
    assert long(end).startswith(expected.partition("; its last")[0].partition(": Model")[0])


def test_the_short_sentence_fits_a_table_and_the_long_one_says_all() -> None:
    end = End("FAILED", 1, "Prolog", output=Output("one\ntwo  " + "x" * 5_000, 0.2))
    assert len(short(end)) == SHORT_CHARS
    assert "\n" not in short(end)
    assert "Slurm's reason: Prolog; its last output, at the end: one two xxx" in long(end)
    assert len(long(end)) == LONG_CHARS
    assert long(End("FAILED", 1)).endswith("; it wrote nothing in its last 5 s")
    assert "BeginTime" not in long(End("CANCELLED", 0, "BeginTime", requeued=1)), "for which it waited"


NOW = 1_000_000.0


def logged(message: str, before: float, level: str = "info") -> str:
    at = datetime.fromtimestamp(NOW - before, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    return json.dumps({"time": at, "level": level, "logger": "x", "message": message})


@pytest.mark.parametrize(
    ("lines", "written", "expected"),
    [
        ([], 0.0, None),
        (["bye", ""], 2.0, Output("bye", 2.0)),
        (["bye"], 60.0, None),
        (['b\'{"id": "chatcmpl"}\''], 1_860.0, None),
        ([logged("ready", 2.0)], 2.0, Output("ready", 2.0)),
        # a log line tells its own age, whatever touched the file since
        ([logged("ready", 1_860.0)], 0.0, None),
        # Slurm writes into the log too, and moves the file's time
        (["old", "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-11-22T11:00:00 ***"], 0.0, None),
        (
            [logged("no model", 1.0, "critical"), logged("closed", 0.0), "slurmstepd: error: *** JOB 7 ***"],
            0.0,
            Output("no model", 1.0, meant=True),
        ),
        ([logged("no model", 60.0, "critical"), logged("closed", 0.0)], 0.0, Output("closed", 0.0)),
    ],
)
def test_the_last_output_counts_only_where_it_is_known_to_be_recent(
    lines: list[str], written: float, expected: Output | None
) -> None:
    assert last_output(lines, NOW - written, NOW) == expected
