"""The process in a RolloutPool's allocation. It connects to the server, runs rollouts by stages, and uploads results."""
