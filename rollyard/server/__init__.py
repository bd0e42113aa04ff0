"""Decisions and state of the server: rollouts, batches, endpoints and weights; `server_process` starts it."""
