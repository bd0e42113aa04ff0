"""The server as a Slurm job: one runs at a time, the next ones wait in the queue behind it."""
