"""Small random models and their measured token trees."""

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from real.engines.rollouts import Sampling
from real.engines.transformers_engine import TransformersEngine
from real.measure import MeasureSettings
from real.measure.measuring import Subject, measure

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


def answer_ids(problem, responses):
    ids = np.array([tokens[0] - 1 for tokens in responses])  # the end token is unparseable
    return ids, 0, [str(a) for a in range(5)]


def measured(model, checkpoints=(), sampled=None, **settings):
    """The response of a model; `sampled` is another one that the responses are drawn from."""
    config = MeasureSettings(**{"responses": 40, "min_p": 1e-6, "min_novel": 1e-6, **settings})
    engine = TransformersEngine(sampled or model, (END,), END)
    subject = Subject(
        model=model, prompts=PROMPTS, engine=engine, sampling=Sampling(LONGEST, TEMPERATURE),
        read=answer_ids, seed=0,
    )  # fmt: skip
    return measure(subject, config, FACTS, checkpoints)
