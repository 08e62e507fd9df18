import math
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from small_models import seeded

from real.engines.ranked import RankedEngine
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import RunningStats, TransformersEngine
from real.model.policy import load_policy
from real.ranks.distributed import Ranks
from real.settings.groups import UpdateSettings
from real.tiny import ARITHMETIC, CHECKPOINT
from real.tiny.tasks import encode
from real.update.logprobs import Scorer
from real.vote.observe import token_stats

PROMPTS = [encode(problem.prompt) for problem in ARITHMETIC.problems(5)]
N = 12


@pytest.fixture(scope="module")
def policy():
    return load_policy(CHECKPOINT, "cpu")


def sample(policy, stats, temperature=0.6, **options):
    engine = TransformersEngine(policy.model, policy.eos_token_ids, policy.pad_token_id, **options)
    return engine.sample(PROMPTS, N, Sampling(22, temperature, stats=stats), seeded(3))


def close(found, expected):
    assert found.dtype == torch.float64
    return found.shape == expected.shape and bool((found - expected).abs().max() < 1e-4)


def one_token(logprobs_BA):
    """Statistics of B responses of a token each."""
    rows = len(logprobs_BA)
    stats = RunningStats(rows)
    stats.add(torch.arange(rows), None, logprobs_BA, logprobs_BA.exp())
    return stats.means(torch.ones(rows, dtype=torch.int64))


def test_impossible_tokens_leave_the_entropy_and_no_certainty():
    flat = one_token(torch.full((1, 8), -math.log(8)))
    assert flat[0].item() == pytest.approx(math.log(8)) and abs(flat[1].item()) < 1e-6
    sure = one_token(torch.tensor([[0.0, -torch.inf]]))
    assert sure[0].item() == 0 and sure[1].item() == torch.inf
    assert all(values.isnan().all() for values in one_token(torch.full((1, 3), torch.nan)))


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_sampling_and_a_pass_of_the_trainer_agree(policy, temperature):
    rollouts = sample(policy, True, temperature)
    rollouts.logprobs_PNT[:, :, 1] = torch.nan  # the pass needs none of the engine's
    settings = UpdateSettings(temperature=temperature, max_tokens_per_microbatch=256)
    found = token_stats(Scorer(policy.model), PROMPTS, rollouts, settings)
    assert close(rollouts.entropy_PV, found[0])
    assert close(rollouts.certainty_PV, found[1])
    assert rollouts.entropy_PV.std() > 0.01 and rollouts.certainty_PV.min() > 0


def test_asking_changes_no_bit_of_the_samples_and_takes_no_further_pass(policy):
    calls = []
    hook = policy.model.register_forward_hook(lambda *_: calls.append(1))
    plain = sample(policy, False)
    without = len(calls)
    asked = sample(policy, True)
    hook.remove()
    assert len(calls) == 2 * without
    assert plain.entropy_PV is None and plain.certainty_PV is None
    for name in ("tokens_PNT", "logprobs_PNT", "lengths_PN", "finished_PN"):
        assert torch.equal(getattr(plain, name), getattr(asked, name))
    assert torch.equal(asked.to("cpu").entropy_PV, asked.entropy_PV)


class Threads(Ranks):
    """Ranks of one process, a thread each."""

    def gather(self, tensor, everywhere=True):
        self.met[self.rank] = tensor
        self.barrier.wait(10)
        found = torch.stack([self.met[rank] for rank in range(self.world)])
        self.barrier.wait(10)
        return found if everywhere or self.first else found[:0]


class Recording(TransformersEngine):
    def sample(self, *arguments):
        self.asked += [self.share] if self.share[1] > 1 else []
        return super().sample(*arguments)


def on_ranks(policy, n_prompts, stats, world, group=1, everywhere=True, n=N):
    """What an engine alone gives, and what each of the ranks gets."""
    Threads.met, Threads.barrier, Recording.asked = {}, Barrier(world), []
    call = PROMPTS[:n_prompts], n, Sampling(22, 0.6, stats=stats, everywhere=everywhere)

    def engine():
        # 25 responses at once: the chunks of a share are not those of the whole.
        return Recording(policy.model, policy.eos_token_ids, policy.pad_token_id, max_rows=25)

    def one(rank):
        ranked = RankedEngine(engine(), Threads(rank, world), policy.pad_token_id, group=group)
        generator = seeded(3)
        return ranked.sample(*call, generator), generator.get_state()

    with ThreadPoolExecutor(world) as pool:
        found, states = zip(*pool.map(one, range(world)), strict=True)
    generator = seeded(3)
    expected = engine().sample(*call, generator)
    assert all(torch.equal(state, generator.get_state()) for state in states[::group])
    return expected, list(found)


@pytest.mark.parametrize("n_prompts", [5, 1])
@pytest.mark.parametrize("stats", [True, False])
def test_ranks_send_them_to_all(policy, n_prompts, stats):
    """With one prompt a rank has none, and knows nothing of the fields itself."""
    expected, each = on_ranks(policy, n_prompts, stats, 2)
    for found in each:
        assert torch.equal(found.tokens_PNT, expected.tokens_PNT)
        for name in ("entropy_PV", "certainty_PV"):
            pair = getattr(found, name), getattr(expected, name)
            assert close(*pair) if stats else pair == (None, None)


def test_a_rank_without_a_response_draws_the_next_ones_as_the_others_do(policy):
    expected, each = on_ranks(policy, 1, False, 2, n=1)
    assert all(found.tokens_PNT.equal(expected.tokens_PNT) for found in each)


def test_groups_have_one_part_each_and_one_reader_alone_gets_all(policy):
    expected, each = on_ranks(policy, 5, False, 4, group=2)
    assert all(found.tokens_PNT.equal(expected.tokens_PNT) for found in each)
    assert sorted(Recording.asked) == [(0, 2), (1, 2)]
    expected, (first, other) = on_ranks(policy, 5, False, 2, everywhere=False)
    assert torch.equal(first.tokens_PNT, expected.tokens_PNT)
    assert other.tokens_PNT.shape == (5, N, 0) and not other.finished_PN.any()
