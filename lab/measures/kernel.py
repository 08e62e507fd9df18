"""The measured kernel: how far an update on one answer moves the answers of all problems.

An answer class is one answer of one problem. Its gradient g_a is that of the log-probability with
which the token tree of a response file gives the answer; a step along g_a changes the
log-probability of class b in proportion to the kernel K_ab = <g_a, g_b>. Classes with little
probability are left out, and unparseable responses are no class.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from scipy.sparse import csr_array

from lab.columns import Bools, Floats, Ints
from lab.errors import UserError
from lab.stats.bootstrap import percentile_interval, resample_counts
from lab.trace.response import Response

LEAST = 0.02
"""Answers with less probability before training are no classes."""
SURE = 0.97
"""Labels that are likelier have no gradient to compare with."""
KINDS = {"right-right": (True, True), "wrong-wrong": (False, False), "right-wrong": (True, False)}
"""Pairs of classes by whether their answers are right."""
_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Classes:
    """The C answer classes of a response file."""

    problem_C: Ints
    p_C: Floats
    """Probability before training among the classes of the problem."""
    right_C: Bools
    gradient_CD: Floats
    """Gradient of log p, so that K = gradient gradient^T."""

    def take(self, chosen: Bools) -> Classes:
        """Return some of the classes."""
        return Classes(
            self.problem_C[chosen],
            self.p_C[chosen],
            self.right_C[chosen],
            self.gradient_CD[chosen],
        )

    @property
    def kernel_CC(self) -> Floats:
        """Inner products of the gradients."""
        return self.gradient_CD @ self.gradient_CD.T

    @property
    def label_N(self) -> Ints:
        """Most likely class of each problem that has one."""
        order = np.lexsort((-self.p_C, self.problem_C))
        return order[np.unique(self.problem_C[order], return_index=True)[1]]


def classes(response: Response, adam: bool = False, least: float = LEAST) -> Classes:
    """Gradients of the answer classes before training.

    Args:
        response: the measured model.
        adam: scale every weight as AdamW does whose mean squared gradient is that of the clipped
            GRPO gradients of all labels.
        least: answers with less probability are left out.

    Raises:
        UserError: no answer is likely enough.
    """
    problem_C, right_C, p_C, share_CE = _classes_on_edges(response, least)
    # So scaled, inner products estimate those on all weights of the model.
    gradient_CD = (share_CE @ response.features.astype(np.float64)) * np.sqrt(response.scale)
    kept = Classes(problem_C, p_C, right_C, gradient_CD)
    kept = replace(kept, gradient_CD=gradient_CD - _mean(kept))
    if not adam:
        return kept
    return replace(kept, gradient_CD=kept.gradient_CD * np.sqrt(_adam_scale(kept, response)))


def transfer(answers: Classes) -> pd.DataFrame:
    """Effect of a small step towards each problem's label, on the label and on all else.

    Args:
        answers: from `classes`.

    Returns:
        One row per problem whose label is not all but certain: problem, right (the label is the
        true answer), moved (probability that changes hands in all other problems, by that of the
        own label), lifted (signed change of all other problems' true answers, by that of the own
        label), rms (root mean square change of another class's log-probability, by that of the
        label's).
    """
    kernel_CC, rows = answers.kernel_CC, []
    for label in answers.label_N:
        p, own = answers.p_C[label], kernel_CC[label, label]
        if p >= SURE:
            continue
        other_C = answers.problem_C != answers.problem_C[label]
        change_C = kernel_CC[label] / own  # of log p, where that of the label is 1
        moved_C = answers.p_C * change_C / p
        rows.append(
            {
                "problem": answers.problem_C[label],
                "right": answers.right_C[label],
                "moved": np.abs(moved_C[other_C]).sum() / 2,
                "lifted": moved_C[other_C & answers.right_C].sum(),
                "rms": np.sqrt((change_C[other_C] ** 2).mean()),
            }
        )
    return pd.DataFrame(rows)


def correlations(answers: Classes) -> pd.DataFrame:
    """Correlation of the gradients of all pairs of classes of different problems.

    Args:
        answers: from `classes`.

    Returns:
        One row per pair: kind (of `KINDS`), first and second (problems), correlation.
    """
    sound = _sound(answers)
    correlation_CC = _correlation(sound)
    first, second = np.nonzero(np.triu(sound.problem_C[:, None] != sound.problem_C))
    right, other = sound.right_C[first], sound.right_C[second]
    kind = np.where(right & other, 0, np.where(~right & ~other, 1, 2))
    return pd.DataFrame(
        {
            "kind": np.array(list(KINDS), object)[kind],
            "first": sound.problem_C[first],
            "second": sound.problem_C[second],
            "correlation": correlation_CC[first, second],
        }
    )


def mean_correlations(pairs: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """Mean and spread of the correlations of each kind of pair.

    Args:
        pairs: from `correlations`.
        seed: of the bootstrap, which resamples problems.

    Returns:
        One row per kind: kind, mean, low and high (95 %), sd (of single pairs), n.
    """
    first, second = pairs["first"].to_numpy(), pairs["second"].to_numpy()
    n_problems = 1 + max(first.max(), second.max())
    counts_BN = resample_counts(n_problems, _RESAMPLES, np.random.default_rng(seed))
    rows = []
    for kind in KINDS:
        own = (pairs["kind"] == kind).to_numpy()
        value = pairs["correlation"].to_numpy()[own]
        weight_BK = counts_BN[:, first[own]] * counts_BN[:, second[own]]
        drawn_BK = weight_BK[weight_BK.any(axis=1)]
        low, high = percentile_interval(drawn_BK @ value / drawn_BK.sum(1))
        spread = {"mean": value.mean(), "low": low, "high": high, "sd": value.std()}
        rows.append({"kind": kind, **spread, "n": len(value)})
    return pd.DataFrame(rows)


def spectrum(answers: Classes) -> Floats:
    """Eigenvalues of the correlation matrix of all classes, largest first, as shares of 1."""
    values = np.linalg.eigvalsh(_correlation(_sound(answers)))[::-1].clip(0)
    return values / values.sum()


def _correlation(answers: Classes) -> Floats:
    unit_CD = answers.gradient_CD / np.linalg.norm(answers.gradient_CD, axis=1, keepdims=True)
    return unit_CD @ unit_CD.T


def _sound(answers: Classes) -> Classes:
    """The classes whose gradient is not negligible, so that its direction means something."""
    norm2_C = (answers.gradient_CD**2).sum(1)
    return answers.take(norm2_C > 1e-3 * np.median(norm2_C))


def _mean(answers: Classes) -> Floats:
    """(C, D) mean gradient of the problem of each class: probabilities of a problem sum to 1."""
    mean_ND = np.zeros((answers.problem_C.max() + 1, answers.gradient_CD.shape[1]))
    np.add.at(mean_ND, answers.problem_C, answers.p_C[:, None] * answers.gradient_CD)
    return mean_ND[answers.problem_C]


def _adam_scale(answers: Classes, response: Response) -> Floats:
    """(D,) 1 / root of the mean squared GRPO gradient of all labels, each clipped to norm 1."""
    label = answers.label_N
    p_N = answers.p_C[label].clip(max=0.98)
    # Standardised rewards: the expected gradient is sqrt(p / (1 - p)) times that of log p.
    gradient_ND = answers.gradient_CD[label] * np.sqrt(p_N / (1 - p_N))[:, None]
    gradient_ND /= response.leaf_length.mean()
    norm_N = np.linalg.norm(gradient_ND, axis=1)
    clipped_ND = gradient_ND / np.maximum(1, norm_N)[:, None]
    return 1 / np.sqrt((clipped_ND**2).mean(0) + 1e-12)


def _classes_on_edges(response: Response, least: float) -> tuple[Ints, Bools, Floats, csr_array]:
    """Problem, truth and probability of the classes, and (C, E) d log p / d edge log-probability.

    The tree's own normalisation is part of the derivative: an edge counts with its share of the
    class less its probability times that of its whole node.
    """
    problem_E = np.repeat(np.arange(response.n_problems), np.diff(response.edge_start))
    problem_L = np.repeat(np.arange(response.n_problems), np.diff(response.leaf_start))
    leaf_P = np.repeat(np.arange(len(problem_L)), np.diff(response.path_start))
    edge_P = response.path_edge + response.edge_start[problem_L[leaf_P]]
    _, node_E = np.unique(np.stack([problem_E, response.edge_node]), axis=1, return_inverse=True)
    p_E = np.exp(response.log_p0)
    p_E /= np.bincount(node_E, p_E)[node_E]
    p_L = np.exp(np.bincount(leaf_P, np.log(p_E)[edge_P], len(problem_L)))
    p_L /= np.bincount(problem_L, p_L)[problem_L]
    key_L = problem_L * (response.n_answers + 1) + response.leaf_answer
    key_C, class_L = np.unique(key_L, return_inverse=True)
    p_C = np.bincount(class_L, p_L)
    kept = np.flatnonzero((p_C >= least) & (response.leaf_answer[_first(class_L)] >= 0))
    if not len(kept):
        raise UserError(f"least = {least:g}: no answer is that likely; lower it")
    weights = p_L[leaf_P] / p_C[class_L[leaf_P]]
    share_CE = csr_array((weights, (class_L[leaf_P], edge_P)), (len(key_C), len(p_E)))[kept]
    to_node = csr_array((np.ones(len(p_E)), (np.arange(len(p_E)), node_E)))
    from_node = csr_array((p_E, (node_E, np.arange(len(p_E)))))
    share_CE = share_CE - (share_CE @ to_node) @ from_node
    problem_C = problem_L[_first(class_L)][kept]
    right_C = response.leaf_answer[_first(class_L)][kept] == response.truth_N[problem_C]
    total_N = np.bincount(problem_C, p_C[kept], response.n_problems)
    return problem_C, right_C, p_C[kept] / total_N[problem_C], share_CE


def _first(class_L: Ints) -> Ints:
    return np.unique(class_L, return_index=True)[1]
