"""Probes of a site: real actions, and for each failure a remedy."""
