"""Gradients of tokens' or responses' log-probabilities, and their change along a run.

Definition: docs/method.md, section 15. The linear tree changes the gradient of a token's
log-probability through the softmax alone: psi_e - sum over the node of p psi. Squared norms of what
changes beyond that are sums over a node's tokens weighted by their probability, the trace of the
Fisher information.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call, grad, vmap

from lab.base.columns import Floats, Ints
from lab.base.errors import UserError, first_line
from real.engines.rollouts import Prompts
from real.model.prepare import trained_parameters

Tokens = tuple[int, ...]
Singles = NDArray[np.float32]
Weights = Mapping[str, Tensor]
"""Trained weights by the model's names."""
Done = Callable[[float], object]
"""Is called with the share of a work that is done."""

_GRADIENT_BYTES = 128 * 2**20
_ROWS = 1024


@torch.no_grad()
def log_probs(
    model: Any, prompt: Sequence[int], responses: Sequence[Tokens], temperature: float
) -> list[Singles]:
    """(T, A) log-probs of every token after every prefix of each response."""
    longest = max(map(len, responses))
    # What is put behind a response reaches none of its tokens.
    filled = [[*prompt, *tokens, *[0] * (longest - len(tokens))] for tokens in responses]
    ids_RL = torch.tensor(filled, device=model.device)[:, :-1]
    parts: list[Singles] = []
    for start in range(0, len(responses), _ROWS):
        logits = model(input_ids=ids_RL[start : start + _ROWS], use_cache=False).logits
        log_p_RTA = torch.log_softmax(logits[:, len(prompt) - 1 :].float() / temperature, -1)
        if log_p_RTA.isnan().any():
            raise UserError("measure: a logit is not finite; is the model sound?")
        parts += list(log_p_RTA.cpu().numpy())
    return [log_p_TA[: len(tokens)] for log_p_TA, tokens in zip(parts, responses, strict=True)]


@torch.no_grad()
def next_log_probs(
    model: Any, contexts: Prompts, tokens: Sequence[int], temperature: float
) -> Floats:
    """Log-probabilities (E,) of single tokens after their contexts."""
    log_p = np.zeros(len(tokens))
    for batch in _of_equal_length(list(map(len, contexts)), _ROWS):
        ids_EL = torch.tensor([contexts[e] for e in batch], device=model.device)
        logits = model(input_ids=ids_EL, use_cache=False, logits_to_keep=1).logits[:, -1]
        log_p_EA = torch.log_softmax(logits.double() / temperature, -1)
        log_p[batch] = log_p_EA.cpu().numpy()[range(len(batch)), [tokens[e] for e in batch]]
    return log_p


