"""The server as a Slurm job: one runs at a time, the next one waits in the queue behind it."""
