"""NeMo Gym's agent server: `POST /run` runs one row of a dataset as a rollout."""
