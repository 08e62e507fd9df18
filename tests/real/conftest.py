from functools import partial

import pytest


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """The function of `rank_runs.server` that starts a run: torch is imported once."""
    from rank_runs import server

    with server() as run:
        yield partial(run, tmp_path_factory.mktemp("ranks"))


@pytest.fixture
def few_votes(monkeypatch):
    """Accuracy of a tiny model that has learnt nothing needs no 4096 responses."""
    from real.tiny import pretrain

    monkeypatch.setattr(pretrain, "measure", partial(pretrain.measure, n_problems=4, n_votes=4))


@pytest.fixture(scope="module")
def equality():
    from real.answers import Equality

    return Equality()


@pytest.fixture
def library_attention():
    """The attention of transformers, as on a GPU, for models already made and new ones."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa_attention_forward
    yield
    del ALL_ATTENTION_FUNCTIONS["sdpa"]  # what is registered counts again
