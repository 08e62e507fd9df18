"""Settings of verl and of the trainer side by side: the template of `guard-verl config`."""

from __future__ import annotations

import re
from pathlib import Path

TEMPLATE = Path(__file__).with_name("cell.sh").read_text(encoding="utf-8")
"""The script, with names in braces for values."""
VERL_NAMES = {own: verls for verls, own in re.findall(r"^  ([\w.]+)=\{(\w+)\}$", TEMPLATE, re.M)}
"""The trainer's name of a setting, or one of the script's own, to verl's."""
LOSSES = {
    "dapo": "token-mean",
    "grpo": "seq-mean-token-mean",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""Average of the loss, the trainer's name to verl's."""
