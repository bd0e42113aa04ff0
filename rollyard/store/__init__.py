"""The server's durable state: objects with watch, rollouts, batches, and trajectories as blobs."""
