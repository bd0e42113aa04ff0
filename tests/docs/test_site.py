"""The site's references: nothing of the models and routes is missing, and each route says what it does."""

from __future__ import annotations

from rollyard.api import app
from rollyard.kinds.registry import KINDS
from rollyard.kinds.schema.fields import walk
from scripts.site_pages import BODIES, INTERNAL, ROOT, kinds_page, routes_page, site_links


def test_every_field_of_every_kind_has_a_row() -> None:
    rows = {line.split("|")[1].strip() for line in kinds_page().splitlines() if line.startswith("| `")}
    fields = {f"`{path[-1]}`" for kind in KINDS.values() for path, _ in walk(kind)}
    assert fields <= rows


def test_every_public_route_has_a_row_that_says_what_it_does() -> None:
    rows = [line for line in routes_page().splitlines() if line.startswith(("| `GET", "| `P", "| `DELETE"))]
    public = {(r.method, r.path.rstrip("/")) for r in app.routes() if not r.path.startswith(INTERNAL)}
    assert len(rows) == len(public)
    assert not [row for row in rows if not row.split("|")[-2].strip()]
    assert {row.split("`")[1] for row in rows} >= BODIES.keys()


def test_links_between_pages_lead_to_the_site() -> None:
    text = "[a](../ARCHITECTURE.md), [b](api.md#limits), [c](#here), [d](https://example.org/x.md)"
    assert site_links(text, ROOT / "docs") == (
        "[a](architecture.md), [b](api.md#limits), [c](#here), [d](https://example.org/x.md)"
    )
    assert site_links("[w](docs/weights.md#fine) and [s](batch.sh)", ROOT) == "[w](weights.md#fine) and s"