def _of_equal_length(lengths: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Places of rows of one length, at most `size` at a time."""
    by_length = sorted(range(len(lengths)), key=lengths.__getitem__)
    for _, group in groupby(by_length, lengths.__getitem__):
        places = [*group]
        yield from (places[start : start + size] for start in range(0, len(places), size))


class Gradients:
    """Gradients of log p(tokens | context) with respect to the trained weights of a model."""

    def __init__(self, model: Any, temperature: float) -> None:
        """Take the weights that require a gradient; attention is eager, which `vmap` needs."""
        self.model, self.temperature = model, temperature
        self._weights = {name: p.detach() for name, p in trained_parameters(model).items()}
        self.n_weights = sum(p.numel() for p in self._weights.values())
        """d, weights that training moves."""
        self._gradient = vmap(grad(self._log_p), (None, 0, 0))
        self._batch = max(1, _GRADIENT_BYTES // (4 * self.n_weights))

    def __call__(
        self,
        contexts: Prompts,
        tokens: Sequence[Tokens],
        coordinates: Ints,
        changes: Sequence[Tensor] = (),
        report: Done = lambda _: None,
    ) -> tuple[Singles, Floats, Floats]:
        """Gradients of E continuations.

        `contexts` are (E,) token ids of prompt and prefix, `coordinates` (D,) places among all d
        weights. Returns the (E, D) gradients there, (E,) squared norms on all weights, and (K, E)
        first-order changes of the log-probabilities by K `changes`. `report` is called with the
        share of continuations that are done.
        """
        features = np.zeros((len(tokens), len(coordinates)), np.float32)
        norm2, moved = np.zeros(len(tokens)), np.zeros((len(changes), len(tokens)))
        places = torch.as_tensor(coordinates, device=self.model.device)
        done = 0
        for batch, flat in self._batches(contexts, tokens):
            features[batch] = flat[:, places].cpu().numpy()
            for row, change in zip(moved, changes, strict=True):
                row[batch] = (flat @ change).cpu().numpy()
            norm2[batch] = flat.square_().sum(1).cpu().numpy()
            done += len(batch)
            report(done / len(tokens))
        return features, norm2, moved

    def change(self, weights: Weights) -> Tensor:
        """Change (d,) from the model to other trained weights, given by the model's names."""
        named = self._weights.items()
        changes = [weights[n].to(w) - w if n in weights else torch.zeros_like(w) for n, w in named]
        return torch.cat([change.flatten() for change in changes])

    def check_memory(self, n_edges: int, n_kept: int) -> None:
        """Refuse E gradients on D weights that need more memory than there is."""
        # Per value: single precision, the half precision of the file, and one copy on the way.
        kept, batch = 10 * n_edges * n_kept, 12 * self.n_weights * self._batch
        if n_kept < self.n_weights:  # five numbers of each while some are drawn
            kept = max(kept, 40 * self.n_weights)
        for needed, device in ((kept, torch.device("cpu")), (batch, self.model.device)):
            there = free_bytes(device)
            if needed > there:
                raise UserError(
                    f"measure: gradients of {n_edges} edges on {n_kept} of {self.n_weights} "
                    f"weights need {needed / 2**30:.1f} GiB of memory, {there / 2**30:.1f} are "
                    "free; lower weights or responses, or set lora_rank or unit answer"
                )

    def sizes(self, contexts: Prompts, tokens: Sequence[Tokens]) -> Floats:
        """(d,) root mean square of the gradients of E continuations, each divided by its norm."""
        total = torch.zeros(self.n_weights, dtype=torch.float64, device=self.model.device)
        for _, flat in self._batches(contexts, tokens):
            squares = flat.square_()
            norm2 = squares.sum(1, keepdim=True).clamp_min(torch.finfo(flat.dtype).tiny)
            total += squares.div_(norm2).sum(0)
        return (total / len(tokens)).sqrt().cpu().numpy()

    def _batches(
        self, contexts: Prompts, tokens: Sequence[Tokens]
    ) -> Iterator[tuple[list[int], Tensor]]:
        """Places of some continuations, and their gradients on all weights."""
        device = self.model.device
        lengths = [(len(c), len(t)) for c, t in zip(contexts, tokens, strict=True)]
        for batch in _of_equal_length(lengths, self._batch):
            ids_EL = torch.tensor([[*contexts[e], *tokens[e][:-1]] for e in batch], device=device)
            tokens_ET = torch.tensor([tokens[e] for e in batch], device=device)
            try:
                parts = self._gradient(self._weights, ids_EL, tokens_ET)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:  # of code that looks at values, or hides its gradient
                name, reason = type(self.model).__name__, first_line(error).partition(". ")[0]
                raise UserError(
                    f"measure: {name} gives no gradients for many contexts at once ({reason}); "
                    "take another model"
                ) from error
            yield batch, torch.cat([parts[name].flatten(1) for name in self._weights], 1)

    def start(self, coordinates: Ints) -> Singles:
        """(D,) values of the weights at the given places."""
        flat = torch.cat([weight.flatten() for weight in self._weights.values()])
        return flat[torch.as_tensor(coordinates, device=flat.device)].float().cpu().numpy()

    def _log_p(self, weights: dict[str, Tensor], ids_L: Tensor, tokens_T: Tensor) -> Tensor:
        arguments = {"input_ids": ids_L[None], "use_cache": False, "logits_to_keep": len(tokens_T)}
        output = functional_call(self.model, weights, (), arguments)
        log_p_TA = torch.log_softmax(output.logits[0] / self.temperature, -1)
        return log_p_TA.gather(1, tokens_T[:, None]).sum()


def free_bytes(device: torch.device) -> int:
    """Return the free memory of a device; of the CPU where the system does not say, all memory."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            return next(1024 * int(x.split()[1]) for x in lines if x.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


Edges = tuple[Prompts, Sequence[int], Sequence[int]]
"""(E,) token ids of prompt and prefix, tokens, and nodes; equal nodes share a context."""


class Growth:
    """Compares checkpoints of one run with the start model."""

    def __init__(
        self, gradients: Gradients, edges: Edges, coordinates: Ints, scale: Singles
    ) -> None:
        """Measure the start model, left as it is, on D weights that stand for `scale` each."""
        self._model, self._gradients = gradients.model, gradients
        self._edges = edges[:2]
        _, self._node_E = np.unique(edges[2], return_inverse=True)
        self._coordinates, self._root = coordinates, np.sqrt(scale)
        self._start = {name: p.detach().clone() for name, p in self._model.named_parameters()}
        self._features_ED = self.gradients()

    def at(self, weights: Weights) -> float:
        """Return the gradients' relative squared change beyond the softmax, median over nodes."""
        try:
            self._model.load_state_dict(weights, strict=False)
            p_E = np.exp(next_log_probs(self._model, *self._edges, self._gradients.temperature))
            now_ED = self.gradients()
        finally:
            self._model.load_state_dict(self._start, strict=False)
        nodes = self._node_E.max() + 1
        mean_VD = np.zeros((nodes, now_ED.shape[1]), np.float32)
        np.add.at(mean_VD, self._node_E, self._features_ED * p_E[:, None].astype(np.float32))
        linear_ED = self._features_ED - mean_VD[self._node_E]
        change_V, norm2_V = (
            np.bincount(self._node_E, p_E * (vector_ED**2).sum(1), nodes)
            for vector_ED in (now_ED - linear_ED, linear_ED)
        )
        known_V = norm2_V > 0
        return float(np.median(change_V[known_V] / norm2_V[known_V]))

    def slope(self, along: Sequence[Weights], changes: Sequence[Tensor], report: Done) -> float:
        """Return the slope through the origin of `at` over the distances of K other weights."""
        points: list[tuple[float, float]] = []
        for weights, change in zip(along, changes, strict=True):
            points.append((float(change.norm()), self.at(weights)))
            report(len(points) / len(along))
        distance_K, change_K = np.array(points, float).T
        return float(distance_K @ change_K / (distance_K @ distance_K))

    def gradients(self) -> Singles:
        """Gradients whose inner products estimate those on all weights."""
        contexts, tokens = self._edges
        single = [(token,) for token in tokens]
        return self._gradients(contexts, single, self._coordinates)[0] * self._root


def sampling_error(moved_KE: Floats, estimated_KE: Floats, norm2_E: Floats) -> float:
    """Return the squared error s of gradients on drawn weights, relative to their squared norm.

    Of first-order changes of E log-probabilities along K changes of the weights, and of those from
    the drawn weights alone; both are divided by the squared norms of the gradients.
    """
    known_E = norm2_E > 0
    error_E, size_E = (
        (values_KE[:, known_E] ** 2).sum(axis=0) / norm2_E[known_E]
        for values_KE in (estimated_KE - moved_KE, moved_KE)
    )
    return float(error_E.sum() / size_E.sum())
