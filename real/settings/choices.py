"""Names that settings choose from, and the text put behind prompts."""

from typing import Literal

AnswerCheck = Literal["auto", "strings", "math"]
Attention = Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3"]
ChatTemplate = Literal["auto", "require", "off"]
EngineKind = Literal["auto", "transformers", "vllm", "vllm_inprocess", "vllm_server"]
Labels = Literal["votes", "truth"]
LogKind = Literal["tensorboard", "wandb", "trackio"]
LossKind = Literal["dapo", "grpo", "dr_grpo"]

BOX_REQUEST = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Put behind the prompts of problem files, unless the settings name another suffix."""
