"""The slurmrestd driver: for machines without Slurm's commands, or for faster submits."""
