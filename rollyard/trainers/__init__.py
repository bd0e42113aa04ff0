"""Adapters for trainers of other projects. Each loads its trainer's library on import, and nothing else imports it."""
