"""The measured token tree, and one step of the policy made from it, against the model itself."""

import numpy as np
import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from lab.errors import UserError
from lab.trace.response import VERSION, read_response, write_response
from real.measure.arrays import edge_arrays, merge_answers
from real.measure.gradients import Gradients, log_probs, next_log_probs
from real.measure.growth import Edges, Growth, slope
from real.measure.measuring import MeasureConfig, measure
from real.measure.tree import grow, whole_responses
from real.measure.weights import choose_weights
from real.update.grpo import LossConfig, token_loss
from sim.world.measured.training import Adam, Batch, draw_leaves, train_batch
from sim.world.measured.tree import draw_weights, edge_log_probs, leaf_probs, tree_of
from sim.world.random import fold

PROMPTS = [[1, 2], [3, 1, 4]]
END, LONGEST, TEMPERATURE = 0, 3, 0.8
FACTS = {"task": "test", "model": {}, "problems": "", "problem_ids": ["a", "b"]}


def small_model(seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=6,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    model = Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def sampler(model):
    @torch.no_grad()
    def sample(prompts, n, max_tokens, top_p, seed):
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.full((len(prompts), n, max_tokens), END)
        lengths = torch.zeros((len(prompts), n), dtype=torch.long)
        for place, prompt in enumerate(prompts):
            ids, going = torch.tensor([prompt] * n), torch.ones(n, dtype=torch.bool)
            for t in range(max_tokens):
                p_A = (model(input_ids=ids).logits[:, -1] / TEMPERATURE).softmax(-1)
                drawn = torch.multinomial(p_A, 1, generator=generator)
                drawn = p_A.argmax(-1, keepdim=True) if top_p < 0.5 else drawn
                tokens[place, going, t] = drawn[going, 0]
                lengths[place] += going
                going = going & (drawn[:, 0] != END)
                ids = torch.cat([ids, drawn], 1)
        return tokens, lengths

    return sample


def answer_ids(problem, responses):
    ids = np.array([tokens[0] - 1 for tokens in responses])  # the end token is unparseable
    return ids, 0, [str(a) for a in range(5)]


def measured(model, checkpoints=(), **settings):
    config = MeasureConfig(**{"responses": 40, "min_p": 1e-6, "min_novel": 1e-6, **settings})
    return measure(
        model,
        PROMPTS,
        sample=sampler(model),
        answer_ids=answer_ids,
        max_tokens=LONGEST,
        temperature=TEMPERATURE,
        pad=END,
        config=config,
        facts=FACTS,
        checkpoints=checkpoints,
    )


def test_gradients_equal_finite_differences():
    model = small_model().double()
    gradients = Gradients(model, TEMPERATURE)
    contexts, tokens = [[1, 2], [3, 1, 4, 2], [1, 2]], [(5,), (0,), (3, 1, 0)]
    every = np.arange(gradients.n_weights)
    features, norm2 = gradients(contexts, tokens, every)
    assert norm2 == pytest.approx((features.astype(float) ** 2).sum(1), rel=1e-5)
    # The norms of the model compute in single precision, so a smaller step drowns in rounding.
    places = np.random.default_rng(0).permutation(every)[:40]
    for place in places:
        up, down = (shifted(model, place, h, contexts, tokens) for h in (1e-3, -1e-3))
        assert features[:, place] == pytest.approx((up - down) / 2e-3, abs=5e-4)


def shifted(model, place, h, contexts, tokens):
    for parameter in model.parameters():
        if place < parameter.numel():
            break
        place -= parameter.numel()
    with torch.no_grad():
        parameter.view(-1)[place] += h
        log_p = [
            next_log_probs(
                model,
                [[*context, *response[:t]] for t in range(len(response))],
                response,
                TEMPERATURE,
            ).sum()
            for context, response in zip(contexts, tokens, strict=True)
        ]
        parameter.view(-1)[place] -= h
    return np.array(log_p)


def test_the_tree_holds_the_probabilities_of_the_model():
    model = small_model()
    response = measured(model, weights=16)
    r = response
    for n, prompt in enumerate(PROMPTS):
        total = 0.0
        for leaf in range(r.leaf_start[n], r.leaf_start[n + 1]):
            path = r.path_edge[r.path_start[leaf] : r.path_start[leaf + 1]] + r.edge_start[n]
            total += np.exp(r.log_p0[path].sum())
        # Every token of every prefix that was sampled is in the tree, unseen ones as leaves.
        assert total == pytest.approx(1.0, abs=1e-4)
        nodes = r.edge_node[r.edge_start[n] : r.edge_start[n + 1]]
        p_E = np.exp(r.log_p0[r.edge_start[n] : r.edge_start[n + 1]])
        assert np.bincount(nodes, p_E) == pytest.approx(1.0, abs=1e-3)
        assert len(prompt) > 1
    assert r.leaf_unseen.any() and not r.leaf_unseen.all()
    assert (r.leaf_length <= LONGEST).all()


def test_log_probs_are_those_of_single_tokens():
    model = small_model()
    responses = [(1, 2, 0), (4,)]
    rows = log_probs(model, PROMPTS[1], responses, TEMPERATURE, END)
    assert [row.shape for row in rows] == [(3, 6), (1, 6)]
    for t in range(3):
        context = [*PROMPTS[1], *responses[0][:t]]
        single = next_log_probs(model, [context] * 6, list(range(6)), TEMPERATURE)
        assert rows[0][t] == pytest.approx(single, abs=1e-5)


def test_unlikely_responses_are_left_out_and_counted():
    log_p = np.log(np.array([[0.9, 0.1], [0.5, 0.5]], np.float32))
    tree = grow([(0, 1), (1, 1)], [log_p, log_p], min_p=0.1, min_novel=0.5, max_edges=99)
    assert [leaf.tokens for leaf in tree.leaves] == [(0, 1)]
    assert tree.left_out == pytest.approx(0.05)


def test_all_weights_are_kept_exactly_and_a_sample_in_half_precision():
    model = small_model()
    whole, part = measured(model, weights=10**6), measured(model, weights=16)
    assert whole.features.dtype == np.float32
    assert whole.features.shape[1] == whole.facts.n_weights
    assert part.features.dtype == np.float16 and part.features.shape[1] == 16
    assert part.norm2 == pytest.approx(whole.norm2)


def test_a_response_file_is_read_as_it_was_written(tmp_path):
    response = measured(small_model(), weights=16)
    write_response(tmp_path / "r.npz", response)
    again = read_response(tmp_path / "r.npz")
    assert again.facts == response.facts
    assert (again.features == response.features).all()
    assert (again.path_edge == response.path_edge).all()


def test_bad_response_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file; make one with guard-train measure"):
        read_response(tmp_path / "none.npz")
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(UserError, match="not a response file, or damaged"):
        read_response(tmp_path / "text.npz")
    response = measured(small_model(), weights=16)
    response.facts.version = 99
    write_response(tmp_path / "new.npz", response)
    with pytest.raises(UserError, match="format version 99"):
        read_response(tmp_path / "new.npz")
    response.facts.version = VERSION
    response.path_edge[0] = 10**6
    write_response(tmp_path / "bad.npz", response)
    with pytest.raises(UserError, match=r"damaged .path_edge."):
        read_response(tmp_path / "bad.npz")


def test_growth_is_zero_without_training_and_counts_curvature():
    model = small_model()
    edges = Edges([[1, 2]] * 6, range(6), [0] * 6, [0.0] * 6)
    n_weights = Gradients(model, TEMPERATURE).n_weights
    every, ones = np.arange(n_weights), np.ones(n_weights, np.float32)
    growth = Growth(model, edges, TEMPERATURE, every, ones)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert growth.at(before) == pytest.approx((0.0, 0.0), abs=1e-8)
    moved = {name: p + 0.05 * torch.randn_like(p) for name, p in before.items()}
    distance, change = growth.at(moved)
    expected = sum(float((moved[n] - before[n]).square().sum()) for n in before)
    assert distance == pytest.approx(expected) and change > 0
    assert all((p == before[name]).all() for name, p in model.named_parameters())
    assert slope([(1.0, 2.0), (2.0, 4.0)]) == pytest.approx(2.0)


SAMPLES = np.array([[3, 2, 1, 1, 1, 0], [0, 4, 2, 0, 2, 0]])
"""Trained samples per problem and answer, the last place for unparseable ones."""
ADVANTAGES = np.array([[1.0, -0.5, 0.3, -1.2, 0.4, 0.0], [0.2, 0.9, -1.1, 0.0, -0.3, 0.0]])
KEY = np.uint64(5)


def simulated_step(response, lr):
    """Change of all edges' log-probabilities, and the weight of each leaf in the loss."""
    tree, features = tree_of(response), response.features.astype(np.float32)
    weights = draw_weights(response, features, 0.0, np.random.default_rng(0))
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
    batch = Batch(np.arange(2), np.full(2, lr), SAMPLES, streams, np.zeros(2, bool))
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


def paths_of(response, n):
    """Log-probabilities and answers of a problem's leaves."""
    leaves = slice(*response.leaf_start[n : n + 2])
    paths = [
        response.path_edge[response.path_start[leaf] : response.path_start[leaf + 1]]
        for leaf in range(leaves.start, leaves.stop)
    ]
    log_p0 = response.log_p0[response.edge_start[n] :]
    return np.array([log_p0[path].sum() for path in paths]), response.leaf_answer[leaves]


def test_edges_can_be_responses_or_answers():
    model = small_model()
    by_response = measured(model, weights=10**6, unit="response")
    by_answer = measured(model, weights=10**6, unit="answer")
    assert by_response.facts.unit == "response" and not by_response.leaf_unseen.any()
    for n in range(len(PROMPTS)):
        log_p, answers = paths_of(by_response, n)
        assert np.exp(log_p).sum() == pytest.approx(1.0) and len(log_p) > len(set(answers))
        joined, classes = paths_of(by_answer, n)
        mass = [np.exp(log_p[answers == a]).sum() for a in classes]
        assert list(classes) == sorted(set(answers)) and np.exp(joined) == pytest.approx(mass)
        # The gradient of an answer is the mean of those of its responses.
        own = slice(*by_response.edge_start[n : n + 2])
        sums = [
            np.exp(log_p[answers == a]) @ by_response.features[own][answers == a] for a in classes
        ]
        means = np.array(sums) / np.array(mass)[:, None]
        joined_own = slice(*by_answer.edge_start[n : n + 2])
        assert by_answer.features[joined_own] == pytest.approx(means, abs=1e-4)


def test_a_problem_of_one_response_is_one_answer():
    tokens, lengths = torch.tensor([[1, 0]] * 3), torch.tensor([2] * 3)
    tree = whole_responses(tokens, lengths)
    read = [(np.array([0]), 0, ["a"])]
    arrays, contexts, _ = edge_arrays([tree], [[1]], read)
    assert not contexts
    joined, features, _ = merge_answers(
        arrays, np.zeros((0, 4), np.float32), np.ones(4, np.float32)
    )
    assert joined["log_p0"] == pytest.approx([0.0]) and features.shape == (1, 4)
    assert joined["leaf_length"] == [2] and joined["path_start"].tolist() == [0, 1]


def test_a_tree_is_cut_at_its_most_edges_and_the_cut_is_counted():
    whole, cut = (
        measured(small_model(), weights=16),
        measured(small_model(), weights=16, max_edges=9),
    )
    assert whole.facts.capped == 0 and np.diff(whole.edge_start).min() > 9
    assert cut.facts.capped == 2 and np.diff(cut.edge_start).max() <= 9
    assert cut.facts.left_out > whole.facts.left_out
    for n in range(len(PROMPTS)):
        # The likeliest response is kept.
        assert paths_of(cut, n)[0].max() == pytest.approx(paths_of(whole, n)[0].max())


def test_what_cannot_be_measured_is_refused_in_one_line(monkeypatch):
    for changes, message in (
        ({"max_edges": 0}, "max_edges = 0: must be at least 1"),
        ({"min_p": 0.99}, "min_p = 0.99: problem a has no response that likely"),
        ({"unit": "answer", "checkpoints": [dict]}, "growth: can be measured with unit = token"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            measured(small_model(), **changes)
        assert "\n" not in str(refused.value)
    broken = small_model()
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    sampled = sampler(small_model())
    monkeypatch.setattr(f"{__name__}.sampler", lambda model: sampled)
    with pytest.raises(UserError, match="measure: a logit is not finite"):
        measured(broken)
    monkeypatch.setattr("real.measure.gradients.free_bytes", lambda device: 10**5)
    with pytest.raises(
        UserError, match=r"gradients of \d+ edges on \d+ of \d+ weights need"
    ) as refused:
        measured(small_model())
    assert "set lora_rank or unit answer" in str(refused.value)


def test_weights_are_drawn_by_the_size_of_their_gradients():
    model = small_model()
    gradients = Gradients(model, TEMPERATURE)
    contexts, tokens = [[1, 2], [3, 1, 4]], [(5,), (2,)]
    every, norm2 = gradients(contexts, tokens, np.arange(gradients.n_weights))
    size = np.sqrt((every.astype(float) ** 2 / norm2[:, None]).mean(0))
    assert gradients.sizes(contexts, tokens) == pytest.approx(size, rel=1e-4)
    norms, large = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drawn, scale = choose_weights(gradients, contexts, tokens, 200, rng)
        assert len(set(drawn)) == len(drawn) == 200
        norms.append(every[0, drawn].astype(float) ** 2 @ scale)
        large.append(size[drawn].mean())
    # Sums over the drawn weights estimate those over all.
    assert np.mean(norms) == pytest.approx(norm2[0], abs=4 * np.std(norms) / np.sqrt(40))
    assert np.mean(large) > 1.2 * size.mean()


def test_the_linear_simulator_is_the_linearised_trainer():
    """All weights measured: torch's autograd, loss, clip and AdamW give the same probabilities."""
    response = measured(small_model(), weights=10**6)
    tree, features = tree_of(response), response.features
    weights = draw_weights(response, features, 0.0, np.random.default_rng(0))
    places = [slice(*response.edge_start[n : n + 2]) for n in range(2)]
    theta = torch.tensor(response.start, dtype=torch.float64, requires_grad=True)
    start = theta.detach().clone()
    optimizer = torch.optim.AdamW([theta], lr=1.0, weight_decay=0.01)
    adam, norm, taken = Adam(0.9, 0.999, 1e-8, 1.0, 0.01, 1), np.empty(2), 0
    config = LossConfig(clip_low=0.2, clip_high=0.2)

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
        data = Batch(np.arange(2), rates, SAMPLES, streams, np.zeros(2, bool))
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
