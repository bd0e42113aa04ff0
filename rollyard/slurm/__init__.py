"""Slurm behind one Protocol: drivers, job states, the batch script."""
