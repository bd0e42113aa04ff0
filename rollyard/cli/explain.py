"""`rollyard explain`: the description of a kind or a field, from the docstrings of the kind's model."""

from __future__ import annotations

from textwrap import indent

import click
from pydantic import BaseModel

from rollyard.core.errors import NotFound
from rollyard.kinds.registry import find_kind
from rollyard.kinds.schema.fields import fields_of, find_field


@click.command()
@click.argument("path", metavar="KIND[.FIELD...]")
def explain(path: str) -> None:
    """Describe a kind or one of its fields."""
    word, *parts = path.split(".")
    kind = find_kind(word)
    if kind is None:
        raise NotFound(f"there is no kind {word!r}; see `rollyard api-resources`")
    click.echo(f"KIND:     {kind.model_fields['kind'].default}\nVERSION:  rollyard.dev/v1alpha1\n")
    model: type[BaseModel] | None = kind
    text = (kind.__doc__ or "").strip()
    if parts:
        shape = find_field(kind, parts)
        if shape is None:
            raise NotFound(f"{path} is not a field; see `rollyard explain {'.'.join([word, *parts[:-1]])}`")
        default = "" if shape.default is None else f" (default {shape.default!r})"
        click.echo(f"FIELD:    {parts[-1]} <{shape.type_name}>{' -required-' if shape.required else default}\n")
        model, text = shape.model, shape.description
    if text:
        click.echo("DESCRIPTION:\n" + indent(text, "  "))
    if model is not None:
        click.echo("\nFIELDS:")
        for name, shape in fields_of(model).items():
            click.echo(f"  {name} <{shape.type_name}>{' -required-' if shape.required else ''}")
            if shape.description:
                click.echo(indent(shape.description, "    "))
