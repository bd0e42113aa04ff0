"""Time that a lease lives without a renewal."""

from __future__ import annotations

LEASE_SECONDS = 30.0
"""Default of `serve --lease-seconds`. A node agent assumes it until its server has answered."""
