"""The driver that talks to slurmrestd: where no command of Slurm's is installed, or a submit must be quick."""
