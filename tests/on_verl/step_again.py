"""A step of verl once more, by the trainer's own loss and AdamW in one process."""

import torch
from run_verl import MODEL
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoModelForCausalLM
from whole_runs import Done

from real.settings.config import TrainConfig
from real.update.grpo import backward
from real.update.logprobs import Scorer
from real.update.packing import Group
from real.verl.plugin.trainer import MINORITY
from real.verl.plugin.votes import place_of


def step_again(done: Done, step: int):
    """The model after the optimizer steps of one of verl's steps, and the norms of its changes."""
    rows = done.dumped(f"step{step}")
    model = AutoModelForCausalLM.from_pretrained(MODEL, attn_implementation="eager").eval()
    rate = float(done.trace.steps.set_index("step")["lr"][step])
    adamw = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    if step > 1:
        _restore(model, adamw, done, step - 1)
    place = {key: i for i, key in enumerate(rows["keys"])}
    numbers = dict.fromkeys(place_of(key)[0] for key in rows["keys"])
    norms = []
    for uid in numbers:
        own = sorted((key for key in rows["keys"] if place_of(key)[0] == uid), key=place_of)
        at = [place[key] for key in own]
        group = Group(
            prompt_L=rows["prompts"][at[0]],
            tokens_KT=pad_sequence([rows["responses"][i] for i in at], batch_first=True),
            old_KT=pad_sequence([rows["old_log_probs"][i] for i in at], batch_first=True),
            lengths_K=torch.tensor([len(rows["responses"][i]) for i in at]),
            majority_K=torch.stack([rows["advantages"][i][0] for i in at]),
            minority_K=torch.stack([rows[MINORITY][i][0] for i in at]),
        )
        before = [p.detach().clone() for p in model.parameters()]
        adamw.zero_grad()
        backward(Scorer(model), [group], TrainConfig(temperature=1.0))
        for p in model.parameters():
            p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        changes = [
            (p - b).detach().flatten() for p, b in zip(model.parameters(), before, strict=True)
        ]
        norms.append(float(torch.linalg.vector_norm(torch.cat(changes))))
    return model, norms


@torch.no_grad()
def _restore(model, adamw, done: Done, step: int) -> None:
    weights, moments = done.shards("model", step), done.shards("optim", step)
    for name, p in model.named_parameters():
        p.copy_(whole([w[name] for w in weights]))
    state = adamw.state_dict()
    names = ("step", "exp_avg", "exp_avg_sq")
    state["state"] = {
        i: {k: whole([m["state"][i][k] for m in moments]).clone() for k in names}
        for i in moments[0]["state"]
    }
    adamw.load_state_dict(state)


def whole(parts):
    """A tensor from the shards of all ranks."""
    return torch.cat([p.to_local() for p in parts]) if hasattr(parts[0], "to_local") else parts[0]
