import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from unittest.mock import Mock, call

import pandas as pd
import pytest
import torch
from small_models import save_model, seeded

from lab.base.errors import UserError
from real import TrainConfig
from real.engines import vllm_server
from real.engines.rollouts import EngineDied, EngineError, Sampling
from real.engines.vllm_server import Http, VllmServerEngine
from real.model.policy import load_policy
from real.model.prepare import prepare_training
from real.tiny import CHECKPOINT

PROMPTS = [[1, 2, 3], [4]]
SAMPLING = Sampling(4, 0.7, 0.9)
VOCABULARY = 97

USUAL = {
    "/version": {"version": "0.32.0"},
    "/v1/models": {"data": [{"id": "m", "max_model_len": 20}]},
    "/server_info": {"vllm_config": {"model_config": {"logprobs_mode": "processed_logprobs"}}},
    "/reset_prefix_cache": {"success": True},
}


class Listener(ThreadingHTTPServer):
    request_queue_size = 256


class Server:
    """Answers like vLLM 0.32, unless `replies` says otherwise for a path."""

    def __init__(self):
        self.calls = []
        self.replies = {}
        self.version = "default"
        script = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, body = self.path.split("?")[0], json.loads(text or "null")
                script.calls.append((path, body))
                reply = script.replies.get(path, lambda _: script.usual(path, body))(body)
                status, content = reply if isinstance(reply, tuple) else (200, reply)
                data = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.http = Listener(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def usual(self, path, body):
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path == "/inference/v1/generate":
            params = body["sampling_params"]
            return {"choices": [self.choice(i, params["seed"]) for i in range(params["n"])][::-1]}
        return USUAL.get(path, {})

    def choice(self, index, seed):
        """Every second response is cut before its last token, a boxed digit of `small_models`."""
        number, is_whole = seed + index, (seed + index) % 2
        tokens = [number % VOCABULARY, 3 + number % 4][: 1 + is_whole]
        content = [{"token_id": token, "logprob": -0.5} for token in tokens]
        return {
            "index": index,
            "token_ids": tokens,
            "logprobs": {"content": content},
            "finish_reason": "stop" if is_whole else "length",
            "weight_versions": [{"version": self.version, "start": 0, "end": len(tokens)}],
        }

    def paths(self):
        return [path for path, _ in self.calls]


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(vllm_server, "FileTransfer", Mock())
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def connect(server, timeout=5.0, **more):
    return VllmServerEngine(server.url, timeout, (5, 6), **more)


@pytest.fixture
def engine(server):
    made = connect(server)
    made.update_weights("weights", 3)
    return made


def test_a_sample_asks_for_just_what_it_needs(server, engine):
    rollouts = engine.sample(PROMPTS, 4, SAMPLING, seeded())
    assert rollouts.version == 3
    assert rollouts.lengths_PN.tolist() == [[2, 1, 2, 1]] * 2
    assert rollouts.finished_PN.tolist() == [[True, False] * 2] * 2
    first = rollouts.tokens_PNT[..., 0].flatten()
    # In the order of the prompts.
    assert ((first - first[0]) % VOCABULARY).tolist() == list(range(8))
    bodies = [body for path, body in server.calls if path == "/inference/v1/generate"]
    assert sorted(body["token_ids"] for body in bodies) == sorted(PROMPTS)
    params = bodies[0]["sampling_params"]
    assert {**params, "seed": 0} == {
        "n": 4, "seed": 0, "temperature": 0.7, "top_p": 0.9, "max_tokens": 4, "logprobs": 0,
        "detokenize": False, "ignore_eos": True, "stop_token_ids": [5, 6],
    }  # fmt: skip


def test_new_weights_come_before_the_reset_and_the_version(server):
    engine = connect(server)
    with pytest.raises(EngineError, match="call update_weights"):
        engine.sample(PROMPTS, 4, SAMPLING, seeded())
    server.calls.clear()
    engine.update_weights("weights", 1)
    assert server.paths() == ["/reset_prefix_cache", "/update_weight_version"]
    transfer = engine.transfer
    engine.update_weights("weights", 2)
    engine.close()
    assert transfer.mock_calls == [call.send("weights"), call.send("weights"), call.close()]


def test_a_cache_that_is_not_emptied_is_an_error(server, engine):
    server.replies["/reset_prefix_cache"] = lambda _: {"success": False}
    with pytest.raises(EngineDied, match="prefix cache was not emptied"):
        engine.update_weights("weights", 4)
    with pytest.raises(EngineError, match="call update_weights"):
        engine.sample(PROMPTS, 4, SAMPLING, seeded())


@pytest.mark.parametrize(
    ("reply", "error", "message"),
    [
        (lambda _: (403, {"error": {"message": "Off."}}), EngineError, r"answered 403 \(Off\.\)"),
        (lambda _: (500, b"<html>boom"), EngineDied, r"answered 500 \(<html>boom\)"),
        (lambda _: b"not json", EngineError, "something that is no JSON"),
        (lambda _: {}, EngineError, "holds no choices"),
        (lambda _: {"choices": [{"index": 0}]}, EngineError, "lacks 'weight_versions'.*0.32"),
        (lambda _: {"choices": []}, EngineError, "0 responses to prompt 1 where 4 were asked"),
        ({"finish_reason": "abort"}, EngineDied, "ended by 'abort'"),
        ({"weight_versions": None}, EngineError, "version none of the weights instead of 3"),
        ({"logprobs": None}, EngineError, "lacks"),
        ({"token_ids": []}, EngineError, "has 0 tokens"),
    ],
)
def test_wrong_answers_are_one_line(server, engine, reply, error, message):
    """An answer, or what is changed in its choices."""
    if isinstance(reply, dict):
        choices = [server.choice(0, 0) | reply | {"index": index} for index in range(4)]
        server.replies["/inference/v1/generate"] = lambda _: {"choices": choices}
    else:
        server.replies["/inference/v1/generate"] = reply
    with pytest.raises(error, match=message) as caught:
        engine.sample(PROMPTS, 4, SAMPLING, seeded())
    assert "\n" not in str(caught.value)
    assert type(caught.value) is error


def test_a_server_that_hangs_is_an_error_in_time(server, engine):
    server.replies["/inference/v1/generate"] = lambda _: time.sleep(20)
    engine.http.timeout = 1.0
    began = time.monotonic()
    with pytest.raises(EngineDied, match=r"no answer within 1 s; raise engine_timeout"):
        engine.sample(PROMPTS, 4, SAMPLING, seeded())
    assert time.monotonic() - began < 15


def test_a_server_that_is_gone_is_an_error(server, engine):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(EngineDied, match=r"cannot be reached \(.*\); is it running\?"):
        engine.sample(PROMPTS, 4, SAMPLING, seeded())
    with pytest.raises(EngineDied, match="is it running"):
        connect(server, timeout=0.5)


RAW = {"vllm_config": {"model_config": {"logprobs_mode": "raw_logprobs"}}}
PRECISE = {"logprobs_mode": "processed_logprobs", "dtype": "torch.float32"}
ROUNDED = {"logprobs_mode": "processed_logprobs", "dtype": "torch.bfloat16", "hf_overrides": {}}


@pytest.mark.parametrize(
    ("path", "reply", "message"),
    [
        ("/version", lambda _: {"version": "0.26.0"}, r"vLLM 0\.26\.0 is not supported, 0\.32 and"),
        ("/version", lambda _: {}, "vLLM None is not supported"),
        ("/server_info", lambda _: (404, {}), "VLLM_SERVER_DEV_MODE=1"),
        ("/server_info", lambda _: RAW, "gives raw_logprobs.*--logprobs-mode processed_logprobs"),
    ],
)
def test_a_server_started_wrongly_is_refused(server, path, reply, message):
    server.replies[path] = reply
    with pytest.raises(UserError, match=message):
        connect(server)


def test_the_server_s_logits_must_be_as_precise_as_the_trainer_s(server):
    model = dict(ROUNDED)
    server.replies["/server_info"] = lambda _: {"vllm_config": {"model_config": model}}
    connect(server)
    with pytest.raises(UserError, match=r"logits are torch.bfloat16, the trainer's float32; start"):
        connect(server, head_dtype="float32")
    model["hf_overrides"] = {"head_dtype": "float32"}
    connect(server, head_dtype="float32")


def test_two_ranks_share_servers_and_see_the_votes_of_one(ranks, tmp_path):
    """Answers follow from seeds alone, so the visits do not depend on who asks which server.

    The model has an output head of its own, which a server without a GPU needs.
    """
    model = str(save_model(tmp_path / "untied", positions=64))

    def run(name, world, n_servers):
        servers = [Server() for _ in range(n_servers)]
        for one in servers:
            one.replies |= {"/v1/models": lambda _: {"data": [{"max_model_len": 64}]}}
            one.replies |= {"/server_info": lambda _: {"vllm_config": {"model_config": PRECISE}}}
        config = {
            "model": model, "n_problems": 4, "n_votes": 8, "n_samples": 4, "epochs": 1,
            "batch_size": 2, "engine": "vllm_server", "max_unread": 1.0, "tis_cap": 0.0,
            "max_mismatch": 1e3,  # these servers answer at random
            "engine_url": ",".join(one.url for one in servers),
        }  # fmt: skip
        ended = ranks(name, config, world)
        assert ended.codes == [0] * world, ended.lines
        return servers, ended.trace.visits

    (alone,), expected = run("served-1", 1, 1)
    assert expected["label"].nunique() > 1
    servers, visits = run("served-2", 2, 2)
    pd.testing.assert_frame_equal(visits, expected)
    n_updates = alone.paths().count("/update_weight_version")
    asked = [one.paths().count("/inference/v1/generate") for one in servers]
    assert [one.paths().count("/update_weight_version") for one in servers] == [n_updates] * 2
    assert asked[0] == asked[1] > 0
    few, visits = run("shared", 2, 1)  # one server for two ranks
    pd.testing.assert_frame_equal(visits, expected)
    assert few[0].paths().count("/update_weight_version") == n_updates


def test_adapters_are_not_merged_to_describe_weights(monkeypatch):
    """Sharded ones are merged by all ranks together, and the one that sends describes alone."""
    layer = pytest.importorskip("peft.tuners.lora.layer")
    model = load_policy(CHECKPOINT, "cpu").model
    prepare_training(model, TrainConfig(lora_rank=2).settled())
    base = SimpleNamespace(WeightSource=object, ParamMeta=lambda *values: values)
    source = vllm_server.weight_source(base, model, torch.bfloat16)
    with monkeypatch.context() as alone:
        alone.setattr(layer.Linear, "get_delta_weight", Mock(side_effect=AssertionError))
        described = source.metadata()
    assert described == [(name, weight.dtype, tuple(weight.shape)) for name, weight in source]


def test_a_server_that_takes_no_weights_over_nccl_is_told_in_one_line(monkeypatch):
    """Such as one that was started without --weight-transfer-config."""
    refused = Mock(side_effect=OSError("500 Server Error"))
    monkeypatch.setattr(vllm_server.NcclTransfer, "_connect", refused)
    with pytest.raises(EngineDied, match=r"sending weights failed \(500 Server Error\)$"):
        vllm_server.NcclTransfer(Http("http://127.0.0.1:1", 1.0)).send("a model")


@pytest.mark.parametrize("url", ["", "localhost:8000", "file:///etc/passwd", "http://"])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UserError, match="must look like http"):
        Http(url, 1.0)


def test_prompts_that_do_not_fit_are_refused_here(engine):
    with pytest.raises(UserError, match="exceed the model's 20 positions"):
        engine.sample([[1] * 17], 1, SAMPLING, seeded())
