"""The only durable state: objects with watch, rollouts, and trajectories as blobs beside them."""
