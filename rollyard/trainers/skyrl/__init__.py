"""Rollouts for SkyRL 0.4: `generator` has the class that a SkyRL trainer takes. docs/skyrl.md shows its use.

SkyRL must be installed already; this package needs nothing else.
"""
