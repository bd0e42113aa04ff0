"""Fields of the task kind `gym`: an entry of a procedural data set, which a library makes and scores."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from rollyard.kinds.task_fields import TaskFields

Level = Annotated[int, Field(ge=0)]


class GymTask(TaskFields):
    """Entry of a data set. Equal fields make an equal entry."""

    library: Literal["reasoning-gym"] = "reasoning-gym"
    """Library that makes the question and scores the answer."""
    dataset: str = Field(pattern=r"^[a-z0-9_]+$")
    """Name of the data set, such as leg_counting."""
    seed: int = Field(ge=0, lt=1 << 32)
    """Seed of the data set."""
    index: int = Field(ge=0, lt=1 << 31)
    """Index of the entry in the data set."""
    config: dict[str, JsonValue] = {}
    """Fields of the data set's config. Default: those of the library."""
    difficulty: Level | None = None
    """Level of all attributes of the data set's curriculum, as by its `set_global_level`. Default: no curriculum is used."""
    level: dict[str, Level] = {}
    """Attribute of the curriculum -> level, as by its `set_attr_level`. It comes after `difficulty`."""
    system: str | None = None
    """System prompt. Default: the one that the library calls `default`. It asks for an answer between `<answer>` tags."""
