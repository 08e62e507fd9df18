"""The real vLLM on a CPU. Without it these tests are skipped, but in CI they fail."""

import os

import pytest
from vllm_models import make_model

from lab.base.errors import installed


@pytest.fixture(scope="session", autouse=True)
def needs_vllm():
    if installed("vllm"):
        return
    if os.environ.get("CI"):
        pytest.fail("vLLM is not installed, and CI must test with it: make test-vllm")
    pytest.skip("vLLM is not installed: make test-vllm")


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(path)
    return path


@pytest.fixture(scope="session")
def untied_folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("untied")
    make_model(tied=False).save_pretrained(path)
    return path
