"""Batches: groups are drawn, filtered and delivered. Every durable change is made by `advance`, together with its cause."""
