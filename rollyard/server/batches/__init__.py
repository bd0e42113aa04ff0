"""Batches: groups are drawn, filtered and delivered. `advance` makes every durable change; it is stored with its cause."""
