"""Small random models and their measured token trees."""

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from real.measure import MeasureSettings
from real.measure.measuring import measure

PROMPTS = [[1, 2], [3, 1, 4]]
END, LONGEST, TEMPERATURE = 0, 3, 0.8
FACTS = {"task": "test", "model": {}, "problems": "", "problem_ids": ["a", "b"]}


def small_model(seed=0):
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=6, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=1, tie_word_embeddings=True,
        attn_implementation="eager",
    )  # fmt: skip
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
    config = MeasureSettings(**{"responses": 40, "min_p": 1e-6, "min_novel": 1e-6, **settings})
    return measure(
        model, PROMPTS, sample=sampler(model), answer_ids=answer_ids, max_tokens=LONGEST,
        temperature=TEMPERATURE, pad=END, config=config, facts=FACTS, checkpoints=checkpoints,
        seed=0,
    )  # fmt: skip
