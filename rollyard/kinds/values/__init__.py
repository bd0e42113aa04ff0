"""Formats of single values in a spec: sizes, walltimes, lists of nodes, paths, `#SBATCH` options."""
