"""Probes of a site: real actions, each with what to change where it fails."""
