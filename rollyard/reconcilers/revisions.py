"""Revisions of a pool: the templates that its spec has had, for `rollyard history` and `rollyard undo`. Pure."""

from __future__ import annotations

from datetime import datetime

from rollyard.kinds.pool import Revision
from rollyard.kinds.registry import Pool
from rollyard.kinds.revised_fields import REVISED_FIELDS

KEPT = 10


def revisions(pool: Pool, template_hash: str, now: datetime) -> list[Revision]:
    """Return the pool's revisions with the present template at the end, the oldest left out. `template_hash`: of the
    present spec."""
    known = pool.status.revisions
    if known and known[-1].template_hash == template_hash:
        return known
    spec = pool.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    template = {field: spec[field] for field in REVISED_FIELDS[pool.kind] if field in spec}
    number = known[-1].number + 1 if known else 1
    made = Revision(number=number, template_hash=template_hash, time=now, template=template)
    return [*(r for r in known if r.template_hash != template_hash), made][-KEPT:]
