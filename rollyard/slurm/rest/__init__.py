"""Driver that uses slurmrestd. It needs none of Slurm's commands, and submits are faster than with `sbatch`."""
