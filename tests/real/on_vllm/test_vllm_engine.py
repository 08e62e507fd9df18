from dataclasses import replace

import pytest
import torch
from drawn import check_ends, logprob_gap
from small_models import seeded
from vllm_models import change, make_model

from lab.base.errors import UserError
from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.transformers_engine import TransformersEngine
from real.engines.vllm_engine import VllmEngine, VllmSettings

VOCABULARY = 32
SHORT = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
LONG = [[(7 * i) % 30 + 1 for i in range(100)]]
TOLERANCE = 5e-5
EIGHT = Sampling(8, temperature=0.7)


@pytest.fixture(scope="module")
def one(folder):
    """Starting vLLM takes seconds, so all tests share an engine."""
    settings = VllmSettings(model=str(folder), max_model_len=256, eos_token_ids=(5, 6))
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    state = torch.get_rng_state()
    made = VllmEngine(settings)
    with pytest.raises(EngineError, match="no weights of the trainer's"):
        made.sample(SHORT, 2, EIGHT, seeded())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)
    assert torch.get_num_threads() == before
    yield made
    made.close()
    made.close()


@pytest.fixture
def model(one):
    fresh = make_model()
    one.update_weights(fresh, version=0)
    return fresh


@pytest.mark.parametrize("prompts", [SHORT, LONG])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_equal_transformers_before_and_after_an_update(one, model, prompts, temperature):
    sampling = Sampling(12, temperature)
    before = one.sample(prompts, 4, sampling, seeded())
    assert logprob_gap(model, prompts, before, temperature) < TOLERANCE
    assert before.logprobs_PNT.dtype == torch.float32
    one.release()
    with pytest.raises(EngineError, match="no weights of the trainer's"):
        one.sample(SHORT, 2, EIGHT, seeded())
    change(model)
    assert logprob_gap(model, prompts, before, temperature) > 0.1
    one.update_weights(model, version=1)
    after = one.sample(prompts, 4, sampling, seeded())
    assert logprob_gap(model, prompts, after, temperature) < TOLERANCE
    assert (before.version, after.version) == (0, 1)


def test_the_cache_can_be_released_when_all_responses_have_ended(one, model, monkeypatch):
    """Vllm checks that nothing is left to do, and then that it is on a GPU."""
    one.sample(SHORT, 2, EIGHT, seeded())
    with monkeypatch.context() as patch:
        patch.setattr(one.host, "_adapters", "kept")
        patch.setattr(one.host, "settings", replace(one.host.settings, device="cuda"))
        with pytest.raises(EngineDied, match="Selective discard is not supported on CPU"):
            one.release()
    one.update_weights(model, version=1)
    one.sample(SHORT, 2, EIGHT, seeded())


def test_the_old_weights_keys_and_values_are_forgotten(one, model, monkeypatch):
    one.sample(LONG, 4, EIGHT, seeded())
    change(model)
    one.update_weights(model, version=1)  # without `release`, which empties the cache as well
    assert logprob_gap(model, LONG, one.sample(LONG, 4, EIGHT, seeded()), 0.7) < TOLERANCE
    # The same without the reset: that this test can see a stale cache at all.
    change(model)
    with monkeypatch.context() as patch:
        patch.setattr(one.host.llm, "reset_prefix_cache", lambda: True)
        one.update_weights(model, version=2)
    assert logprob_gap(model, LONG, one.sample(LONG, 4, EIGHT, seeded()), 0.7) > 0.1


def test_a_cache_that_cannot_be_emptied_is_an_error(one, model, monkeypatch):
    monkeypatch.setattr(one.host.llm, "reset_prefix_cache", lambda: False)
    with pytest.raises(EngineDied, match="prefix cache was not emptied"):
        one.update_weights(model, version=1)
    with pytest.raises(EngineError, match="no weights of the trainer's"):
        one.sample(SHORT, 2, EIGHT, seeded())


def test_the_version_is_what_vllm_says_not_what_we_hope(one, model, monkeypatch):
    one.host.llm.update_weight_version("other")
    with pytest.raises(EngineError, match="drawn by version other of the weights instead of 0"):
        one.sample(SHORT, 2, EIGHT, seeded())
    monkeypatch.setattr(one.host.llm, "update_weight_version", lambda _: None)
    one.update_weights(model, version=1)
    with pytest.raises(EngineError, match="drawn by version other of the weights instead of 1"):
        one.sample(SHORT, 2, EIGHT, seeded())


