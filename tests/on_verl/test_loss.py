"""verl's loss of both streams against the trainer's, on verl's own code without Ray."""

from functools import partial

import torch
from hydra import compose, initialize_config_module
from run_verl import settings
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.utils.losses import ppo_loss

from real.settings.config import TrainConfig
from real.update.grpo import token_loss
from real.verl.plugin.trainer import MINORITY, two_stream_loss

LENGTHS, PROMPT, WEIGHT = [3, 6, 2, 5], 5, 0.49


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def padded(rows):
    return pad_sequence(rows, batch_first=True)


def test_both_streams_cost_what_they_cost_in_the_trainer(tmp_path):
    torch.manual_seed(0)
    with initialize_config_module("verl.trainer.config", version_base=None):
        composed = compose("ppo_trainer", settings(tmp_path))
    config, n = omega_conf_to_dataclass(composed.actor_rollout_ref.actor), len(LENGTHS)
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
    own = partial(ppo_loss, config=config)
    loss, _ = two_stream_loss(own, model_output={"log_probs": nested(whole)}, data=data)
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
