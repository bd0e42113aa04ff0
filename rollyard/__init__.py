"""Rollyard: rollout-as-a-service for RL of multi-turn LLM agents, as a declarative operator for Slurm."""

__version__ = "0.1.0"
