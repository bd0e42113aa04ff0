"""The sums of training steps agree with the groups that they count, and outlive them."""

from __future__ import annotations

from statistics import mean, pstdev

from rollyard.kinds.batch import BatchKey
from rollyard.kinds.metric_history import TrainingStep
from rollyard.server.batches.step_view import step_view
from rollyard.store.base import RolloutRecord
from rollyard.store.batch_records import GroupRecord
from tests.server.batches.conftest import Site
from tests.support.played_pool import Played


async def steps(site: Site, batch: str | None, series: str = "d") -> list[TrainingStep]:
    return [step_view(record) for record in await site.store.batches.training_steps("default", series, batch, 100)]


def play(record: RolloutRecord) -> Played:
    """Every third group is uninformative, and the others' rewards differ in their spread."""
    number = int((record.group or "").rpartition("-g")[2])
    spread = 0 if number % 3 == 0 else 1 + number % 2
    return Played(reward=record.sample_index * spread / 2, tokens=10 + number)


async def delivered(site: Site, batch: str) -> list[GroupRecord]:
    return await site.store.batches.delivered(BatchKey("default", batch), 0, 100)


async def test_each_step_of_a_stream_has_the_sums_of_its_groups(site: Site) -> None:
    await site.dataset("d", 60)
    await site.create(id="s", dataset={"name": "d"}, step_groups=4, max_staleness=1, n=3)
    for upto in (4, 8, 12):
        await site.pool.play(play)
        await site.batches.acknowledge(BatchKey("default", "s"), upto)
    view, groups, found = await site.view("s"), await delivered(site, "s"), await steps(site, "s")
    assert len(groups) == view.delivered >= 12
    for number in range(3):
        mine = groups[4 * number : 4 * number + 4]
        rewards = [[r.reward for r in group.ended if r.reward is not None] for group in mine]
        flat = [reward for group in rewards for reward in group]
        step = found[number]
        assert (step.step, step.batch, step.groups, step.rollouts) == (number, "s", 4, 12)
        assert (step.reward_mean, step.reward_std) == (round(mean(flat), 6), round(pstdev(flat), 6))
        assert step.group_reward_std == round(mean(map(pstdev, rewards)), 6)
        assert step.tokens_mean == round(mean(r.tokens for group in mine for r in group.ended), 6)
        staleness = [group.staleness or 0 for group in mine]
        assert (step.staleness_mean, step.staleness_max) == (mean(staleness), max(staleness))
    assert sum(step.groups for step in found) == view.delivered
    assert sum(step.all_low for step in found) == view.filtered.all_low > 0
    assert sum(step.wasted_tokens for step in found) == view.wasted_tokens > 0
    judged = found[0].groups + found[0].all_low
    assert found[0].informative_share == round(4 / judged, 6) < 1
    assert view.informative_share == round(view.delivered / (view.delivered + view.filtered.all_low), 6) < 1
    assert found[0].judged_reward_mean is not None
    assert found[0].reward_mean is not None
    assert found[0].judged_reward_mean < found[0].reward_mean, "what the filter held back had a reward of 0"


async def test_groups_of_equal_rewards_are_not_informative_though_the_filter_lets_all_pass(site: Site) -> None:
    await site.dataset("d", 60)
    await site.create(id="all", dataset={"name": "d"}, target=6, n=2, filter={"kind": "none"})
    await site.pool.play(play)
    view, (step,) = await site.view("all"), await steps(site, "all")
    differing = sum(len({r.reward for r in group.ended}) > 1 for group in await delivered(site, "all"))
    assert 0 < differing < view.delivered == view.passed == 6
    assert view.informative_share == step.informative_share == round(differing / 6, 6)
    assert view.estimated_pass_rate == 1, "the filter lets all pass"


async def test_each_batch_of_a_series_is_a_step_which_outlives_its_groups_and_goes_with_the_batch(site: Site) -> None:
    await site.declare_pool()
    await site.dataset("d", 50)
    for id in ("a", "b"):
        await site.create(id=id, dataset={"name": "d"}, target=2)
        await site.pool.play(play)
    both = await steps(site, None)
    assert [(step.batch, step.step, step.groups) for step in both] == [("a", 0, 2), ("b", 1, 2)]
    await site.batches.acknowledge(BatchKey("default", "a"), 2)
    site.clock.turn(10)
    await site.store.batches.prune_acknowledged(site.clock.time())
    assert await delivered(site, "a") == []
    assert await steps(site, "a") == both[:1]
    await site.store.batches.prune(lambda pool: site.clock.time())
    assert await steps(site, None) == []


async def test_what_a_cancelled_batch_had_sampled_is_wasted_in_its_step(site: Site) -> None:
    await site.dataset("d", 50)
    await site.create(id="c", dataset={"name": "d"}, target=9, n=3, carry_over="cancel")
    for record in await site.pool.lease(2):
        await site.pool.finish(record, Played(tokens=10))
    await site.batches.cancel(BatchKey("default", "c"), keep=False)
    (step,) = await steps(site, "c")
    view = await site.view("c")
    assert step.wasted_tokens == view.wasted_tokens == 20
    assert (step.groups, step.reward_mean, step.informative_share) == (0, None, None)
