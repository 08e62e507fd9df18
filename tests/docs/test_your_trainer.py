import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from real.tiny import CHECKPOINT

ROOT = Path(__file__).parents[2]
MORE = f"""
assert state.visits.tolist() == [EPOCHS] * N
start = AutoModelForCausalLM.from_pretrained({str(CHECKPOINT)!r})
assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), start.parameters()))
assert state.match_rates[:, -1].mean() > state.match_rates[:, 1].mean() + 0.02
advantages = streams.majority + streams.minority
plain = decision.beta == 0  # no minority stream: the advantages are those of the majority
assert plain.any() and np.allclose(advantages[plain], both[0][plain])
assert np.any(advantages[plain]) and np.array_equal(streams.weight, decision.weight)
row = torch.tensor([[5, 1, 0, 0], [5, 6, 7, 1]])  # 1 ends, 0 pads
MASK
assert mask.tolist() == [[True, True, False, False], [True] * 4]
old, ids = state, reader.ids(0, ["\\\\boxed{{77}}"]).tolist()
STATE
for name, array in asdict(old).items():
    assert np.array_equal(getattr(state, name), array)
assert reader.ids(0, ["\\\\boxed{{77}}"]).tolist() == ids
"""


@pytest.mark.slow
def test_the_loop_of_ones_own_trains_and_its_state_is_restored(tmp_path):
    text = (ROOT / "docs" / "your-trainer.md").read_text()
    loop, saving, _ = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len([line for line in loop.splitlines() if line]) <= 40
    mask = textwrap.dedent("".join(re.findall(r" +(?:ends|mask) = .*\n", loop)))
    program = loop + MORE.replace("STATE", saving).replace("MASK", mask)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
