"""The line that says why, out of what real vLLM (0.32, for CPUs) has said; long tracebacks are cut."""

from __future__ import annotations

import pytest

from rollyard.engine.process.crash_reason import MAX_CHARS, crash_reason, is_out_of_memory

TOO_LONG = """
(APIServer pid=26097) INFO 11-21 11:42:24 [model.py:733] Resolved architecture: Qwen3ForCausalLM
Traceback (most recent call last):
  File "/v/vllm/engine/arg_utils.py", line 1, in create_model_config
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (999999) is greater than the derived max_model_len (4096). \
[type=value_error, input_value=ArgsKwargs((), {'model': '/m'}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_CONFIG = """
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, Invalid repository ID or local directory specified: '/m'.
Please verify the following requirements:
1. Provide a valid Hugging Face repository ID.
 [type=value_error, input_value=ArgsKwargs((), {}), input_type=ArgsKwargs]
    For further information visit https://errors.pydantic.dev/2.14/v/value_error
"""
NO_ROOM = """
(EngineCore pid=26361) ERROR 11-21 11:42:53 [core.py:1200] EngineCore failed to start.
(EngineCore pid=26361) ERROR 11-21 11:42:53 [core.py:1200] Traceback (most recent call last):
(EngineCore pid=26361) ERROR 11-21 11:42:53 [core.py:1200] ValueError: No available memory for the cache blocks. \
Try increasing `gpu_memory_utilization` when initializing the engine.
(EngineCore pid=26361) ERROR 11-21 11:42:53 [multiproc_executor.py:315] Worker proc VllmWorker-0 died unexpectedly.
Process EngineCore:
Traceback (most recent call last):
ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.
(APIServer pid=26332) INFO 11-21 11:42:55 [utils.py:628] [shutdown] Process manager: send sigterm to process EngineCore
Traceback (most recent call last):
  File "/v/vllm/v1/engine/utils.py", line 1431, in wait_for_engine_startup
    raise RuntimeError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
/p/resource_tracker.py:254: UserWarning: resource_tracker: There appear to be 1 leaked shared_memory objects to clean up
  warnings.warn('resource_tracker: There appear to be %d '
"""
BAD_OPTION = """
usage: -c [-h] [-v]
          {chat,complete,serve} ...
-c: error: unrecognized arguments: --enforce-eagr
"""
ON_A_GPU = """
(Worker_TP1 pid=7) ERROR 11-21 11:42:53 [multiproc_executor.py:1] torch.OutOfMemoryError: CUDA out of memory. \
Tried to allocate 2.00 GiB.
(EngineCore_DP0 pid=6) ERROR 11-21 11:42:54 [core.py:9] Exception: WorkerProc initialization failed due to an exception in \
a background process. See stack trace for root cause.
(APIServer pid=5) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""


@pytest.mark.parametrize(
    ("said", "why", "memory"),
    [
        (TOO_LONG, "User-specified max_model_len (999999) is greater than the derived max_model_len (4096).", False),
        (
            NO_CONFIG,
            "Invalid repository ID or local directory specified: '/m'. Please verify the following requirements: "
            "1. Provide a valid Hugging Face repository ID.",
            False,
        ),
        (
            NO_ROOM,
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine.",
            True,
        ),
        (BAD_OPTION, "unrecognized arguments: --enforce-eagr", False),
        (ON_A_GPU, "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", True),
        ("RuntimeError: Engine core initialization failed.", "RuntimeError: Engine core initialization failed.", False),
        ("ValueError: x\nerror: ours\nbye", "ours", False),
        ("loading\nbye\n\n", "bye", False),
        ("", "it printed nothing", False),
        ("x" * 2000, "x" * (MAX_CHARS - 1) + "…", False),
    ],
)
def test_the_cause_is_found_among_its_consequences(said: str, why: str, memory: bool) -> None:
    assert crash_reason(said.splitlines()) == why
    assert is_out_of_memory(why) is memory
