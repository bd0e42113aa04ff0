"""Which processes end when a sandbox has too much memory, and when it is measured next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rollyard.sandbox.memory_guard.limit import LONGEST, SHORTEST, TARGET, files_to_compare, pause, to_end
from rollyard.sandbox.memory_guard.process_memory import ProcessMemory, SandboxMemory

LIMIT = 1000


def memory(files: int, *sizes: int) -> SandboxMemory:
    """The first process is the sandbox agent."""
    processes = [ProcessMemory(100 + number, number + 1, "p", size) for number, size in enumerate(sizes)]
    return SandboxMemory(files + sum(sizes), files, 0, processes)


def ended(found: SandboxMemory, before: int = 0) -> list[int]:
    return [process.bytes for process in to_end(found, LIMIT, before)]


def test_the_largest_processes_end_until_the_rest_fits() -> None:
    assert ended(memory(0, 10, 200, 700, 100)) == [700]
    assert ended(memory(0, 10, 400, 400, 300, 200)) == [400, 400]


def test_a_sandbox_within_its_limit_keeps_its_processes() -> None:
    assert ended(memory(300, 10, 400, 290)) == []


def test_the_sandbox_agent_never_ends() -> None:
    assert ended(memory(0, 990, 20)) == [20]


def test_a_task_can_delete_files_that_are_too_much() -> None:
    full = memory(1100, 10, 50)
    assert ended(full, before=900) == [50], "it wrote"
    assert ended(full, before=full.files) == [], "it only deletes"
    assert ended(memory(1100, 10, 50, 200), before=1100) == [200], "its processes grow"


def test_a_small_file_of_our_tools_ends_nothing_but_small_growths_add_up() -> None:
    before, rounds = 1100, 0
    while not ended(memory(1100 + 5 * rounds, 10, 50), before):
        before = files_to_compare(1100 + 5 * rounds, LIMIT, before)
        rounds += 1
    assert rounds == 4
    assert files_to_compare(1000, LIMIT, before) == 1000, "the task has deleted files"


@given(st.integers(0, 800), st.lists(st.integers(0, 3000), min_size=1, max_size=20))
def test_what_is_left_fits_unless_only_files_and_the_sandbox_agent_are_left(files: int, sizes: list[int]) -> None:
    found = memory(files, *sizes)
    left = found.used - sum(ended(found))
    assert left <= LIMIT or len(ended(found)) == len(sizes) - 1


@given(st.integers(0, 1 << 40), st.integers(1, 1 << 40))
def test_a_measurement_comes_before_the_limit_can_be_reached(used: int, limit: int) -> None:
    assert SHORTEST <= pause(used, limit) <= LONGEST
    assert 0 < TARGET < 1
