"""verl's loss of both streams against the trainer's, on verl's own code without Ray."""

from functools import partial

import pytest
import torch
from hydra import compose, initialize_config_module
from run_verl import settings
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass

from real.other_trainers import update_norm
from real.settings.config import TrainConfig
from real.update.grpo import token_loss
from real.verl.plugin.trainer import MINORITY, two_stream_loss

LENGTHS, PROMPT, WEIGHT = [3, 6, 2, 5], 5, 0.49


def actor(tmp_path, *more):
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*settings(tmp_path), *more])
    return omega_conf_to_dataclass(config.actor_rollout_ref.actor)


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def padded(rows):
    return pad_sequence(rows, batch_first=True)


def test_both_streams_cost_what_they_cost_in_the_trainer(tmp_path):
    torch.manual_seed(0)
    config, n = actor(tmp_path), len(LENGTHS)
    logp = [(-torch.rand(size)).requires_grad_() for size in LENGTHS]
    old = [p.detach() + 0.4 * torch.randn_like(p) for p in logp]
    majority, minority = torch.randn(n), torch.randn(n)
    # verl has log-probs of prompt and response, shifted by one.
    whole = [torch.cat([torch.zeros(PROMPT - 1), p, torch.zeros(1)]) for p in logp]

    def stream(values):
        return nested([WEIGHT * a * torch.ones(k) for a, k in zip(values, LENGTHS, strict=True)])

    rows = {
        "prompts": nested([torch.zeros(PROMPT, dtype=torch.long)] * n),
        "responses": nested([torch.zeros(size, dtype=torch.long) for size in LENGTHS]),
        "response_mask": nested([torch.ones(size, dtype=torch.long) for size in LENGTHS]),
        "old_log_probs": nested(old),
        "advantages": stream(majority),
        MINORITY: stream(minority),
    }
    data = TensorDict(rows, batch_size=n)
    numbers = {"batch_num_tokens": sum(LENGTHS), "global_batch_size": n, "max_response_len": 6}
    tu.assign_non_tensor(data, dp_size=1, **numbers)
    loss, _ = partial(two_stream_loss, config)(model_output={"log_probs": nested(whole)}, data=data)
    loss.backward()
    found = [p.grad.clone() for p in logp]

    for p in logp:
        p.grad = None
    mask = padded([torch.ones(size) for size in LENGTHS])
    per_token, clipped = token_loss(padded(logp), padded(old), majority, minority, TrainConfig())
    assert 3 < int((clipped * mask).sum()) < sum(LENGTHS)  # some clips bite, not all
    expected = WEIGHT * (per_token * mask).sum() / sum(LENGTHS)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for gradient, p in zip(found, logp, strict=True):
        torch.testing.assert_close(gradient, p.grad)


@pytest.mark.parametrize("mode", ["vanilla", "gspo"])
def test_a_loss_that_is_let_through_is_homogeneous_in_the_advantage(tmp_path, mode):
    """Weight and beta may only then sit inside the advantages."""
    torch.manual_seed(1)
    config = actor(tmp_path)
    config.global_batch_info.update(dp_size=1, batch_num_tokens=40, global_batch_size=8)
    logp, mask = -torch.rand(8, 5), torch.ones(8, 5, dtype=torch.bool)
    old, advantages = logp + 0.4 * torch.randn(8, 5), torch.randn(8, 1).expand(8, 5)

    def loss(factor):
        made = get_policy_loss_fn(mode)(
            old_log_prob=old,
            log_prob=logp,
            advantages=factor * advantages,
            response_mask=mask,
            loss_agg_mode="token-mean" if mode == "vanilla" else "seq-mean-token-mean",
            config=config,
            rollout_is_weights=None,
        )
        return made[0]

    torch.testing.assert_close(loss(0.3), 0.3 * loss(1.0))


def test_the_norm_of_an_update_follows_from_adamw_s_state():
    torch.manual_seed(2)
    model = torch.nn.Linear(7, 5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(3):
        before = [p.detach().clone() for p in model.parameters()]
        model.zero_grad()
        (model(torch.randn(4, 7)) ** 2).sum().backward()
        optimizer.step()
        moved = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
        expected = float(torch.linalg.vector_norm(torch.cat([m.flatten() for m in moved])))
        assert update_norm(optimizer, [1e-2]) == pytest.approx(expected, rel=1e-4), step
    assert str(update_norm(torch.optim.SGD(model.parameters()), [1e-2])) == "nan"
