"""Real Slurm for every test in this folder that asks for it."""

from cluster import accounting_cluster, cluster, new_cluster, sid_tree

__all__ = ["accounting_cluster", "cluster", "new_cluster", "sid_tree"]
