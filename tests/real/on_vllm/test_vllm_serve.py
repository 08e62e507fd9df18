"""The client against a real `vllm serve` on a CPU; weights go through a file there."""

import os
import signal
import subprocess
import sys

import pytest
import torch
from drawn import logprob_gap
from rank_runs import free_port
from small_models import seeded
from vllm_models import change, make_model

from lab.base.errors import UserError
from real.engines.rollouts import Sampling
from real.engines.vllm_server import VllmServerEngine

LONG = [[(7 * i) % 30 + 1 for i in range(100)]]
EIGHT = Sampling(8, temperature=0.7)


@pytest.fixture(scope="module")
def url(untied_folder, tmp_path_factory):
    port = free_port()
    words = [
        "--model", untied_folder, "--host", "127.0.0.1", "--port", str(port), "--dtype", "float32",
        "--block-size", "32", "--max-model-len", "256", "--logprobs-mode", "processed_logprobs",
        "--enable-scale-out", "--skip-tokenizer-init", "--enforce-eager",
    ]  # fmt: skip
    more = {
        "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words]
    log = tmp_path_factory.mktemp("serve") / "log"
    with log.open("w") as out:
        pipes = {"stdout": out, "stderr": out, "env": os.environ | more}
        server = subprocess.Popen(command, start_new_session=True, **pipes)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        print(log.read_text()[-2000:])  # shown if a test fails


def test_logprobs_weights_and_versions_through_a_server(url):
    model = make_model(tied=False)
    engine = VllmServerEngine(url, 600.0, (5, 6), head_dtype="float32")
    assert engine.max_model_len == 256
    for version in range(3):
        engine.update_weights(model, version)
        # The long prompt would show keys and values of old weights in the cache.
        rollouts = engine.sample(LONG, 8, EIGHT, seeded())
        assert logprob_gap(model, LONG, rollouts, 0.7) < 5e-5
        assert rollouts.version == version
        assert torch.equal(engine.sample(LONG, 8, EIGHT, seeded()).tokens_PNT, rollouts.tokens_PNT)
        change(model)
    assert logprob_gap(model, LONG, rollouts, 0.7) > 0.1
    engine.close()


def test_tied_embeddings_are_refused_without_a_gpu(url):
    engine = VllmServerEngine(url, 600.0, (5, 6))
    with pytest.raises(UserError, match="keeps the old output head"):
        engine.update_weights(make_model(tied=True), 0)
    engine.close()
