"""Three steps of a training as Agent Lightning's own trainer makes them, without a loss. It prints what it got as JSON.

It runs in the environment of Agent Lightning.
"""

import json
import sys

from agentlightning.verl.agl_rollout_manager import AglRolloutManager

url, key, tasks = sys.argv[1:]
for step, data in enumerate(json.loads(tasks)):
    manager = AglRolloutManager(
        agl_base_url=url, agl_key=key, model="policy", step=step, train_rollout_n=2, poll_interval_seconds=0.2
    )
    done = manager.enqueue_and_wait_until_completed(data, is_train=True)
    print("STEP", json.dumps([rollout.model_dump(mode="json") for rollout in done]), flush=True)
