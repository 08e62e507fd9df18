"""TTRL-Guard in TRL's `GRPOTrainer`.

args = GuardGRPOConfig("out", guard="memory", num_generations=64, n_samples=32)
GuardGRPOTrainer(model, args, train_dataset).train()
"""

from packaging.specifiers import SpecifierSet
from trl import __version__ as trl_version

if not SpecifierSet("~=1.16.0").contains(trl_version, prereleases=True):
    raise ImportError(f"trl {trl_version}: needs 1.16.0 or a later 1.16; install that")

from real.trl.config import GuardGRPOConfig
from real.trl.trainer import GuardGRPOTrainer

__all__ = ["GuardGRPOConfig", "GuardGRPOTrainer"]
