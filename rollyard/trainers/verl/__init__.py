"""Rollouts for the v1 trainer of verl 0.9: `agent_loop` has the class that verl loads. docs/verl.md shows its use.

verl must be installed already; this package needs nothing else.
"""
