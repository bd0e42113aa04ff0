"""`generate_rollout`: slime's `--rollout-function-path`, run in a RolloutPool.

The settings are attributes `rollyard_*` of slime's arguments. slime reads them from the file of `--custom-config-path`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollyard.client import Client
from rollyard.core.errors import Conflict, Invalid, NoProgress
from rollyard.trainers.checkpoint_versions import CheckpointVersions
from rollyard.trainers.slime.samples import group_request, samples_of, sampling_fields

log = logging.getLogger(__name__)
Groups = list[list[list[Any]]]
"""Samples by prompt, by rollout, and by segment: the nesting that slime expects of rollouts with several samples."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:
    """Run the rollouts of a training step, or of an evaluation.

    `rollout_id`: number of the step, from 0. Raises Invalid for a setting or a row that cannot be run, and NoProgress
    if more groups end without a reward than the step needs. Raises Conflict if the run has rollouts of this step with
    another request.
    """
    from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput

    for setting in ("rollyard_pool", "rollyard_run"):
        if not getattr(args, setting, None):
            raise Invalid(f"slime's arguments have no `{setting}`; set it in the file of `--custom-config-path`")
    with Client(kubeconfig=getattr(args, "rollyard_kubeconfig", None)) as client:
        if evaluation:
            # slime evaluates after a step, and before the first step under the same number.
            done = min(rollout_id + 1, getattr(args, "rollyard_steps_drawn", 0))
            return RolloutFnEvalOutput(data=_evaluate(args, done, client))
        samples, metrics = _train(args, rollout_id, data_source, client)
        args.rollyard_steps_drawn = rollout_id + 1
        return RolloutFnTrainOutput(samples=samples, metrics=metrics)


def _train(args: Any, rollout_id: int, data_source: Any, client: Client) -> tuple[Groups, dict[str, float]]:
    """Draw groups until as many as a step needs are useful."""
    if args.rollout_top_p != 1.0:
        raise Invalid("slime needs the nucleus of each token if `--rollout-top-p` is not 1; leave it at 1")
    keep = _filter(args)
    sampling = sampling_fields(
        temperature=args.rollout_temperature,
        top_p=args.rollout_top_p,
        top_k=args.rollout_top_k,
        max_tokens=args.rollout_max_response_len,
        stop=args.rollout_stop,
        stop_token_ids=args.rollout_stop_token_ids,
    )
    useful: Groups = []
    counts = Counter[str]()
    while len(useful) < args.rollout_batch_size:
        drawn = data_source.get_samples(args.rollout_batch_size - len(useful))
        names = [f"{args.rollyard_run}-train-{rollout_id}-{group[0].group_index}" for group in drawn]
        for group in _run(args, client, drawn, names, "train", rollout_id, sampling):
            scored = [samples[0] for samples in group if samples[0].reward is not None]
            counts["without_reward"] += len(group) - len(scored)
            if not scored:
                counts["groups_without_reward"] += 1
            elif keep(scored):
                useful.append(group)
            else:
                counts["filtered_groups"] += 1
        if counts["groups_without_reward"] > args.rollout_batch_size:
            raise NoProgress(
                f"{counts['groups_without_reward']} groups of step {rollout_id} ended without a reward; "
                "`rollyard rollouts list` shows them"
            )
    return useful, {f"rollout/{name}": float(count) for name, count in counts.items()}


def _evaluate(args: Any, done: int, client: Client) -> dict[str, dict[str, list[Any]]]:
    """Run slime's evaluation datasets. A rollout without a reward is left out. `done`: number of training steps so far."""
    from slime.utils.data import read_file
    from slime.utils.types import Sample

    results = {}
    for dataset in args.eval_datasets or []:
        n = dataset.n_samples_per_eval_prompt
        groups = [
            [
                Sample(
                    group_index=row_index,
                    index=row_index * n + i,
                    prompt=row.get(dataset.input_key) or "",
                    metadata=dataset.inject_metadata(row.get(dataset.metadata_key)),
                )
                for i in range(n)
            ]
            for row_index, row in enumerate(read_file(dataset.path))
        ]
        sampling = sampling_fields(
            temperature=dataset.temperature,
            top_p=dataset.top_p,
            top_k=dataset.top_k,
            max_tokens=dataset.max_response_len,
            stop=dataset.stop if dataset.stop is not None else args.rollout_stop,
            stop_token_ids=dataset.stop_token_ids
            if dataset.stop_token_ids is not None
            else args.rollout_stop_token_ids,
        )
        names = [f"{args.rollyard_run}-eval-{done}-{dataset.name}-{i}" for i in range(len(groups))]
        found = _run(args, client, groups, names, "eval", done, sampling)
        scored = [samples[0] for group in found for samples in group if samples[0].reward is not None]
        if not scored:
            raise NoProgress(f"no rollout of dataset {dataset.name} has a reward; `rollyard rollouts list` shows them")
        results[dataset.name] = {
            "rewards": [sample.reward for sample in scored],
            "truncated": [sample.status.name == "TRUNCATED" for sample in scored],
            "samples": scored,
        }
    return results


def _run(
    args: Any,
    client: Client,
    groups: Sequence[Sequence[Any]],
    names: Sequence[str],
    mode: str,
    steps_done: int,
    sampling: Mapping[str, Any],
) -> Groups:
    """Run the rollouts of these groups, and return their samples. `names`: the groups' ids."""
    given = getattr(args, "rollyard_weights", None)
    versions = CheckpointVersions(**{"first": 0, **given}) if given is not None else None
    requests = [
        group_request(
            group,
            name=name,
            mode=mode,
            pool=args.rollyard_pool,
            sampling=sampling,
            fields=getattr(args, "rollyard_request", None) or {},
            weights=versions.required(steps_done) if versions is not None else None,
        )
        for group, name in zip(groups, names, strict=True)
    ]
    namespace = getattr(args, "rollyard_namespace", None)
    try:
        ids = client.submit(requests, namespace)
    except Conflict as error:
        raise Conflict(f"{error}. To change a training, give it another `rollyard_run`") from None
    trajectories = client.wait_many(ids, namespace)
    for t in trajectories:
        if t.reward is None:
            log.warning("rollout %s ended %s without a reward: %s", t.id, t.status, t.error and t.error.message)
    following = iter(trajectories)
    return [[samples_of(sample, next(following)) for sample in group] for group in groups]


def _filter(args: Any) -> Callable[[list[Any]], bool]:
    """Return slime's `--dynamic-sampling-filter-path` as a function of the first samples of a group's rollouts with a
    reward."""
    from slime.rollout.filter_hub.base_types import call_dynamic_filter
    from slime.utils.misc import load_function

    path = args.dynamic_sampling_filter_path
    chosen = load_function(path) if path is not None else None
    return lambda samples: bool(call_dynamic_filter(chosen, args, samples).keep)
