"""The arrays of a response file, from the trees of all problems."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from real.measure.tree import Tokens, Tree


def edge_arrays(
    trees: Sequence[Tree],
    prompts: Sequence[Sequence[int]],
    read: Sequence[tuple[NDArray[np.int64], int, list[str]]],
) -> tuple[dict[str, Any], list[list[int]], list[Tokens]]:
    """The arrays of a response file without features, and context and tokens of every edge.

    Args:
        read: of the leaves of each problem: answer ids, the truth's id, the text of each id.
    """
    names = ("edge_node", "log_p0", "leaf_answer", "leaf_length", "leaf_unseen", "path_edge")
    rows: dict[str, list[Any]] = {name: [] for name in names}
    starts: dict[str, list[int]] = {"edge_start": [0], "leaf_start": [0], "path_start": [0]}
    contexts: list[list[int]] = []
    tokens: list[Tokens] = []
    for tree, prompt, (ids, _, _) in zip(trees, prompts, read, strict=True):
        order = {node: place for place, node in enumerate(tree.moving_nodes())}
        kept = sorted(
            (e for e, edge in enumerate(tree.edges) if edge.node in order),
            key=lambda e: order[tree.edges[e].node],
        )
        place_of = {edge: place for place, edge in enumerate(kept)}
        for e in kept:
            edge = tree.edges[e]
            rows["edge_node"].append(order[edge.node])
            rows["log_p0"].append(edge.log_p0)
            contexts.append([*prompt, *tree.nodes[edge.node].prefix])
            tokens.append(edge.tokens)
        for leaf, answer in zip(tree.leaves, ids, strict=True):
            rows["leaf_answer"].append(int(answer))
            rows["leaf_length"].append(len(leaf.tokens))
            rows["leaf_unseen"].append(leaf.unseen)
            rows["path_edge"] += [place_of[e] for e in tree.path(leaf) if e in place_of]
            starts["path_start"].append(len(rows["path_edge"]))
        starts["edge_start"].append(len(rows["edge_node"]))
        starts["leaf_start"].append(len(rows["leaf_answer"]))
    kinds = {"log_p0": np.float64, "leaf_unseen": np.bool_}
    arrays = {name: np.array(values, kinds.get(name, np.int64)) for name, values in rows.items()}
    arrays |= {name: np.array(values, np.int64) for name, values in starts.items()}
    return arrays, contexts, tokens


def merge_answers(
    arrays: dict[str, Any], features: NDArray[np.float32], scale: NDArray[np.float32]
) -> tuple[dict[str, Any], NDArray[np.float32], NDArray[np.float64]]:
    """Join the responses of each problem that give the same answer.

    Args:
        arrays: of trees whose edges are responses.
        features: (E, D) of the responses.
        scale: (D,) number of weights that each column stands for.

    Returns:
        The arrays, features and squared norms of trees whose edges are answers. The gradient of an
        answer's log-probability is the mean of those of its responses.
    """
    problem_L = np.repeat(np.arange(len(arrays["leaf_start"]) - 1), np.diff(arrays["leaf_start"]))
    keys = np.stack([problem_L, arrays["leaf_answer"]], 1)
    classes, class_L = np.unique(keys, axis=0, return_inverse=True)
    class_L, n = class_L.reshape(-1), len(classes)
    # A problem's only response has no edge.
    edge_L = np.diff(arrays["path_start"]) > 0
    p_L = np.ones(len(problem_L))
    p_L[edge_L] = np.exp(arrays["log_p0"])
    p_C = np.bincount(class_L, p_L, n)
    share_L = p_L / p_C[class_L]
    merged = np.zeros((n, features.shape[1]), np.float32)
    np.add.at(merged, class_L[edge_L], features * share_L[edge_L, None].astype(np.float32))
    start = np.searchsorted(classes[:, 0], np.arange(len(arrays["leaf_start"])))
    joined = {
        "edge_start": start,
        "edge_node": np.zeros(n, np.int64),
        "log_p0": np.log(p_C),
        "leaf_start": start,
        "leaf_answer": classes[:, 1],
        "leaf_length": np.bincount(class_L, share_L * arrays["leaf_length"], n).round().astype(int),
        "leaf_unseen": np.zeros(n, np.bool_),
        "path_start": np.arange(n + 1),
        "path_edge": np.arange(n) - start[classes[:, 0]],
    }
    return joined, merged, (merged.astype(float) ** 2) @ scale.astype(float)
