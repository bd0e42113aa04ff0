"""The yard, and real Slurm where a test asks for it, for every test in this folder."""

import pytest

from tests.support.cluster import accounting_cluster, cluster, new_cluster
from tests.support.vllm_env import vllm_python
from tests.support.yard import yard

__all__ = ["accounting_cluster", "cluster", "long_run", "new_cluster", "vllm_python", "yard"]


@pytest.fixture
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether faults last for the stated time, and not only until they are detected."""
    return str(request.config.option.markexpr) == "long or not long"


@pytest.fixture
def long_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases of the yard that no busy machine lets expire, for a test that counts attempts."""
    monkeypatch.setattr("tests.support.yard.LEASE_SECONDS", 30.0)
