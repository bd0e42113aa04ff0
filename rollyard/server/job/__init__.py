"""The server as a Slurm job: one runs at a time, its standby jobs wait in the queue."""
