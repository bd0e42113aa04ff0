"""Batches: groups are drawn, filtered and delivered. `advance` makes every durable change of a batch."""
