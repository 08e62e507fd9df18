"""The token tree of a model's responses: sampled ones, and their single-token variations.

Responses to a prompt that share a prefix share nodes. At every node, each token that no sampled
response takes but whose leaf has a probability above `min_novel` becomes a leaf of its own, since
training can raise it; greedy decoding continues it to an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

Tokens = tuple[int, ...]

CERTAIN = 0.9995
"""A node at which one token is likelier than this, and no other is in the tree, moves nothing."""


@dataclass(slots=True)
class Node:
    """One prefix of a response."""

    prefix: Tokens
    log_p: float
    """Log-probability of the prefix."""
    parent: int
    """Edge that leads here; -1 at the root."""
    edges: dict[int, int] = field(default_factory=dict)
    """Token to edge."""
    children: dict[int, int] = field(default_factory=dict)
    """Token to the node behind its edge."""


@dataclass(frozen=True, slots=True)
class Edge:
    """One token after one prefix."""

    node: int
    token: int
    log_p0: float


@dataclass(frozen=True, slots=True)
class Leaf:
    """A whole response."""

    tokens: Tokens
    edge: int
    """Its last edge."""
    unseen: bool
    """Its last edge's token was never sampled; `tokens` continue it greedily."""


@dataclass(slots=True)
class Tree:
    """The tree of one problem."""

    nodes: list[Node]
    edges: list[Edge]
    leaves: list[Leaf]
    left_out: float
    """Probability of sampled responses below `min_p`, by the model."""

    def path(self, leaf: Leaf) -> list[int]:
        """Edges from the root to a leaf."""
        edges = []
        edge = leaf.edge
        while edge >= 0:
            edges.append(edge)
            edge = self.nodes[self.edges[edge].node].parent
        return edges[::-1]

    def moving_nodes(self) -> list[int]:
        """Nodes whose distribution an update can change noticeably."""
        top = np.full(len(self.nodes), -np.inf)
        count = np.zeros(len(self.nodes), np.int64)
        for edge in self.edges:
            top[edge.node] = max(top[edge.node], edge.log_p0)
            count[edge.node] += 1
        moving = (top < np.log(CERTAIN)) | (count > 1)
        return [int(node) for node in np.flatnonzero(moving)]


def distinct_responses(tokens_VT: torch.Tensor, lengths_V: torch.Tensor) -> list[Tokens]:
    """Distinct responses of one problem, in order of first appearance."""
    rows = zip(tokens_VT.tolist(), lengths_V.tolist(), strict=True)
    return list(dict.fromkeys(tuple(row[:length]) for row, length in rows))


def grow(
    responses: Sequence[Tokens],
    log_p_RTA: Sequence[NDArray[np.float32]],
    min_p: float,
    min_novel: float,
) -> Tree:
    """The tree of one problem; leaves of unseen tokens are not yet continued.

    Args:
        responses: distinct sampled responses.
        log_p_RTA: for each, (T, A) log-probabilities of every token after every prefix.
        min_p: sampled responses of less probability are left out.
        min_novel: unseen tokens whose leaf has less probability are left out.
    """
    tree = Tree([Node((), 0.0, -1)], [], [], 0.0)
    rows: dict[int, NDArray[np.float32]] = {}
    for tokens, log_p_TA in zip(responses, log_p_RTA, strict=True):
        total = float(sum(log_p_TA[t, token] for t, token in enumerate(tokens)))
        if total < np.log(min_p):
            tree.left_out += float(np.exp(total))
            continue
        _add(tree, tokens, log_p_TA, rows)
    for node, log_p_A in rows.items():
        for token in _unseen(tree.nodes[node], log_p_A, min_novel):
            edge = _edge(tree, node, token, float(log_p_A[token]))
            tree.leaves.append(Leaf((*tree.nodes[node].prefix, token), edge, True))
    return tree


def _add(
    tree: Tree,
    tokens: Tokens,
    log_p_TA: NDArray[np.float32],
    rows: dict[int, NDArray[np.float32]],
) -> None:
    node, edge = 0, -1
    for t, token in enumerate(tokens):
        rows.setdefault(node, log_p_TA[t])
        known = tree.nodes[node].edges.get(token)
        edge = _edge(tree, node, token, float(log_p_TA[t, token])) if known is None else known
        if t + 1 < len(tokens):
            node = _child(tree, node, edge)
    tree.leaves.append(Leaf(tokens, edge, False))


def _edge(tree: Tree, node: int, token: int, log_p: float) -> int:
    tree.nodes[node].edges[token] = len(tree.edges)
    tree.edges.append(Edge(node, token, log_p))
    return len(tree.edges) - 1


def _child(tree: Tree, node: int, edge: int) -> int:
    above, token = tree.nodes[node], tree.edges[edge].token
    if token not in above.children:
        above.children[token] = len(tree.nodes)
        log_p = above.log_p + tree.edges[edge].log_p0
        tree.nodes.append(Node((*above.prefix, token), log_p, edge))
    return above.children[token]


def _unseen(node: Node, log_p_A: NDArray[np.float32], min_novel: float) -> Iterator[int]:
    for token in np.flatnonzero(node.log_p + log_p_A > np.log(min_novel)):
        if int(token) not in node.edges:
            yield int(token)
