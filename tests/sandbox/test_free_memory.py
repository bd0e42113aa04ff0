"""The memory that is left, with the limits of cgroups of both versions."""

from __future__ import annotations

from pathlib import Path

from rollyard.sandbox.free_memory import KernelKillCounter, free_memory

MIB = 1 << 20


def lay(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text)


def test_without_limits_it_is_the_machines(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("0::/\n")
    total = int(Path("/proc/meminfo").read_text().split()[1]) << 10
    assert 0 < free_memory(own, tmp_path) <= total
    assert 0 < free_memory() <= total


def test_the_narrowest_group_counts_and_its_file_cache_is_free(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("0::/job/step\n")
    lay(tmp_path / "job", memory__max=f"{64 * MIB}\n", memory__current=f"{60 * MIB}\n")
    lay(tmp_path / "job" / "step", memory__max="max\n", memory__current=f"{30 * MIB}\n")
    assert free_memory(own, tmp_path) == 4 * MIB
    lay(tmp_path / "job", memory__stat=f"anon 1\ninactive_file {3 * MIB}\n")
    assert free_memory(own, tmp_path) == 7 * MIB
    lay(tmp_path / "job" / "step", memory__max=f"{31 * MIB}\n")
    assert free_memory(own, tmp_path) == MIB


def test_the_first_version_of_cgroups(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("7:memory:/job\n3:cpu:/job\n")
    folder = tmp_path / "memory" / "job"
    lay(folder, memory__limit_in_bytes=f"{8 * MIB}\n", memory__usage_in_bytes=f"{9 * MIB}\n")
    assert free_memory(own, tmp_path) == 0
    lay(folder, memory__stat=f"total_inactive_file {3 * MIB}\n")
    assert free_memory(own, tmp_path) == 2 * MIB


def test_processes_that_the_kernel_ended_are_counted_in_both_versions(tmp_path: Path) -> None:
    (own := tmp_path / "cgroup").write_text("7:memory:/job\n3:cpu:/job\n0::/job\n")
    lay(tmp_path / "memory" / "job", memory__oom_control="oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    lay(tmp_path / "job", memory__events="oom 9\noom_kill 3\noom_group_kill 1\n")
    counter = KernelKillCounter(own, tmp_path)
    assert counter.count() == 5
    lay(tmp_path / "job", memory__events="oom 9\noom_kill 4\n")
    assert counter.count() == 6
    counter.close()
