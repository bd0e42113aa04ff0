"""Real chat templates: every prompt is the template's own, sampled ids stay, calls are read, and none is lost in silence."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.template_corpus import RealTemplate, corpus, installed
from tests.support.template_trials import KNOWN, tried

SHORT = (
    "cohere2", "deepseekv3", "gemma4_v5", "glm4moe_training", "gptoss", "lfm2_2_5_v2", "llama3_1", "nemotron_3_nano",
    "phi3", "qwen2_5", "qwen3", "qwen3_5_think",
)  # fmt: skip


def check(templates: Sequence[RealTemplate]) -> None:
    reports = [tried(template) for template in templates]
    wrong = {r.name: r.failures[:2] for r in reports if r.failures and r.name not in KNOWN}
    assert not wrong
    kinds = {kind for report in reports for kind, _, _ in report.failures}
    assert not kinds & {"ids", "lost"}
    assert sum(report.prompts for report in reports) > 20 * len(reports)


@pytest.mark.slow(30)
def test_a_dozen_installed_templates_of_real_models_hold_their_conversations() -> None:
    found = [template for template in installed() if template.name.removeprefix("trl/") in SHORT]
    assert len(found) == len(SHORT)
    check(found)


@pytest.mark.long
def test_all_templates_of_the_corpus_hold_their_conversations() -> None:
    found = corpus()
    assert len(found) >= 150
    check(found)
