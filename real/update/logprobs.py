"""Log-probs of response tokens under the model that is trained, with gradient.

The head sees only the tokens that are asked for, a chunk of them at a time, and computes logits
again for the gradient: those of all tokens, [tokens, vocabulary] in single precision, would be the
largest tensor of a step by far, 2 GiB at 32 rows of 512 tokens and 32,768 words. Models whose
logits are not `cap(factor * linear(hidden))` run whole: correct, but with all logits in memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_layers import GradientCheckpointingLayer

from real.model.policy import WideHead, add_product, wide_product
from real.settings.groups import UpdateSettings
from real.update.packing import Group, Layout, MicroBatch, PackedRows, Place, micro_batch, plan

CHUNK_ELEMENTS = 2**25
"""Logits that exist at once, 128 MiB of them in single precision. Larger chunks are no faster."""
GPU_CHUNK_ELEMENTS = 2**28
"""On a GPU, 1 GiB: fewer tokens at once would read the head's weights too often."""
_PROBE_TOKENS = 6
_MASKED = {"eager", "sdpa"}
"""Kernels that take any mask."""
_RESTARTING = {"full_attention", "sliding_attention"}
"""Kinds of layers that start again where positions do; recurrent ones carry their state over."""


@dataclass(frozen=True, slots=True)
class Head:
    """Map from a model's hidden states to its logits: `cap(linear(hidden) * factor)`."""

    linear: Any
    """The output embedding, a module; the loss's gradient reaches its weight."""
    factor: float = 1.0
    """On the logits, as Cohere's and Granite's models have it."""
    softcap: float | None = None
    """Logits are bent to `softcap * tanh(logits / softcap)`, as in Gemma 2."""

    @property
    def plain(self) -> bool:
        """Nothing but a matrix, so that the gradient is known in closed form."""
        return type(self.linear) in (torch.nn.Linear, WideHead) and self.softcap is None

    def logits(self, hidden_nH: Tensor) -> Tensor:
        """(n, vocabulary) logits, in single precision with a `WideHead`, else in the model's."""
        logits = self.linear(hidden_nH)
        if self.factor != 1:
            logits = logits * self.factor
        if self.softcap is not None:
            logits = torch.tanh(logits / self.softcap) * self.softcap
        return logits


Values = Callable[[Tensor, Tensor, float], tuple[Tensor, ...]]
"""(n, V) logits, which may be overwritten, targets and temperature to (n,) numbers, of which the
first have a gradient."""
Gradient = Callable[[Tensor, Tensor, Tensor, float], Tensor]
"""Logits, targets, (n,) gradient of the first number and temperature to that of the logits."""


