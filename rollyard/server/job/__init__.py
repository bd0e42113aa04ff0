"""The server as a Slurm job: one runs at a time, its successors wait in the queue."""
