"""Trials of a model before it is trained: a few tokens sampled and scored, and the last save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from lab.base.errors import Unfit, first_line
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.model.policy import Policy, load_policy, loading, max_positions, write_model
from real.model.prepare import merged_weights
from real.record.checkpoint import model_bytes, save_model
from real.settings.config import TrainConfig
from real.update.logprobs import Scorer, group_scores
from real.update.packing import Group

_WHOLE = 2**26
"""Bytes of weights up to which a model is written whole in the trial."""
_LENGTHS = (1, 4, 9)
"""Tokens of the trial's prompts."""
_TOKENS, _EACH = 6, 2
"""Sampled tokens of a response, and responses to a prompt."""
_SWITCHES = {
    "original_max_position_embeddings",
    "sliding_window",
    "attention_window_size",
    "attention_chunk_size",
    "window_size",
}
"""Names in configs for lengths from which on a model treats positions in another way."""
_FAILURES = (TypeError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError)


def rounding(dtype: torch.dtype) -> float:
    """Return by how many nats rounding may move the log-probs of a response in the mean."""
    return max(1e-4, 32 * torch.finfo(dtype).eps)


def check_sampling(policy: Policy, prompts: Sequence[list[int]], config: TrainConfig) -> None:
    """Refuse a model whose sampled tokens score otherwise in the trainer's forward pass.

    Tokens of the prompts, in prompts of unequal length, are sampled from as in the run. Where the
    run's sequences grow beyond a length at which the model changes its positions or its window, so
    do those of the trial. The run's random numbers stay as they are.
    """
    name = f"model {policy.folder}: {type(policy.model).__name__}"
    other = "take engine = 'vllm', which has its own code for models, or another model"
    positions = max_positions(policy.model) or config.max_prompt_tokens + _TOKENS
    n_tokens = max(1, min(_TOKENS, positions // 2))
    shortest, longest = min(map(len, prompts)), max(map(len, prompts))
    end = min(longest + (config.max_response_tokens or 1), positions)
    switches = sorted(set(_switches(policy.model.config.to_dict())))
    trials = [(_LENGTHS, other)]
    for switch in (s for s in switches if shortest <= s < end):
        remedy = (
            f"where a sequence grows beyond {switch} tokens; keep it shorter by "
            f"--max-prompt-tokens and --max-response-tokens, or {other}"
        )
        trials.append(((max(1, switch - n_tokens // 2), *_LENGTHS[:2]), remedy))
    for lengths, remedy in trials:
        tokens = list(islice(cycle(chain.from_iterable(prompts)), max(lengths)))
        shortened = [tokens[: min(length, positions - n_tokens)] for length in lengths]
        try:
            gap = _gap(policy, shortened, n_tokens, config)
        except torch.OutOfMemoryError:
            raise
        except _FAILURES as error:
            raise Unfit(f"{name} cannot be sampled ({first_line(error)}); {remedy}") from error
        allowed = rounding(policy.model.dtype)
        if gap > allowed:  # a model of NaN has an end of its own
            raise Unfit(
                f"{name}: sampled tokens differ from a forward pass by {gap:.2g} nats in log-prob, "
                f"and rounding explains {allowed:.2g}; {remedy}"
            )


def check_saving(policy: Policy, run_folder: Path) -> None:
    """Write the model as at the end of a run and read it again, or refuse it before the training.

    Of a large model all but the values of the weights: files, names and shapes.
    """
    model = policy.model
    fault = f"model {policy.folder}: {type(model).__name__} could not be saved"
    remedy = "train with save_model false"
    with loading(fault, remedy), TemporaryDirectory(prefix="trial-", dir=run_folder) as name:
        place = Path(name)
        if model_bytes(model) <= _WHOLE:
            save_model(policy, place)
            read = load_policy(place / "model", "cpu", str(model.dtype).removeprefix("torch."))
            theirs = dict(read.model.named_parameters())
            ours = dict(merged_weights(model))
            same = all(torch.equal(w.cpu(), theirs[n]) for n, w in ours.items() if n in theirs)
        else:
            write_model(model, policy.tokenizer, place, policy.folder, weights={})
            with torch.device("meta"):
                loader: Any = AutoModelForCausalLM
                read = loader.from_config(AutoConfig.from_pretrained(place))
            theirs = dict(read.named_parameters())
            ours = dict(merged_weights(model, merge=False))
            same = all(w.shape == theirs[n].shape for n, w in ours.items() if n in theirs)
        if ours.keys() != theirs.keys() or not same:
            raise Unfit(f"{fault}: read again it has other weights; {remedy}")


def _gap(policy: Policy, prompts: Sequence[list[int]], n_tokens: int, config: TrainConfig) -> float:
    """Return how far engine and scorer are apart, in nats a token, in the worst response."""
    device = policy.model.device
    engine = TransformersEngine(policy.model, (), policy.pad_token_id, config.max_rows)
    generator = torch.Generator(device).manual_seed(0)
    drawn = engine.sample(prompts, _EACH, Sampling(n_tokens, config.temperature), generator)
    nothing_K = torch.zeros(_EACH, device=device)
    groups = [
        Group(
            torch.tensor(prompt, device=device), tokens_KT, old_KT, lengths_K, nothing_K, nothing_K
        )
        for prompt, tokens_KT, old_KT, lengths_K in zip(
            prompts, drawn.tokens_PNT, drawn.logprobs_PNT, drawn.lengths_PN, strict=True
        )
    ]
    scores = group_scores(Scorer(policy.model), groups, config)
    gaps = [(s[0] - g.old_KT).abs().mean(-1) for s, g in zip(scores, groups, strict=True)]
    return float(torch.cat(gaps).max())


def _switches(values: Mapping[str, Any]) -> Iterator[int]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _switches(value)
        elif name in _SWITCHES and isinstance(value, int):
            yield value
