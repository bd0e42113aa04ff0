"""Batches: groups drawn, filtered and delivered. Every durable change goes through `advance`, with what caused it."""
