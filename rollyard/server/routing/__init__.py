"""Model servers: the registry, their health, and the choice of one for each rollout."""
