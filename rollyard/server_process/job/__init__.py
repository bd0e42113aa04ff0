"""The server as a Slurm job. One such job runs at a time; its standby jobs wait in the queue."""
