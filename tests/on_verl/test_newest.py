"""The weekly check sees what the plugin uses of verl, and what a newer verl lacks."""

import ast
import runpy
from pathlib import Path

NEWEST = runpy.run_path(str(Path(__file__).with_name("newest.py")))
TRAINER = "verl.trainer.ppo.v1.trainer_sync"


def names_in(text):
    return [name for name, _ in NEWEST["used"](ast.parse(text))]


def test_imports_overrides_and_attributes_are_found():
    text = f"""
from {TRAINER} import PPOTrainerSync, NoSuchTrainer
from verl.no_such_module import anything
import transfer_queue as tq

class Mine(PPOTrainerSync):
    def _balance_batch(self):
        self._compute_advantage(tq.kv_clear, tq.no_such_function, self.my_own)
"""
    own = [f"{TRAINER}.PPOTrainerSync{name}" for name in ("", "._balance_batch")]
    own += [f"{TRAINER}.PPOTrainerSync._compute_advantage"]
    assert set(names_in(text)) == {*own, "transfer_queue", "transfer_queue.kv_clear"}


def test_the_plugin_s_own_use_is_described():
    points = NEWEST["points"]()
    signature, body = points[f"{TRAINER}.PPOTrainerSync._balance_batch"]
    assert signature.startswith("(self, batch") and len(body) == 16
