"""The yard, and real Slurm where a test asks for it, for every test in this folder."""

import pytest
from cluster import accounting_cluster, cluster, new_cluster
from e2e_yard import yard
from vllm_env import vllm_python

__all__ = ["accounting_cluster", "cluster", "long_run", "new_cluster", "vllm_python", "yard"]


@pytest.fixture
def long_run(request: pytest.FixtureRequest) -> bool:
    """Whether faults last as long as is stated, and not only until they show."""
    return str(request.config.option.markexpr) == "long or not long"
