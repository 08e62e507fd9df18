"""Steps of the policy made from a measured tree, against the model itself."""

import numpy as np
import pytest
import torch
from measured_models import PROMPTS, TEMPERATURE, measured, small_model

from real.measure.gradients import next_log_probs
from real.measure.tree import grow
from real.settings.config import TrainConfig
from real.update.grpo import token_loss
from sim.world.sampling import fold
from sim.world.training import Adam, TrainedBatch, draw_leaves, train_batch
from sim.world.tree import draw_weights, edge_log_probs, leaf_probs, tree_of

SAMPLES = np.array([[3, 2, 1, 1, 1, 0], [0, 4, 2, 0, 2, 0]])
"""Trained samples per problem and answer, the last place for unparseable ones."""
ADVANTAGES = np.array([[1.0, -0.5, 0.3, -1.2, 0.4, 0.0], [0.2, 0.9, -1.1, 0.0, -0.3, 0.0]])
KEY = np.uint64(5)


def simulated_step(response, lr):
    """Change of all edges' log-probabilities, and the weight of each leaf in the loss."""
    tree, features = tree_of(response), response.features.astype(np.float32)
    weights = draw_weights(response, features, 0.0, 0.0, np.random.default_rng(0))
    assert weights.w.shape[0] == response.facts.n_weights
    leaves = np.zeros(len(response.leaf_answer))
    for n in range(2):
        first, last = tree.leaf_start[n : n + 2]
        leaves[first:last] = drawn_leaves(tree, weights, n, KEY)
        answers = response.leaf_answer[first:last]
        drawn = np.bincount(answers % 6, leaves[first:last], 6)
        assert (drawn == SAMPLES[n]).all()
    before = all_log_probs(tree, weights)
    adam, norm = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 2), np.empty(2)
    streams = np.stack([ADVANTAGES, np.zeros_like(ADVANTAGES)])
    batch = TrainedBatch(np.arange(2), np.full(2, lr), SAMPLES, streams, np.zeros(2, bool))
    assert train_batch(tree, weights, adam, 0, batch, KEY, norm) == 1
    assert norm == pytest.approx(np.linalg.norm(weights.w))
    problem_L = np.repeat([0, 1], np.diff(tree.leaf_start))
    advantage_L = ADVANTAGES[problem_L, response.leaf_answer % 6]
    tokens = (leaves * response.leaf_length).sum()
    return all_log_probs(tree, weights) - before, leaves * advantage_L / tokens


def all_log_probs(tree, weights):
    rows = []
    for n in range(2):
        out_E = np.empty(500)
        rows.append(out_E[: edge_log_probs(tree, weights, n, out_E)])
    return np.concatenate(rows)


def real_step(model, response, lr, weight_L):
    """The same on the model itself, by autograd and torch's AdamW."""
    contexts, tokens = response_edges(response)
    start = next_log_probs(model, contexts, tokens, TEMPERATURE)
    weight_E = np.zeros(len(tokens))
    problem_L = np.repeat([0, 1], np.diff(response.leaf_start))
    for leaf, weight in enumerate(weight_L):
        path = response.path_edge[response.path_start[leaf] : response.path_start[leaf + 1]]
        weight_E[path + response.edge_start[problem_L[leaf]]] += weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.01)
    loss = 0.0
    for context, token, weight in zip(contexts, tokens, weight_E, strict=True):
        logits = model(input_ids=torch.tensor([context])).logits[0, -1] / TEMPERATURE
        loss = loss - float(weight) * logits.log_softmax(-1)[token]
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return next_log_probs(model, contexts, tokens, TEMPERATURE) - start


def response_edges(response):
    """Context and token of every edge, read off the leaves that go through it."""
    contexts, tokens = {}, {}
    for n, prompt in enumerate(PROMPTS):
        tree = TREES[n]
        order = {node: place for place, node in enumerate(tree.moving_nodes())}
        kept = [e for e, edge in enumerate(tree.edges) if edge.node in order]
        for e in sorted(kept, key=lambda e: order[tree.edges[e].node]):
            place = len(tokens)
            contexts[place] = [*prompt, *tree.nodes[tree.edges[e].node].prefix]
            (tokens[place],) = tree.edges[e].tokens
    return list(contexts.values()), list(tokens.values())


