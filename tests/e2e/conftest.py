"""The yard, and real Slurm where a test asks for it, for every test in this folder."""

from cluster import accounting_cluster, cluster, new_cluster
from e2e_yard import yard

__all__ = ["accounting_cluster", "cluster", "new_cluster", "yard"]
