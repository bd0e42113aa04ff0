"""Adapters for trainers of other projects. Only an adapter imports its trainer's library."""
