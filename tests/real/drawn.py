"""Checks of rollouts, whatever engine drew them."""

import torch


def logprob_gap(model, prompts, rollouts, temperature):
    """Largest difference from log-probs by one forward pass without cache, mask or padding."""
    largest = 0.0
    for place, prompt in enumerate(prompts):
        for n, length in enumerate(rollouts.lengths_PN[place].tolist()):
            response = rollouts.tokens_PNT[place, n, :length].tolist()
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + response])).logits[0]
            expected = torch.log_softmax(logits[len(prompt) - 1 : -1] / temperature, -1)
            expected = expected[range(length), response]
            found = rollouts.logprobs_PNT[place, n, :length]
            largest = max(largest, float((found - expected).abs().max()))
    return largest


def check_ends(rollouts, ends, longest):
    """Some responses, and not all, end at the first of the end tokens; padding follows."""
    assert rollouts.finished_PN.any()
    assert not rollouts.finished_PN.all()
    mask_PNT, ends_E = rollouts.mask_PNT(), torch.tensor(ends)
    ends_PNT = torch.isin(rollouts.tokens_PNT, ends_E) & mask_PNT
    assert torch.equal(ends_PNT.sum(-1), rollouts.finished_PN.long())
    last_PN = rollouts.tokens_PNT.gather(-1, rollouts.lengths_PN[..., None] - 1)[..., 0]
    assert torch.equal(torch.isin(last_PN, ends_E), rollouts.finished_PN)
    assert (rollouts.lengths_PN[~rollouts.finished_PN] == longest).all()
    assert (rollouts.tokens_PNT[~mask_PNT] == 0).all()
    assert (rollouts.logprobs_PNT[~mask_PNT] == 0).all()