def chunked(
    head: Head | None,
    hidden_nH: Tensor,
    targets_n: Tensor,
    temperature: float,
    values: Values,
    gradient: Gradient,
    chunk_elements: int,
) -> tuple[Tensor, ...]:
    """Return numbers of tokens from the (n, H) hidden states before them, or (n, V) logits."""
    if head is None:
        return values(hidden_nH, targets_n, temperature)
    size = max(1, chunk_elements // head.linear.weight.shape[0])
    if len(hidden_nH) <= size:
        # Few logits may as well be kept for the backward pass.
        return values(head.logits(hidden_nH), targets_n, temperature)
    if head.plain:
        weight, bias = head.linear.weight, head.linear.bias
        wide = isinstance(head.linear, WideHead) and torch.finfo(weight.dtype).bits < 32
        product = wide_product if wide else linear
        temperature /= head.factor
        inputs = hidden_nH, weight, bias, targets_n
        return _Chunked.apply(*inputs, temperature, values, gradient, size, product)

    def of_chunk(hidden: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
        return values(head.logits(hidden), targets, temperature)

    options: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    pairs = zip(hidden_nH.split(size), targets_n.split(size), strict=True)
    return _joined([checkpoint(of_chunk, *pair, **options) for pair in pairs])


class _Chunked(torch.autograd.Function):
    """Numbers under a plain linear head; its logits are made twice and never all at once."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_nH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_n: Tensor,
        temperature: float,
        values: Values,
        gradient: Gradient,
        size: int,
        product: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    ) -> tuple[Tensor, ...]:
        ctx.save_for_backward(hidden_nH, weight_VH, bias_V, targets_n)
        ctx.gradient, ctx.temperature, ctx.size, ctx.product = gradient, temperature, size, product
        pairs = zip(hidden_nH.split(size), targets_n.split(size), strict=True)
        # No name holds the logits of a chunk, so that they are freed before the next are made.
        whole = _joined([values(product(h, weight_VH, bias_V), t, temperature) for h, t in pairs])
        ctx.mark_non_differentiable(*whole[1:])
        return whole

    @staticmethod
    @once_differentiable
    def backward(  # pyrefly: ignore[bad-override]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor | None, ...]:
        hidden_nH, weight_VH, bias_V, targets_n = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        grad_hidden = torch.empty_like(hidden_nH) if needs_hidden else None
        # Summed over chunks in single precision, whatever that of the weights.
        wide = torch.promote_types(weight_VH.dtype, torch.float32)
        grad_weight = torch.zeros_like(weight_VH, dtype=wide) if needs_weight else None
        grad_bias = torch.zeros_like(bias_V, dtype=wide) if needs_bias else None
        for start in range(0, len(targets_n), ctx.size):
            part = slice(start, start + ctx.size)
            hidden = hidden_nH[part]
            logits = ctx.product(hidden, weight_VH, bias_V)
            grad_logits = ctx.gradient(logits, targets_n[part], grads[0][part], ctx.temperature)
            if grad_bias is not None:
                grad_bias += grad_logits.sum(0)
            narrow = grad_logits.to(weight_VH.dtype)
            if grad_hidden is not None:
                grad_hidden[part] = narrow @ weight_VH
            if grad_weight is not None:
                add_product(grad_weight, narrow.T, hidden)
        return (
            grad_hidden,
            None if grad_weight is None else grad_weight.to(weight_VH.dtype),
            None if grad_bias is None else grad_bias.to(bias_V.dtype),
            *(None,) * 6,
        )


def _joined(parts: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))


class TokenScores(NamedTuple):
    """Log-probs and statistics of n tokens at their sampling temperature."""

    logprobs_n: Tensor
    """(n,) log-probs in nats, at least single precision; the only ones with a gradient."""
    entropy_n: Tensor | None = None
    """(n,) entropy of the next-token distribution in nats."""
    self_certainty_n: Tensor | None = None
    """(n,) minus the mean log-prob over the vocabulary: `KL(uniform || p) + log(vocabulary)`."""


def head_scores(
    head: Head | None,
    hidden_nH: Tensor,
    targets_n: Tensor,
    temperature: float,
    stats: bool = False,
    chunk_elements: int = CHUNK_ELEMENTS,
) -> TokenScores:
    """Score tokens by `chunked`, with gradient; all numbers with `stats`."""
    score, size = partial(score_logits, stats=stats), chunk_elements
    numbers = chunked(head, hidden_nH, targets_n, temperature, score, _score_gradient, size)
    return TokenScores(*numbers)


def score_logits(
    logits_nV: Tensor, targets_n: Tensor, temperature: float, stats: bool = False
) -> tuple[Tensor, ...]:
    """`TokenScores` from (n, V) logits, which this may overwrite, in single precision at least."""
    logits_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32))
    # In place: the projection that made the logits does not need them for its gradient.
    logits_nV = logits_nV.div_(temperature)
    chosen_n = logits_nV.gather(-1, targets_n[:, None]).squeeze(-1)
    total_n = logits_nV.logsumexp(-1)
    logprobs_n = chosen_n - total_n
    if not stats:
        return (logprobs_n,)
    with torch.no_grad():
        logp_nV = logits_nV.detach() - total_n.detach()[:, None]
        p_nV = logp_nV.exp()
        # Where a token is impossible its term is 0, not NaN.
        entropy_n = -torch.where(p_nV > 0, p_nV * logp_nV, 0).sum(-1)
        return logprobs_n, entropy_n, -logp_nV.mean(-1)


def _score_gradient(
    logits_nV: Tensor, targets_n: Tensor, grad_n: Tensor, temperature: float
) -> Tensor:
    """(n, V) gradient of the raw logits: `g * ([v = target] - p_v) / temperature`."""
    z_nV = logits_nV.to(torch.promote_types(logits_nV.dtype, torch.float32)).div_(temperature)
    p_nV = z_nV.sub_(z_nV.logsumexp(-1, keepdim=True)).exp_()
    scaled_n1 = (grad_n / temperature)[:, None]
    grad_nV = p_nV.mul_(-scaled_n1)
    return grad_nV.scatter_add_(1, targets_n[:, None], scaled_n1.to(grad_nV.dtype))


def head_entropies(
    head: Head | None, hidden_nH: Tensor, temperature: float, chunk_elements: int
) -> Tensor:
    """(n,) entropies in nats by `chunked`, with gradient, at least in float32."""
    no_targets_n = hidden_nH.new_zeros(len(hidden_nH), dtype=torch.long)
    how = lambda logits, _, t: (entropies(logits, t),), _entropy_gradient, chunk_elements
    return chunked(head, hidden_nH, no_targets_n, temperature, *how)[0]


def entropies(logits_nV: Tensor, temperature: float) -> Tensor:
    """(n,) entropies of (n, V) logits in nats, with gradient; impossible tokens add nothing."""
    p_nV, logp_nV = _distribution(logits_nV, temperature)
    return -(p_nV * logp_nV).sum(-1)


def _distribution(logits_nV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Probabilities and their logarithms; 0 for those of 0, whose gradient would be NaN."""
    wide = torch.promote_types(logits_nV.dtype, torch.float32)
    logp_nV = torch.log_softmax(logits_nV.to(wide) / temperature, dim=-1)
    p_nV = logp_nV.exp()
    return p_nV, logp_nV.masked_fill(p_nV == 0, 0.0)


def _entropy_gradient(logits_nV: Tensor, _: Tensor, grad_n: Tensor, temperature: float) -> Tensor:
    """(n, V) gradient of the raw logits: `-g p_v (log p_v + H) / temperature`."""
    p_nV, logp_nV = _distribution(logits_nV, temperature)
    surprise_nV = logp_nV.sub_((p_nV * logp_nV).sum(-1, keepdim=True))
    return p_nV.mul_(surprise_nV).mul_((-grad_n / temperature)[:, None])


class Scorer(nn.Module):
    """A causal language model as a module whose forward scores tokens.

    With FSDP2, make it first, shard the model's layers, then the scorer itself as the root: all
    that touches weights happens inside its forward, the head included.
    """

    share: tuple[int, int] = (0, 1)
    """Rank and number of the ranks that divide its passes; all must make the same calls."""

    def __init__(
        self, model: Any, chunk_elements: int | None = None, device: torch.device | None = None
    ) -> None:
        """Find out on six tokens how a model in evaluation mode, not yet sharded, works.

        `device` is that of its passes, where the weights reach it only as they are sharded.
        """
        super().__init__()
        self.model = model
        embedding = model.get_input_embeddings().weight
        on_gpu = (device or embedding.device).type == "cuda"
        self.chunk_elements = chunk_elements or (GPU_CHUNK_ELEMENTS if on_gpu else CHUNK_ELEMENTS)
        config = model.config.get_text_config()
        is_flash = "flash" in (getattr(config, "_attn_implementation", None) or "")
        # It takes tensors on a GPU alone, and weights may be elsewhere.
        replaced = is_flash and not embedding.is_cuda
        with _kernel(config, "sdpa") if replaced else contextlib.nullcontext():
            self.head = find_head(model)
        restarts = set(getattr(config, "layer_types", None) or []) <= _RESTARTING
        is_packed = is_flash and restarts and not model._is_stateful and _hands_positions(model)
        self.layout: Layout = "packed" if is_packed else "padded"
        self.bundle_width: int | None = embedding.shape[1] if can_bundle(model) else None
        """Width of the hidden states where responses can share a prompt, else None."""

    def forward(self, rows: PackedRows, temperature: float, stats: bool = False) -> TokenScores:
        """Scores of `rows.targets_n` at that temperature; `stats` as in `head_scores`."""
        outputs, size = self.outputs(rows), self.chunk_elements
        return head_scores(self.head, outputs, rows.targets_n, temperature, stats, size)

    def outputs(self, rows: PackedRows) -> Tensor:
        """(n, H) hidden states before the scored tokens; (n, V) logits of an unknown head."""
        inputs: dict[str, Any] = {"input_ids": rows.input_ids_BS, "use_cache": False}
        if rows.position_ids_BS is not None:
            inputs["position_ids"] = rows.position_ids_BS
        if rows.ends_BS is not None:
            inputs["attention_mask"] = _bundle_mask(self.model, rows.ends_BS)
        with checkpointed(self.model):
            if self.head is None:
                outputs_BSH = self.model(**inputs).logits
            else:
                outputs_BSH = self.model.base_model(**inputs).last_hidden_state
        if isinstance(rows.index_n, int):
            return outputs_BSH[:, -rows.index_n :].flatten(0, 1)
        return outputs_BSH.flatten(0, 1).index_select(0, rows.index_n)

    def micro_batch(
        self, groups: Sequence[Group], places: Sequence[Place], bundle: int = 1
    ) -> MicroBatch:
        """Those rows as this model wants them."""
        most_padded = self.chunk_elements // self.model.get_input_embeddings().weight.shape[0]
        return micro_batch(groups, places, self.layout, most_padded, bundle)


class EntropyScorer(Scorer):
    """A `Scorer` whose entropies have a gradient; its log-probs, without one, are as before."""

    def forward(self, rows: PackedRows, temperature: float, stats: bool = False) -> TokenScores:
        """Entropies where gradients are recorded, and no log-probs then; else as a `Scorer`."""
        if not torch.is_grad_enabled():
            return super().forward(rows, temperature, stats)
        entropy_n = head_entropies(self.head, self.outputs(rows), temperature, self.chunk_elements)
        return TokenScores(torch.full_like(entropy_n, torch.nan), entropy_n)


def find_head(model: Any) -> Head | None:
    """Map from the body's hidden states to logits, checked on six tokens; None if unknown."""
    body, linear = model.base_model, model.get_output_embeddings()
    if body is model or linear is None or not hasattr(linear, "weight"):
        return None
    ids = torch.arange(_PROBE_TOKENS, device=linear.weight.device)[None] % linear.weight.shape[0]
    config = model.config.get_text_config()
    named = [getattr(config, name, None) for name in ("logit_scale", "logits_scaling")]
    factors = [1.0, *(float(n) for n in named if n), *(1 / float(n) for n in named if n)]
    with torch.no_grad():
        expected = model(input_ids=ids, use_cache=False).logits
        hidden = body(input_ids=ids, use_cache=False).last_hidden_state
        tolerance = 4 * torch.finfo(expected.dtype).eps * expected.abs().max()
        for factor in factors:
            head = Head(linear, factor, getattr(config, "final_logit_softcapping", None))
            logits = head.logits(hidden)
            # Not within the tolerance either where a value is NaN.
            if logits.shape == expected.shape and (logits - expected).abs().max() <= tolerance:
                return head
    return None


@contextlib.contextmanager
def _kernel(config: Any, name: str) -> Iterator[None]:
    """Let attention run by that kernel for a while."""
    before, config._attn_implementation = config._attn_implementation, name
    try:
        yield
    finally:
        config._attn_implementation = before


@torch.no_grad()
def _hands_positions(model: Any) -> bool:
    """Return whether all layers hand positions on to the kernel, which shows it where rows end."""
    device, given = model.get_input_embeddings().weight.device, list[bool]()

    def noted(*states: Any, position_ids: Tensor | None = None, **options: Any) -> Any:
        given.append(position_ids is not None)
        return sdpa_attention_forward(*states, **options)

    AttentionInterface.register("noted", noted)
    zeros = torch.zeros((1, 1), dtype=torch.long, device=device)
    with _kernel(model.config.get_text_config(), "noted"):
        try:
            model.base_model(input_ids=zeros, position_ids=zeros, use_cache=False)
        except TypeError:  # of models without positions
            return False
    return bool(given) and all(given)


@torch.no_grad()
def group_scores(
    scorer: Scorer,
    groups: Sequence[Group],
    config: UpdateSettings,
    stats: bool = False,
    bundled: bool = True,
) -> list[Tensor]:
    """(C, K, T) scores of every group's responses, without gradient, packed like the loss.

    With `stats` entropies and self-certainties too, as in `TokenScores`. Padding, and tokens whose
    `old_KT` is not finite, get NaN. Ranks divide the passes and get all values. Without `bundled`
    no responses share a sequence, in which a NaN would spread.
    """
    rank, world = scorer.share
    counts, most = [group.row_counts for group in groups], config.max_tokens_per_microbatch
    width = scorer.bundle_width if bundled else None
    passes, bundle, _ = plan(groups, counts, most, scorer.layout, width, world)
    n_kinds, wide = 3 if stats else 1, torch.float32
    scored = [g.old_KT.new_zeros((n_kinds, *g.old_KT.shape), dtype=wide) for g in groups]
    for places in passes[rank::world]:
        batch = scorer.micro_batch(groups, places or passes[0][:1], bundle)
        scores = scorer(batch.rows, config.temperature, stats)
        unfolded = [batch.unfold(values_n).float() for values_n in scores if values_n is not None]
        values_CRT = torch.where(batch.counted_RT, torch.stack(unfolded), 0.0)
        for (index, row), values_CT in zip(places, values_CRT.unbind(1), strict=bool(places)):
            into_CT = scored[index][:, row, : values_CT.shape[1]]
            into_CT[:] = values_CT[:, : into_CT.shape[1]]
    if world > 1 and dist.is_initialized():
        for values_CKT in scored:
            dist.all_reduce(values_CKT)
    return [
        torch.where(group.counted_KT, values_CKT, torch.nan)
        for group, values_CKT in zip(groups, scored, strict=True)
    ]


@torch.no_grad()
def can_bundle(model: Any) -> bool:
    """Return whether a response scores the same behind a prompt that others share.

    Kernels and layers that cannot are known by name. Models also differ in what they make of given
    positions and masks: they are tried on two responses of two tokens to a prompt of two.
    """
    config, body = model.config.get_text_config(), model.base_model
    # GPT-Neo has a name of its own for them, and a window over places, whatever the positions.
    kinds = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    windows = set(kinds or [getattr(config, "sliding_window", None)])
    kernel = getattr(config, "_attn_implementation", None)
    if windows - {"full_attention", "global", None} or kernel not in _MASKED or model._is_stateful:
        return False
    device = model.get_input_embeddings().weight.device
    tokens = torch.arange(_PROBE_TOKENS, device=device) % config.vocab_size
    prompt, responses = tokens[:2], tokens[2:].view(2, 2)
    alone = torch.cat([prompt.expand(2, -1), responses], dim=1)
    ends = torch.tensor([[6, 6, 4, 4, 6, 6]], device=device)
    positions = torch.tensor([[0, 1, 2, 3, 2, 3]], device=device)
    bundled = {"position_ids": positions, "attention_mask": _bundle_mask(model, ends)}
    try:
        expected = body(input_ids=alone, use_cache=False)[0][:, 2:]
        shared = body(input_ids=tokens[None], use_cache=False, **bundled)[0][:, 2:]
    except (TypeError, ValueError, RuntimeError, IndexError):
        return False
    tolerance = 8 * torch.finfo(expected.dtype).eps * expected.abs().max()
    return bool((shared.view_as(expected) - expected).abs().max() <= tolerance)


def _bundle_mask(model: Any, ends_BS: Tensor) -> Tensor:
    """(B, 1, S, S) mask of bundles, to be added to scores; of bools each layer makes a copy."""
    places_S1 = torch.arange(ends_BS.shape[1], device=ends_BS.device)[:, None]
    seen_BSS = (places_S1 < ends_BS[:, None, :]).tril_()
    dtype = model.get_input_embeddings().weight.dtype
    zeros_BSS = torch.zeros_like(seen_BSS, dtype=dtype)
    return zeros_BSS.masked_fill_(seen_BSS.logical_not_(), torch.finfo(dtype).min)[:, None]


@contextlib.contextmanager
def checkpointed(model: Any) -> Iterator[None]:
    """Let layers keep no activations, if the model is set to do so.

    transformers does it in training mode only; so that dropout stays off, the mark is set on the
    layers alone, and taken off as their own code begins.
    """
    every = (m for m in model.modules() if isinstance(m, GradientCheckpointingLayer))
    layers = [m for m in every if m.gradient_checkpointing and torch.is_grad_enabled()]
    hooks = [layer.register_forward_pre_hook(_without_dropout) for layer in layers]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer, hook in zip(layers, hooks, strict=True):
            layer.training = False
            hook.remove()


def _without_dropout(layer: nn.Module, _: Any) -> None:
    layer.training = False
