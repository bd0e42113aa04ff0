"""Fixtures of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.tokens.chat_template import ChatTemplate
from tests.support.plain_sandbox import sandbox, shared_sandbox

__all__ = ["sandbox", "shared_sandbox"]


@pytest.fixture(scope="module")
def template(model_dir: Path) -> ChatTemplate:
    return ChatTemplate.load(model_dir)
