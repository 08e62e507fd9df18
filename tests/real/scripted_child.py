"""An engine process without vLLM, and a model for it.

Tokens follow from the seeds, and it can be set to misbehave.
"""

import os
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file

from real.engines.child import main
from real.engines.rollouts import EngineDied, EngineError, SampledResponse, to_rollouts

COMMAND = (sys.executable, __file__)


class TinyModel(torch.nn.Module):
    """Four weights that sum to `total`."""

    def __init__(self, total):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((4,), total / 4))

    class config:
        @staticmethod
        def get_text_config():
            return None


class ScriptedHost:
    def __init__(self, settings):
        self.settings = settings
        self.version = -1
        self.total = 0.0
        self.refused_adapters = settings.get("refused_adapters")
        print("scripted engine: ready", flush=True)
        self.misbehave("start")

    def misbehave(self, doing):
        how = self.settings.get(doing)
        if how is None:
            return
        print(f"scripted engine: {how} in {doing}", flush=True)
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "exit":
            sys.exit(3)
        elif how == "grandchild":
            print(f"grandchild {subprocess.Popen(['sleep', '600']).pid}", flush=True)
            time.sleep(600)
        elif how == "died":
            raise EngineDied("scripted engine: it has died")

    def sample(self, prompts, n, sampling, seeds):
        self.misbehave("sample")
        if self.version < 0:
            raise EngineError("scripted engine: no weights")
        for _ in range(self.settings.get("steps", 0)):
            time.sleep(0.3)
            self.progress()

        def response(number):
            return SampledResponse(
                [number % 97, round(self.total)], [-0.5, -1.0], "stop", {str(self.version)}
            )

        rows = [[response(seed + i) for i in range(n)] for seed in seeds]
        rollouts = to_rollouts(rows, n, 0, self.version)
        if sampling.stats:
            rollouts.entropy_PV = torch.arange(len(rows) * n).view(-1, n).double()
            rollouts.certainty_PV = -rollouts.entropy_PV
        return rollouts

    def load(self, weights, version):
        self.misbehave("load")
        self.total = sum(float(weight.float().sum()) for _, weight in weights)
        self.version = version

    def adapt(self, adapters, version):
        loaded = load_file(adapters / "adapter_model.safetensors")
        self.total = 1000 + sum(float(weight.sum()) for weight in loaded.values())
        self.version = version

    def refusal(self, buckets):
        return None

    def release(self):
        self.version = -1


if __name__ == "__main__":
    main(ScriptedHost, sys.argv[1:])