def test_same_seed_same_samples(one, model):
    first = one.sample(SHORT, 16, EIGHT, seeded(3))
    again = one.sample(SHORT, 16, Sampling(8, 0.7, logprobs=False), seeded(3))
    assert torch.equal(again.tokens_PNT, first.tokens_PNT)
    assert torch.equal(again.logprobs_PNT.isnan(), first.mask_PNT())
    alone = one.sample(SHORT[:1], 16, EIGHT, seeded(3)).tokens_PNT
    width = min(alone.shape[-1], first.tokens_PNT.shape[-1])
    assert torch.equal(alone[..., :width], first.tokens_PNT[:1, :, :width])
    other = one.sample(SHORT, 16, EIGHT, seeded(4))
    width = min(other.tokens_PNT.shape[-1], first.tokens_PNT.shape[-1])
    assert not torch.equal(other.tokens_PNT[..., :width], first.tokens_PNT[..., :width])


def test_more_prompt_tokens_than_a_step_of_vllm_takes(one, model):
    prompts = [[(7 * i + place) % 30 + 1 for i in range(31)] for place in range(5)]
    rollouts = one.sample(prompts, 64, Sampling(2, 0.7), seeded())
    assert rollouts.tokens_PNT.shape == (5, 64, 2)


def test_responses_to_equal_prompts_share_no_random_numbers(one, model):
    tokens_PNT = one.sample([[1, 2, 3]] * 4, 32, Sampling(8, 2.0), seeded()).tokens_PNT
    assert len(torch.unique(tokens_PNT.flatten(0, 1), dim=0)) > 120


def test_responses_end_at_their_end_token(one, model):
    check_ends(one.sample(SHORT, 32, Sampling(8, 1.5), seeded()), (5, 6), 8)


def test_votes_follow_the_same_distribution_as_those_of_transformers(one, model):
    n, sampling = 3000, Sampling(2, 0.9)
    theirs = one.sample(SHORT, n, sampling, seeded(1)).tokens_PNT
    ours = TransformersEngine(model, (5, 6), max_rows=3 * n).sample(SHORT, n, sampling, seeded(2))
    for place in range(len(SHORT)):
        shares = [
            torch.bincount(tokens[place, :, 0], minlength=VOCABULARY) / n
            for tokens in (theirs, ours.tokens_PNT)
        ]
        # Four standard errors of a difference of two shares.
        bound = 4 * torch.sqrt(2 * shares[1] * (1 - shares[1]) / n) + 4 / n
        assert ((shares[0] - shares[1]).abs() <= bound).all()


def test_top_p_is_in_the_logprobs(one, model):
    rollouts = one.sample(SHORT, 64, Sampling(1, 1.0, top_p=0.3), seeded())
    probs = rollouts.logprobs_PNT.exp()
    for place in range(len(SHORT)):
        tokens_N, probs_N = rollouts.tokens_PNT[place, :, 0], probs[place, :, 0]
        seen = dict(zip(tokens_N.tolist(), probs_N.tolist(), strict=True))
        assert sum(seen.values()) <= 1 + 1e-4


def test_requests_that_do_not_fit_vllm_are_refused(one, model):
    with pytest.raises(UserError, match="exceed the model's 256 positions"):
        one.sample([[1] * 250], 2, EIGHT, seeded())
    with pytest.raises(EngineError, match=r"temperature must be in \[0, 2\], got 5") as caught:
        one.sample(SHORT, 2, Sampling(8, 5.0), seeded())
    assert not isinstance(caught.value, EngineDied)


def test_what_breaks_in_vllm_is_one_line(one, model, monkeypatch):
    def broken():
        raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nand more")

    with monkeypatch.context() as patch:
        patch.setattr(one.host.llm.llm_engine, "step", broken)
        with pytest.raises(EngineDied, match=r"failed while sampling .*2 GiB\); lower engine_mem"):
            one.sample(SHORT, 1, EIGHT, seeded())
