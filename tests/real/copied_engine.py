"""Engines in this process with weights of their own, for runs that sample beside the update."""

import copy

import torch

from real.engines.ranked import RankedEngine
from real.engines.rollouts import EngineDied
from real.engines.transformers_engine import TransformersEngine
from real.ranks.distributed import whole_tensor


class CopiedEngine(TransformersEngine):
    """Samples with a copy of the model, which stands for an engine in a process of its own."""

    fails_at = None
    """Draw of votes that fails, counted from 0, the votes before training."""

    def __init__(self, policy, config):
        # With gradients as the trainer's: torch folds products of frozen weights in another order.
        own = copy.deepcopy(policy.model)
        super().__init__(own, policy.eos_token_ids, policy.pad_token_id, config.max_rows)
        self.n_drawn = 0

    def sample(self, prompts, n, sampling, *others):
        if sampling.logprobs:  # else an evaluation
            if self.n_drawn == self.fails_at:
                raise EngineDied("engine: died as the test wants it")
            self.n_drawn += 1
        return super().sample(prompts, n, sampling, *others)

    def release(self):
        raise AssertionError("the engine must stay awake")

    @torch.no_grad()
    def update_weights(self, model, version):
        for own, trained in zip(self.model.parameters(), model.parameters(), strict=True):
            own.copy_(whole_tensor(trained))
        return super().update_weights(self.model, version)


def lagging(engine):
    """Let votes come from the weights before the last ones, in turns with the update."""
    sample, load, kept = engine.sample, engine.update_weights, []

    def sampled(prompts, n, sampling, *others):
        votes = sampling.logprobs  # else an evaluation
        load(kept[max(0, len(kept) - 1 - votes)], len(kept) - 1)
        return sample(prompts, n, sampling, *others)

    def loaded(model, version):
        kept.append(copy.deepcopy(model))
        return load(model, version)

    engine.sample, engine.update_weights = sampled, loaded
    return engine


def copied(config, policy, *_):
    """Stand in for `real.engines.make.make_engine`."""
    return CopiedEngine(policy, config)


def copied_on_ranks(config, policy, ranks, *_):
    return RankedEngine(CopiedEngine(policy, config), ranks, policy.pad_token_id)
