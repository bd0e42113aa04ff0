"""Pages of the site that are not files in docs/: the pages beside the code, and two references made from the models.

A hook of MkDocs (`hooks` in mkdocs.yml). The references hold every field of every kind, and every route with its query
parameters, as the loader and the server have them. So they cannot differ from the code.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pydantic import BaseModel

from rollyard.api import app
from rollyard.api.query_parameters import ANY, parameters
from rollyard.kinds.registry import KINDS
from rollyard.kinds.rollout import RolloutRequest, RolloutView
from rollyard.kinds.schema.fields import FieldShape, fields_of
from rollyard.kinds.session import SessionOpened, SessionRequest
from rollyard.kinds.top import TopView
from rollyard.kinds.weights import WeightsStatus, WeightsUpdate
from rollyard.trajectory import Trajectory
from rollyard.trajectory.session import SessionRecord

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    ROOT / "README.md": "readme.md",
    ROOT / "ARCHITECTURE.md": "architecture.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "deploy/slurm/README.md": "slurm.md",
}
"""Pages outside of docs/, with their names on the site."""
_WEIGHTS = "/apis/rollyard.dev/v1alpha1/namespaces/{namespace}/inferencepools/{name}/weights"
BODIES: dict[str, tuple[type[BaseModel], ...]] = {
    "POST /v1/rollouts": (RolloutRequest,),
    "GET /v1/rollouts": (RolloutView,),
    "GET /v1/rollouts/{id}": (RolloutView, Trajectory),
    "POST /v1/sessions": (SessionRequest, SessionOpened),
    "GET /v1/sessions/{id}": (SessionRecord,),
    f"POST {_WEIGHTS}": (WeightsUpdate, WeightsStatus),
    f"GET {_WEIGHTS}": (WeightsStatus,),
    "GET /apis/rollyard.dev/v1alpha1/top": (TopView,),
}
"""Route -> models of its request and answer; the fields of a kind have their own page."""
FAMILIES = {
    "Rollouts": "/v1/rollouts",
    "Sessions": "/v1/sessions",
    "Objects": "/apis/rollyard.dev/v1alpha1/",
    "Other": "/",
}
"""Title -> first characters of the paths; the first that fits counts."""
INTERNAL = ("/v1/node/", "/v1/engine/")
"""Routes of Rollyard's own processes."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {name: path.read_text() for path, name in BESIDE.items()}
    pages |= {"reference-kinds.md": kinds_page(), "reference-routes.md": routes_page()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    names = {name: path for path, name in BESIDE.items()}
    return site_links(markdown, names.get(page.file.src_uri, ROOT / "docs" / page.file.src_uri).parent)


def site_links(markdown: str, folder: Path) -> str:
    """The links of a page in `folder`, as the site needs them; the name alone where the target is not a page."""

    def moved(match: re.Match[str]) -> str:
        text, target, anchor = match["text"], match["target"], match["anchor"] or ""
        path = (folder / target).resolve()
        if path in BESIDE:
            return f"[{text}]({BESIDE[path]}{anchor})"
        return f"[{text}]({path.name}{anchor})" if path.suffix == ".md" else text

    return re.sub(r"\[(?P<text>[^]\n]+)]\((?!http)(?P<target>[^)#\s]+)(?P<anchor>#[^)\s]+)?\)", moved, markdown)


def kinds_page() -> str:
    lines = ["# Kinds and their fields", "", "`rollyard explain KIND.FIELD` shows the same on a terminal.", ""]
    shown: dict[type[BaseModel], None] = {}
    for word, kind in KINDS.items():
        lines += [f"## {word}", "", inspect.cleandoc(kind.__doc__ or ""), "", *_fields(kind)]
        _collect(kind, shown)
    return "\n".join([*lines, "## Parts", "", *_parts(shown)])


def routes_page() -> str:
    """Each route of the server, and the bodies that they take and give."""
    lines = ["# Routes", "", "[The HTTP API](api.md) explains limits, errors and tokens.", ""]
    routes = [route for route in app.routes() if not (route.path.endswith("/") or route.path.startswith(INTERNAL))]
    for title, start in FAMILIES.items():
        lines += [f"## {title}", "", "| route | query parameters | bodies | what it does |", "|---|---|---|---|"]
        own = [route for route in routes if next(s for s in FAMILIES.values() if route.path.startswith(s)) == start]
        lines += [_row(route) for route in own]
        lines.append("")
    shown: dict[type[BaseModel], None] = {}
    for model in (model for models in BODIES.values() for model in models):
        shown[model] = None
        _collect(model, shown)
    return "\n".join([*lines, "", "## Bodies", "", *_parts(shown)])


def _row(route: web.RouteDef) -> str:
    path = re.sub(r"{(\w+):[^}]*}", r"{\1}", route.path)
    name = f"{route.method} {path}"
    bodies = ", ".join(_link(model) for model in BODIES.get(name, ()))
    return f"| `{name}` | {_query(route)} | {bodies} | {_cell(route.handler.__doc__ or '')} |"


def _link(model: type[BaseModel], word: str = "") -> str:
    return f"[`{word or model.__name__}`](#{model.__name__.lower()})"


def _query(route: web.RouteDef) -> str:
    names = parameters(route.handler)
    return "those of the engine's route" if ANY in names else ", ".join(f"`{name}`" for name in names)


def _collect(model: type[BaseModel], shown: dict[type[BaseModel], None]) -> None:
    for shape in fields_of(model).values():
        if shape.model is not None and shape.model not in shown:
            shown[shape.model] = None
            _collect(shape.model, shown)


def _parts(models: dict[type[BaseModel], None]) -> Iterator[str]:
    for model in sorted(models, key=lambda m: m.__name__):
        own = model.__doc__ if model.__doc__ != BaseModel.__doc__ else ""
        yield from (f"### {model.__name__}", "", inspect.cleandoc(own or ""), "", *_fields(model))


def _fields(model: type[BaseModel]) -> Iterator[str]:
    yield from ("| field | type | default | meaning |", "|---|---|---|---|")
    for name, shape in fields_of(model).items():
        yield f"| `{name}` | {_type(shape)} | {_default(shape)} | {_cell(shape.description)} |"
    yield ""


def _type(shape: FieldShape) -> str:
    if shape.choices:
        return ", ".join(f"`{choice}`" for choice in shape.choices)
    if shape.model is None:
        return f"`{shape.type_name}`"
    return _link(shape.model, shape.type_name)


def _default(shape: FieldShape) -> str:
    if shape.required:
        return "required"
    simple = shape.default is None or shape.default == "" or shape.model is not None
    return "" if simple else f"`{json.dumps(shape.default, default=str)}`"


def _cell(text: str) -> str:
    return inspect.cleandoc(text).replace("\n", " ").replace("|", "\\|").replace("<", "&lt;")