TREES = []


def test_one_step_agrees_with_the_model_to_first_order(monkeypatch):
    def kept(*args):
        TREES.append(grow(*args))
        return TREES[-1]

    TREES.clear()
    monkeypatch.setattr("real.measure.measuring.grow", kept)
    response = measured(small_model(), weights=10**6)
    assert response.features.shape[0] == len(response_edges(response)[1])
    errors = []
    for lr in (2e-3, 2e-4):
        simulated, weight_L = simulated_step(response, lr)
        real = real_step(small_model(), response, lr, weight_L)
        assert np.abs(simulated).max() > lr
        errors.append(np.linalg.norm(real - simulated) / np.linalg.norm(real))
    assert errors[0] < 0.2
    assert errors[1] == pytest.approx(errors[0] / 10, rel=0.3)


def test_the_linear_simulator_is_the_linearised_trainer():
    """All weights measured: torch's autograd, loss, clip and AdamW give the same probabilities."""
    response = measured(small_model(), weights=10**6)
    tree, features = tree_of(response), response.features
    weights = draw_weights(response, features, 0.0, 0.0, np.random.default_rng(0))
    places = [slice(*response.edge_start[n : n + 2]) for n in range(2)]
    theta = torch.tensor(response.start, dtype=torch.float64, requires_grad=True)
    start = theta.detach().clone()
    optimizer = torch.optim.AdamW([theta], lr=1.0, weight_decay=0.01)
    adam, norm, taken = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 1), np.empty(2), 0
    config = TrainConfig(temperature=1.0, clip_low=0.2, clip_high=0.2)

    def linear(n):
        z = torch.tensor(features[places[n]], dtype=torch.float64) @ (theta - start)
        z = z + torch.tensor(response.log_p0[places[n]])
        nodes = torch.tensor(response.edge_node[places[n]])
        return z - torch.stack([z[nodes == v].logsumexp(0) for v in nodes])

    rng, n_clipped = np.random.default_rng(1), 0
    for batch in range(6):
        streams = rng.normal(size=(2, 2, 6)) * (np.arange(6) < 5)
        rates, key = np.array([0.02, 0.015]), np.uint64(fold(KEY, batch))
        counts = [drawn_leaves(tree, weights, n, key) for n in range(2)]
        old = [linear(n).detach() for n in range(2)]
        data = TrainedBatch(np.arange(2), rates, SAMPLES, streams, np.zeros(2, bool))
        taken = train_batch(tree, weights, adam, taken, data, key, norm)
        for n in range(2):
            optimizer.param_groups[0]["lr"] = rates[n]
            optimizer.zero_grad()
            now, loss, first = linear(n), 0.0, response.leaf_start[n]
            for leaf, count in enumerate(counts[n]):
                a, b = response.path_start[first + leaf : first + leaf + 2]
                edges, answer = response.path_edge[a:b], response.leaf_answer[first + leaf] % 6
                given = (torch.tensor([stream[n, answer]]) for stream in streams)
                tokens = token_loss(now[edges][None], old[n][edges][None], *given, config)
                loss = loss + int(count) * tokens.loss_KT.sum()
                n_clipped += int(count) * int(tokens.clipped_KT.sum())
            lengths = response.leaf_length[first : first + len(counts[n])]
            (loss / float(counts[n] @ lengths)).backward()
            torch.nn.utils.clip_grad_norm_([theta], 1.0)
            optimizer.step()
        expected = np.concatenate([linear(n).detach().numpy() for n in range(2)])
        assert all_log_probs(tree, weights) == pytest.approx(expected, abs=1e-6)
    assert taken == 12 and n_clipped > 10
    assert np.abs(expected - response.log_p0).max() > 1


def drawn_leaves(tree, weights, n, key):
    p_E, p_L, counts_L = np.empty(500), np.empty(500), np.empty(500, np.int64)
    edge_log_probs(tree, weights, n, p_E)
    n_leaves = leaf_probs(tree, p_E, n, p_L)
    draw_leaves(tree, p_L, n, SAMPLES[n], np.uint64(fold(key, n)), counts_L)
    return counts_L[:n_leaves]
