"""The trainer for TRL on the tiny task, with votes that are given by problem and visit.

As a program, `given_votes.py OUT` trains on them in two processes.
"""

import random
import sys

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from guard_core import GuardConfig
from real.tiny import CHECKPOINT, problems
from real.trl import GuardGRPOConfig, GuardGRPOTrainer

V, K, N = 8, 4, 8
GUARD = GuardConfig().set(W=2, tau_FR=0.1, tau_MR=0.3, theta_MR=0.2, p_skip=0.9, skip_share=0.5)
TOKENIZER = AutoTokenizer.from_pretrained(CHECKPOINT)
PROBLEMS = problems(N)


def response(prompt, visit, vote):
    """A vote, which depends on nothing but its place."""
    rng = random.Random(f"{prompt} {visit} {vote}")
    return f"{rng.randrange(10)}+1=\\boxed{{{rng.choice((3, 3, 4, 5))}}}"


def tokens_of(text):
    return [*TOKENIZER(text, add_special_tokens=False).input_ids, 1]


def settings(out, **changed):
    given = {"num_generations": V, "n_samples": K, "guard": GUARD, "steps_per_generation": 4}
    fixed = {"use_cpu": True, "bf16": False, "report_to": "none", "disable_tqdm": True}
    sizes = {"max_completion_length": 22, "per_device_train_batch_size": V, "logging_steps": 1}
    run = {"num_train_epochs": 3, "save_strategy": "no", "gradient_checkpointing": False}
    words = {"learning_rate": 3e-4, "guard_settings": {"answer_check": "strings"}}
    return GuardGRPOConfig(str(out), **(fixed | given | sizes | run | words | changed))


def data():
    return Dataset.from_list([{"prompt": p.prompt, "answer": p.answer} for p in PROBLEMS])


def trainer(args, kind=GuardGRPOTrainer, dtype=torch.float32, rows=None, **more):
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=dtype)
    return kind(model, args, rows or data(), processing_class=TOKENIZER, **more)


class Given(GuardGRPOTrainer):
    """Takes given votes in place of sampled ones, and keeps the gradient of every step."""

    def __init__(self, *args, **more):
        self.first, self.batches, self.gradients = False, [], []
        super().__init__(*args, **more)

    def _generate_single_turn(self, prompt_ids, *_, **__):
        rows, numbers = [], {}
        visit = 0 if self.first else 1 + int(self.state.epoch)
        for ids in prompt_ids:
            prompt = TOKENIZER.decode(ids, skip_special_tokens=True)
            vote = numbers[prompt] = numbers.get(prompt, -1) + 1
            rows.append(tokens_of(response(prompt, visit, vote)))
        self.batches.append(list(numbers))
        return rows, None

    def on_train_begin(self, *given, **more):
        self.first = True
        super().on_train_begin(*given, **more)
        self.first = False

    def on_optimizer_step(self, *given, **more):
        grads = [p.grad for p in self.model.parameters() if p.requires_grad]
        self.gradients.append([None if g is None else g.clone() for g in grads])
        super().on_optimizer_step(*given, **more)


def train(out, n_processes):
    """Train in a step of four problems, shared by the processes, and save the model.

    Two processes fill up the batches in which five problems are evaluated, one without an answer.
    """
    size = 4 * V // n_processes
    changed = {"per_device_train_batch_size": size, "steps_per_generation": 1}
    changed |= {"eval_strategy": "epoch", "num_generations_eval": 2}
    changed |= {"per_device_eval_batch_size": 8 // n_processes}
    rows = data().select(range(5)).remove_columns("answer").add_column("answer", [None, *"3434"])
    made = trainer(settings(out, num_train_epochs=2, **changed), Given, eval_dataset=rows)
    made.train()
    if made.is_world_process_zero():
        made.save_model(str(out))


if __name__ == "__main__":
    train(sys.argv[1], 2)
