"""Driver that uses slurmrestd. It needs none of Slurm's commands, and it submits faster than they do."""
