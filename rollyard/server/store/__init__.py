"""The one durable place: objects with watch, rollouts, and trajectories as blobs beside them."""
