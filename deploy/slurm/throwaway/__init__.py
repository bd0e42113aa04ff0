"""A throwaway Slurm cluster in one folder, as an ordinary user. The standard library is all it needs."""
