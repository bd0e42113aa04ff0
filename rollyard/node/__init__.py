"""The process in a RolloutPool's allocation: it dials in, runs rollouts stage by stage, and uploads what came out."""
