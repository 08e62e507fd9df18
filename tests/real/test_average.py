"""The moving average of the weights beside an optimizer."""

from __future__ import annotations

import pytest
import torch
from small_optimizers import make_group, make_optimizer, weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_average_follows_the_steps_that_were_taken(dtype: torch.dtype):
    one, plain = make_optimizer(dtype=dtype, average=0.75), make_optimizer(dtype=dtype)
    assert one.average and plain.average is None
    mean = [w.float().clone() for w in one.parameters]
    for group in (make_group(1), make_group(2, dropped=True), make_group(3)):
        assert one.step([group]) == plain.step([group])
        if not group.dropped:
            mean = [0.75 * m + 0.25 * w for m, w in zip(mean, one.parameters, strict=True)]
    torch.testing.assert_close([*one.average.weights.values()], mean)
    before = weights(one.model)
    with one.average.held_by(one.model):
        held = torch.cat([m.flatten() for m in mean]).to(dtype)
        torch.testing.assert_close(weights(one.model), held)
    assert torch.equal(weights(one.model), before)
    saved = {name: value.clone() for name, value in one.state_tensors().items()}
    n_bytes = sum(t.nbytes for name, t in saved.items() if not name.startswith(("n_", "step/")))
    assert n_bytes == one.state_bytes
    other = make_optimizer(dtype=dtype, average=0.75)
    other.load_state_tensors(saved)
    assert other.average
    for name, value in one.average.weights.items():
        assert torch.equal(other.average.weights[name], value)
