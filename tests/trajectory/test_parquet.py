"""Parquet files: what is read back equals what was written, other programs read it, and memory does not grow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rollyard.core.errors import BadRequest
from rollyard.trajectory import Segment, Trajectory
from rollyard.trajectory import parquet as parquet_module
from rollyard.trajectory.columns import columns_of
from rollyard.trajectory.parquet import ParquetFile, read_parquet
from tests.trajectory.test_columns import trajectories
from tests.wire.samples import OUTCOME


def sample(number: int, tokens: int = 5) -> Trajectory:
    """A trajectory whose ids follow from its number."""
    version = f"v{number // 1000}"
    ids = [(number * 7919 + i * 31) % 150_000 for i in range(tokens)]
    segment = Segment(
        token_ids=ids, loss_mask=[0] + [1] * (tokens - 1), prompt_length=1,
        logprobs=[None, *(-0.001 * (id % 999) for id in ids[1:])], weights_version=[None, *[version] * (tokens - 1)],
    )  # fmt: skip
    fields = {**OUTCOME.model_dump(), "segments": [segment], "turns": []}
    task = {"kind": "math", "problem": f"{number} + π?"}
    return Trajectory(id=f"r{number}", group=None, sample_index=0, attempt=1, task=task, **fields)


def write(path: Path, found: Sequence[Trajectory]) -> None:
    with ParquetFile(path) as file:
        for one in found:
            file.write(columns_of([one]))


def read(path: Path) -> list[Trajectory]:
    return [one for columns in read_parquet(path) for one in columns.trajectories()]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(trajectories, max_size=4))
def test_what_is_read_back_is_equal(tmp_path: Path, found: list[Trajectory]) -> None:
    write(tmp_path / "r.parquet", found)
    assert read(tmp_path / "r.parquet") == found


def test_several_row_groups_and_versions_are_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_module, "ROWS", 3)
    found = [sample(number) for number in range(0, 8000, 800)]
    write(tmp_path / "r.parquet", found)
    assert read(tmp_path / "r.parquet") == found
    assert pq.ParquetFile(tmp_path / "r.parquet").num_row_groups == 4


def test_other_programs_read_plain_columns_and_null_where_nothing_was_sampled(tmp_path: Path) -> None:
    write(tmp_path / "r.parquet", [sample(3)])
    table = pq.read_table(tmp_path / "r.parquet")
    (row,) = table.to_pylist()
    assert (row["id"], row["status"], row["reward"], row["task_kind"]) == ("r3", OUTCOME.status, OUTCOME.reward, "math")
    (segment,) = row["segments"]
    assert segment["token_ids"] == sample(3).segments[0].token_ids
    assert segment["logprobs"][0] is segment["weights_version"][0] is None
    assert table.filter(table["reward"].is_null()).num_rows == 0


def test_a_file_that_is_something_else_is_refused(tmp_path: Path) -> None:
    pq.write_table(pq.read_table(_other(tmp_path)), tmp_path / "x.parquet")
    for path in (tmp_path / "x.parquet", tmp_path / "missing", Path(__file__)):
        with pytest.raises(BadRequest, match=path.name):
            list(read_parquet(path))


def _other(folder: Path) -> Path:
    import pyarrow as pa

    pq.write_table(pa.table({"id": [1]}), folder / "o.parquet")
    return folder / "o.parquet"


def test_without_pyarrow_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadRequest, match=r"rollyard\[parquet\]"):
        ParquetFile(tmp_path / "r.parquet")


PEAK = """
import resource, sys
from pathlib import Path
from rollyard.trajectory.columns import columns_of
from rollyard.trajectory.parquet import ParquetFile, read_parquet
from tests.trajectory.test_parquet import sample
count, path, peaks = int(sys.argv[1]), Path(sys.argv[2]), []
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
with ParquetFile(path) as file:
    for number in range(count):
        file.write(columns_of([sample(number, 200)]))
        if number in (count // 10, count - 1):
            peaks.append(peak())
number = 0
for columns in read_parquet(path):
    for one in columns.trajectories():
        assert one == sample(number, 200), number
        number += 1
    if number <= 5000:
        peaks.append(peak())
assert number == count
print(*peaks[:2], peaks[-1], peak(), path.stat().st_size)
"""


@pytest.mark.long
@pytest.mark.slow(300)
def test_a_hundred_thousand_rollouts_take_as_much_memory_as_ten_thousand(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PEAK, "100000", str(tmp_path / "r.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    early, written, begun, read_all, size = map(int, done.stdout.split())
    print(f"MiB: {early} at a tenth, {written} at the end, {begun} and {read_all} while reading; {size / 1e6:.0f} MB")
    assert written < early + 60
    assert read_all < begun + 60


def test_the_types_hold_ids_and_logprobs_of_any_size(tmp_path: Path) -> None:
    one = sample(1)
    segment = one.segments[0].model_copy(update={"token_ids": [2**40, *one.segments[0].token_ids[1:]]})
    tiny = [None, float(np.nextafter(-1.0, 0.0)), *segment.logprobs[2:]]
    found = [one.model_copy(update={"segments": [segment.model_copy(update={"logprobs": tiny})]}), sample(2)]
    write(tmp_path / "r.parquet", found)
    assert read(tmp_path / "r.parquet") == found
