"""Real Slurm for every test in this folder that asks for it."""

from tests.support.cluster import accounting_cluster, cluster, new_cluster
from tests.support.driver_cases import clusters

__all__ = ["accounting_cluster", "cluster", "clusters", "new_cluster"]
