"""A throwaway Slurm cluster in one folder, as an ordinary user. It needs only the standard library."""
