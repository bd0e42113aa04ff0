"""A plug-in of vLLM for CPUs: the core is forked from the server, as on GPUs, and not started as a new interpreter.

A new interpreter imports all of vLLM once more, which is 9 of the 23 s of CPU time of a start.
"""

import os


def register() -> None:
    """Change vLLM's platform, which orders a new interpreter for everything on CPUs."""
    from vllm.platforms.cpu import CpuPlatform

    check = CpuPlatform.check_and_update_config

    def check_and_fork(config):  # type: ignore[no-untyped-def]
        check(config)
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"

    if "fork" not in check.__name__:  # vLLM registers plug-ins in several places
        CpuPlatform.check_and_update_config = staticmethod(check_and_fork)
