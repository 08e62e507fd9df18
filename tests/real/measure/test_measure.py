from unittest.mock import Mock

import numpy as np
import pytest
import torch
from small_models import causal

from lab.base.errors import UserError
from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.measure import MeasureSettings
from real.measure.gradients import Gradients, Growth, next_log_probs, sampling_error
from real.measure.measuring import Subject, choose_weights, measure

PROMPTS = [[1, 2], [3, 1, 4]]
END, LONGEST, TEMPERATURE = 0, 3, 0.8
FACTS = {"task": "test", "model": {}, "problems": "", "problem_ids": ["a", "b"]}


def small_model():
    sizes = {"vocab_size": 6, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
    model = causal("Qwen2", **sizes, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def certain_model():
    """One that ends every response at once."""
    model = small_model()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_("norm" in name)
        model.lm_head.weight.fill_(1.0)[END] = 30.0
    return model


def answer_ids(problem, responses):
    assert all(END not in tokens[:-1] for tokens in responses)
    ids = np.array([tokens[0] - 1 for tokens in responses])  # the end token is unparseable
    return ids, 0, [str(a) for a in range(5)]


def measured(model, checkpoints=(), sampled=None, **settings):
    """The response of a model; `sampled` is another one that the responses are drawn from."""
    config = MeasureSettings(**{"responses": 40, "min_p": 1e-6, "min_novel": 1e-6, **settings})
    engine = TransformersEngine(sampled or model, (END,), END)
    subject = Subject(
        model=model, prompts=PROMPTS, engine=engine, sampling=Sampling(LONGEST, TEMPERATURE),
        end_tokens=[END], read=answer_ids, seed=0,
    )  # fmt: skip
    return measure(subject, config, FACTS, checkpoints)


@pytest.fixture(scope="module")
def part():
    return measured(small_model(), weights=16)


CONTEXTS, TOKENS = [[1, 2], [3, 1, 4, 2], [1, 2]], [(5,), (0,), (3, 1, 0)]


def every_weight(model):
    gradients = Gradients(model, TEMPERATURE)
    return gradients, np.arange(gradients.n_weights)


def test_gradients_equal_finite_differences():
    model = small_model().double()
    gradients, every = every_weight(model)
    features, norm2, _ = gradients(CONTEXTS, TOKENS, every)
    assert norm2 == pytest.approx((features.astype(float) ** 2).sum(1), rel=1e-5)
    # The norms of the model compute in single precision, so a smaller step drowns in rounding.
    places = np.random.default_rng(0).permutation(every)[:15]
    for place in places:
        up, down = (shifted(model, place, h) for h in (1e-3, -1e-3))
        assert features[:, place] == pytest.approx((up - down) / 2e-3, abs=5e-4)


def shifted(model, place, h):
    for parameter in model.parameters():
        if place < parameter.numel():
            break
        place -= parameter.numel()
    with torch.no_grad():
        parameter.view(-1)[place] += h
        log_p = []
        for context, response in zip(CONTEXTS, TOKENS, strict=True):
            read = [[*context, *response[:t]] for t in range(len(response))]
            log_p.append(next_log_probs(model, read, response, TEMPERATURE).sum())
        parameter.view(-1)[place] -= h
    return np.array(log_p)


def test_the_tree_holds_the_probabilities_of_the_model(part):
    for n in range(len(PROMPTS)):
        # Every token of every prefix that was sampled is in the tree, unseen ones as leaves.
        assert np.exp(paths_of(part, n)[0]).sum() == pytest.approx(1.0, abs=1e-4)
        edges = slice(*part.edge_start[n : n + 2])
        p_V = np.bincount(part.edge_node[edges], np.exp(part.log_p0[edges]))
        assert p_V == pytest.approx(1.0, abs=1e-3)
    assert part.leaf_unseen.any() and not part.leaf_unseen.all()
    assert (part.leaf_length <= LONGEST).all()


def test_all_weights_are_kept_exactly_and_a_sample_in_half_precision(part):
    whole = measured(small_model(), weights=10**6)
    assert whole.features.dtype == np.float32
    assert whole.features.shape[1] == whole.facts.n_weights
    assert part.features.dtype == np.float16 and part.features.shape[1] == 16
    assert part.norm2 == pytest.approx(whole.norm2)


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
        own = by_response.features[slice(*by_response.edge_start[n : n + 2])]
        sums = [np.exp(log_p[answers == a]) @ own[answers == a] for a in classes]
        means = np.array(sums) / np.array(mass)[:, None]
        joined_own = slice(*by_answer.edge_start[n : n + 2])
        assert by_answer.features[joined_own] == pytest.approx(means, abs=1e-4)


def test_unseen_tokens_are_leaves_where_these_are_likely_enough(part):
    unseen = []
    for response in (part, measured(small_model(), weights=16, min_novel=3e-3)):
        log_p = np.concatenate([paths_of(response, n)[0] for n in range(len(PROMPTS))])
        unseen.append(np.sort(np.exp(log_p[response.leaf_unseen])))
    assert 0 < len(unseen[1]) < len(unseen[0])
    assert unseen[1] == pytest.approx(unseen[0][unseen[0] > 3e-3], rel=1e-3)


def test_a_tree_is_cut_at_its_most_edges_and_the_cut_is_counted(part):
    cut = measured(small_model(), weights=16, max_edges=9)
    assert part.facts.capped == 0 and np.diff(part.edge_start).min() > 9
    assert cut.facts.capped == 2 and np.diff(cut.edge_start).max() <= 9
    assert cut.facts.left_out > part.facts.left_out
    for n in range(len(PROMPTS)):
        # The likeliest response is kept.
        assert paths_of(cut, n)[0].max() == pytest.approx(paths_of(part, n)[0].max())


def test_a_model_whose_code_looks_at_its_tokens_is_refused_in_one_line():
    sizes = {"vocab_size": 6, "n_embd": 8, "n_layer": 1, "n_head": 2, "pad_token_id": 1}
    with pytest.raises(UserError, match="measure: GPT2LMHeadModel gives no gradients for") as found:
        measured(causal("GPT2", **sizes, n_positions=16, attn_implementation="eager"))
    assert "\n" not in str(found.value)


def test_what_cannot_be_measured_is_refused_in_one_line(monkeypatch):
    for changes, message in (
        ({"min_p": 0.99}, "min_p = 0.99: problem a has no response that likely"),
        ({"unit": "answer", "checkpoints": [dict]}, "growth: can be measured with unit = token"),
        ({"checkpoints": [dict]}, "growth: the run's checkpoints have the weights that it started"),
    ):
        with pytest.raises(UserError, match=message) as refused:
            measured(small_model(), **changes)
        assert "\n" not in str(refused.value)
    for unit in ("token", "answer"):
        with pytest.raises(UserError, match="measure: each problem has a single response"):
            measured(certain_model(), unit=unit)
    broken = small_model()
    with torch.no_grad():
        broken.model.norm.weight[0] = float("nan")
    with pytest.raises(UserError, match="measure: a logit is not finite"):
        measured(broken, sampled=small_model())
    monkeypatch.setattr("real.measure.gradients.free_bytes", lambda device: 10**5)
    words = r"gradients of \d+ edges on \d+ of \d+ weights need.*set lora_rank or unit answer"
    with pytest.raises(UserError, match=words):
        measured(small_model())
    monkeypatch.setattr("real.measure.gradients._GRADIENT_BYTES", 1)
    gradients, every = every_weight(small_model())
    monkeypatch.setattr("real.measure.gradients.free_bytes", lambda device: 39 * len(every))
    with pytest.raises(UserError, match=words):  # to draw a weight takes numbers of all
        gradients.check_memory(1, 1)


def test_weights_are_drawn_by_the_size_of_their_gradients():
    gradients, every = every_weight(small_model())
    contexts, tokens = [[1, 2], [3, 1, 4]], [(5,), (2,)]
    features, norm2, _ = gradients(contexts, tokens, every)
    size = np.sqrt((features.astype(float) ** 2 / norm2[:, None]).mean(0))
    assert gradients.sizes(contexts, tokens) == pytest.approx(size, rel=1e-4)
    norms, large = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        drawn, scale = choose_weights(gradients, contexts, tokens, 200, rng)
        assert len(set(drawn)) == len(drawn) == 200
        norms.append(features[0, drawn].astype(float) ** 2 @ scale)
        large.append(size[drawn].mean())
    # Sums over the drawn weights estimate those over all.
    assert np.mean(norms) == pytest.approx(norm2[0], abs=4 * np.std(norms) / np.sqrt(40))
    assert np.mean(large) > 1.2 * size.mean()


def test_growth_is_zero_without_training_and_weighs_what_each_weight_stands_for():
    model = small_model()
    edges = [[1, 2]] * 6, range(6), [0] * 6
    gradients, every = every_weight(model)
    ones = np.ones(len(every), np.float32)
    growth = Growth(gradients, edges, every, ones)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert growth.at(before) == pytest.approx(0.0, abs=1e-8)
    moved = {name: p + 0.05 * torch.randn_like(p) for name, p in before.items()}
    assert growth.at(moved) > 0
    assert all((p == before[name]).all() for name, p in model.named_parameters())
    # A weight that stands for two counts as one that is there twice.
    scale = np.where(every < 50, 2, ones).astype(np.float32)
    repeated = np.concatenate([every, every[:50]])
    twice = Growth(gradients, edges, repeated, np.ones(len(repeated), np.float32)).at(moved)
    assert Growth(gradients, edges, every, scale).at(moved) == pytest.approx(twice, rel=1e-4)
    assert growth.at(moved) != pytest.approx(twice, rel=1e-3)


def test_growth_is_that_of_the_median_node(monkeypatch):
    """Planted: the gradients of seven nodes change by known shares, those of one enormously."""
    shares_V = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 1e6])
    rng = np.random.default_rng(0)
    # Two tokens of equal probability: opposite gradients, which the softmax leaves alone.
    start_ED = np.repeat(rng.normal(size=(7, 8)), 2, axis=0) * np.tile([[1.0], [-1.0]], (7, 1))
    changed_ED = rng.normal(size=(14, 8))
    for e in range(14):
        wanted = shares_V[e // 2] * (start_ED[e] ** 2).sum()
        changed_ED[e] *= np.sqrt(wanted / (changed_ED[e] ** 2).sum())
    planted = iter([start_ED, start_ED + changed_ED])
    monkeypatch.setattr(Growth, "gradients", lambda self: next(planted).astype(np.float32))
    half = np.full(14, np.log(0.5))
    monkeypatch.setattr("real.measure.gradients.next_log_probs", lambda *_: half)
    edges = [[1]] * 14, [0, 1] * 7, np.repeat(range(7), 2).tolist()
    gradients = Gradients(small_model(), TEMPERATURE)
    growth = Growth(gradients, edges, np.arange(8), np.ones(8, np.float32))
    assert growth.at({}) == pytest.approx(0.4, rel=1e-4)


def test_growth_is_measured_at_the_likeliest_nodes_whatever_weights_are_drawn(monkeypatch):
    model, made = small_model(), Mock(side_effect=Growth)
    monkeypatch.setattr("real.measure.measuring.Growth", made)
    moved = {name: 1.01 * p.detach() for name, p in model.named_parameters()}
    for settings in ({"weights": 16}, {"weights": 32}):
        measured(model, [lambda: moved], **settings)
    first, second = (call.args[1] for call in made.call_args_list)
    assert first == second
    monkeypatch.setattr("real.measure.measuring.GROWTH_NODES", len(PROMPTS))
    growth = measured(model, [lambda: moved], weights=16).facts.growth
    distance = 0.01 * sum(float(p.detach().square().sum()) for p in model.parameters()) ** 0.5
    again = Growth(*made.call_args.args)
    assert growth == pytest.approx(again.at(moved) / distance, rel=1e-4)
    # No prefix is likelier than the empty one.
    contexts = made.call_args.args[1][0]
    assert {tuple(context) for context in contexts} == {tuple(p) for p in PROMPTS}


def test_first_order_changes_are_those_of_all_weights():
    model = small_model()
    gradients, every = every_weight(model)
    named = {name: p.detach() for name, p in model.named_parameters()}
    moved = {name: p + 0.1 * torch.randn_like(p) for name, p in named.items()}
    left_out = next(iter(moved))
    del moved[left_out]  # unchanged
    change = gradients.change(moved)
    assert (change[: named[left_out].numel()] == 0).all()
    assert change.square().sum() == pytest.approx(
        sum(float((moved[n] - named[n]).square().sum()) for n in moved), rel=1e-5
    )
    features, _, moved_KE = gradients(CONTEXTS, TOKENS, every, [change, 0 * change])
    assert moved_KE[0] == pytest.approx(features @ change.numpy(), rel=1e-4, abs=1e-6)
    assert (moved_KE[1] == 0).all()


def test_the_sampling_error_is_that_of_unit_gradients():
    norm2_E = np.array([4.0, 1.0, 0.0])  # without a gradient there is no error
    moved_KE, estimated_KE = np.array([[2.0, 1.0, 0.0]]), np.array([[4.0, 0.0, 9.0]])
    assert sampling_error(moved_KE, estimated_KE, norm2_E) == pytest.approx((1 + 1) / (1 + 1))
    assert sampling_error(moved_KE, 1.1 * moved_KE, norm2_E) == pytest.approx(0.01)
