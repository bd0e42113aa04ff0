"""Slurm as we need it: drivers behind one Protocol, job states, the batch script."""
