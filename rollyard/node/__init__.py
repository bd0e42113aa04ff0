"""The process in a RolloutPool's allocation: it connects to the server, runs rollouts stage by stage and uploads
results."""
