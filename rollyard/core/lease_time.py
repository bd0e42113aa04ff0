"""Time after which a lease without a renewal ends."""

from __future__ import annotations

LEASE_SECONDS = 30.0
"""Default of `serve --lease-seconds`. A node agent uses this default until it has the server's value."""
