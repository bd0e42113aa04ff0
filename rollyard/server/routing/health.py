"""Trust in an endpoint. A complaint makes the endpoint suspected; then a probe by the server decides.

Pure. Node agents and sessions of external agents complain. A single complaint ejects no endpoint, because the cause may
be the network of the node agent. Complaints from several sources eject the endpoint immediately. The length of an
ejection doubles with each ejection in a row. At the end of an ejection one probe is sent (half-open). If the probe
fails, the endpoint is ejected for a longer time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from rollyard.kinds.base import Reason

EJECTED = "Ejected"
VOTES = 2
"""Number of node agents or external sessions whose complaints eject an endpoint without a probe."""
VOTE_SECONDS = 60.0
"""Seconds for which a complaint counts, unless a probe succeeds."""
EJECTED_SECONDS, EJECTED_CAP_SECONDS = 2.0, 120.0
REMEMBER_EJECTIONS_SECONDS = 300.0
"""If an endpoint has been in service for longer than this since its last successful probe, its earlier ejections are
forgotten: the next ejection is as short as the first. Earlier ejections of an endpoint that is still ejected are never
forgotten."""


@dataclass(frozen=True, slots=True)
class EndpointTrust:
    votes: Mapping[str, float] = field(default_factory=dict)
    """Node agent or external session -> time of its last complaint. A successful probe removes all complaints, unless
    complaints ejected the endpoint during the probe."""
    out_until: float | None = None
    """End of the ejection; then a probe is due. None if the endpoint is not ejected."""
    suspected: bool = False
    """True: a probe is due now."""
    ejections: int = 0
    """Number of ejections in a row."""
    why: Reason | None = None
    """Reason of the ejection."""
    cleared_at: float = float("-inf")
    """Time of the last successful probe."""

    @property
    def ejected(self) -> bool:
        return self.out_until is not None

    def probe_due(self, now: float) -> bool:
        return self.suspected or (self.out_until is not None and now >= self.out_until)


TRUSTED = EndpointTrust()


def with_complaint(trust: EndpointTrust, voter: str, why: str, now: float) -> EndpointTrust:
    """Add a complaint. `voter`: node agent or external session that complains."""
    votes = {who: at for who, at in trust.votes.items() if now - at < VOTE_SECONDS} | {voter: now}
    if trust.ejected:
        return replace(trust, votes=votes)
    trust = replace(trust, votes=votes, suspected=True)
    if len(votes) < VOTES:
        return trust
    return _ejected(trust, Reason(EJECTED, f"reported by {len(votes)} of its callers: {why}"), now)


def with_probe(trust: EndpointTrust, why: Reason | None, now: float) -> EndpointTrust:
    """Add the result of a probe. `why`: reason of the failure; None on success."""
    if why is not None:
        return _ejected(trust, why, now)
    if trust.ejected and trust.out_until is not None and now < trust.out_until:
        return replace(trust, suspected=False)  # complaints during the probe have ejected the endpoint
    return EndpointTrust(ejections=trust.ejections, cleared_at=now)


def _ejected(trust: EndpointTrust, why: Reason, now: float) -> EndpointTrust:
    forgiven = not trust.ejected and now - trust.cleared_at > REMEMBER_EJECTIONS_SECONDS
    ejections = 1 if forgiven else trust.ejections + 1
    seconds = min(EJECTED_CAP_SECONDS, EJECTED_SECONDS * 2.0 ** (ejections - 1))
    return replace(trust, out_until=now + seconds, suspected=False, ejections=ejections, why=why)
