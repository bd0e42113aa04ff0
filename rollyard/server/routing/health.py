"""Whether an endpoint is trusted: complaints of node agents put it under suspicion, a probe of ours decides.

Pure. One complaint alone ejects nothing, for it may be the complainer's network; those of several node agents do so at
once. Ejected, it stays out for a time that doubles with each ejection in a row; then one probe goes there (half-open), and
it comes back or stays out for longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

VOTES = 2
"""Node agents whose complaints eject without waiting for the probe."""
VOTE_SECONDS = 60.0
"""So long a complaint counts, unless a probe answers it."""
EJECTED_SECONDS, EJECTED_CAP_SECONDS = 2.0, 120.0
REMEMBER_EJECTIONS_SECONDS = 300.0
"""Trusted for so long, it begins again with the shortest ejection."""


@dataclass(frozen=True, slots=True)
class EndpointTrust:
    votes: Mapping[str, float] = field(default_factory=dict)
    """Who complained, and when, since a probe last succeeded."""
    out_until: float | None = None
    """Ejected until then, when a probe is due; None while it is not ejected."""
    suspected: bool = False
    """A probe is due at once."""
    ejections: int = 0
    """In a row."""
    why: str = ""
    cleared_at: float = float("-inf")
    """When a probe last succeeded."""

    @property
    def ejected(self) -> bool:
        return self.out_until is not None

    def probe_due(self, now: float) -> bool:
        return self.suspected or (self.out_until is not None and now >= self.out_until)


TRUSTED = EndpointTrust()


def with_complaint(trust: EndpointTrust, voter: str, why: str, now: float) -> EndpointTrust:
    """A node agent could not use it."""
    votes = {who: at for who, at in trust.votes.items() if now - at < VOTE_SECONDS} | {voter: now}
    if trust.ejected:
        return replace(trust, votes=votes)
    trust = replace(trust, votes=votes, suspected=True, why=why)
    return _ejected(trust, f"{len(votes)} node agents: {why}", now) if len(votes) >= VOTES else trust


def with_probe(trust: EndpointTrust, why: str, now: float) -> EndpointTrust:
    """A probe of ours came back; `why` is empty when the endpoint did what was asked."""
    if why:
        return _ejected(trust, why, now)
    if trust.ejected and trust.out_until is not None and now < trust.out_until:
        return replace(trust, suspected=False)  # voted out while the probe was under way: it serves its time
    return EndpointTrust(ejections=trust.ejections, cleared_at=now)


def _ejected(trust: EndpointTrust, why: str, now: float) -> EndpointTrust:
    forgiven = not trust.ejected and now - trust.cleared_at > REMEMBER_EJECTIONS_SECONDS
    ejections = 1 if forgiven else trust.ejections + 1
    seconds = min(EJECTED_CAP_SECONDS, EJECTED_SECONDS * 2.0 ** (ejections - 1))
    return replace(trust, out_until=now + seconds, suspected=False, ejections=ejections, why=why)
