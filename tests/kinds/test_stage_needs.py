"""Needs of a task, and whether a pool meets them."""

from __future__ import annotations

import pytest

from rollyard.core.errors import Invalid
from rollyard.kinds.sandbox_template import SandboxTemplate
from rollyard.kinds.stage_needs import StageNeeds

POOL = SandboxTemplate(cpus=0.5, memory="1G", allowed_hosts=["pypi.org", "*.example.org", "mirror:8080"])


@pytest.mark.parametrize(
    "hosts", [(), ("pypi.org",), ("a.example.org",), ("*.example.org",), ("*.b.example.org",), ("mirror:8080",)]
)
def test_hosts_that_the_pool_has(hosts: tuple[str, ...]) -> None:
    StageNeeds(hosts=hosts).check(POOL)
    StageNeeds(hosts=hosts).check(SandboxTemplate(host_network=True))
    assert StageNeeds(hosts=hosts).template(SandboxTemplate(host_network=True)).allowed_hosts == list(hosts)


@pytest.mark.parametrize("host", ["example.org", "*.org", "mirror", "pypi.org:8080", "notexample.org", "10.0.0.1"])
def test_hosts_that_it_lacks(host: str) -> None:
    with pytest.raises(Invalid, match=r"add it to `sandbox\.allowedHosts`"):
        StageNeeds(hosts=(host,)).check(POOL)


def test_memory_cpus_and_a_network() -> None:
    met = StageNeeds(memory_mib=1024, cpus=1, network=True)
    met.check(POOL)
    assert met.template(POOL).memory == "1024M"
    with pytest.raises(Invalid) as refused:
        StageNeeds(memory_mib=1025, cpus=1.5, network=True).check(SandboxTemplate(memory="1G"))
    assert [cause.message for cause in refused.value.causes] == [
        "it needs 1025 MiB of memory; set `sandbox.memory` of the pool to 1025M",
        "it needs 1.5 CPUs; set `sandbox.cpus` of the pool to more than 1",
        "it needs a network; set `sandbox.allowedHosts` or `sandbox.hostNetwork` of the pool",
    ]
