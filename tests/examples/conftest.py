"""Clusters for the tests of the examples."""

from tests.support.cluster import new_cluster

__all__ = ["new_cluster"]
