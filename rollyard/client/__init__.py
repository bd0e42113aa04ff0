"""Clients of the server's API: for people and trainers, for node agents, for engines."""
