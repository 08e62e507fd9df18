"""Groups of settings, which pieces of a run read and `TrainConfig` is made of. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from guard_core.config import (
    Count,
    Interval,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    Share,
    ShareBelowOne,
    check_fields,
)
from lab.base.errors import UserError
from lab.base.roles import Role
from real.answers.boxes import Extract
from real.settings.engines import ENGINES, EngineKind, EngineName

TinyTask = Literal["arithmetic", "collatz", "closed"]

BOX_REQUEST = "\nPlease reason step by step, and put your final answer within \\boxed{}."
"""Put behind the prompts of problem files, unless the settings name another suffix."""
EMBEDDED = "tiny"  # the model of a tiny task, by the setting `model`


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMap:
    """Fields of a problem file; those left out are found by their usual names.

    A dot reaches into an object, as in `reward_model.ground_truth`. Empty text stands for "none":
    no reference answers, or ids made from the prompts.
    """

    prompt: str | None = None
    """Text, or a list of chat messages; usual: prompt, problem, question, input."""
    answer: str | None = None
    """Usual: answer, solution, ground_truth, target, label, reward_model.ground_truth."""
    id: str | None = None
    """Usual: id, unique_id, idx; without one a hash of the prompt is the id."""

    def __post_init__(self) -> None:
        check_fields(self, error=UserError, prefix="fields.")
        if self.prompt == "":
            raise UserError("fields.prompt = '': there are no problems without prompts; name one")


class Settings:
    """A group of settings, or several; a UserError where one is out of bounds or two contradict."""

    group: ClassVar[str | None] = None
    """Title under which help shows the settings; None where each has that of its own group."""

    def __init_subclass__(cls, group: str | None = None) -> None:
        cls.group = group

    def __post_init__(self) -> None:
        check_fields(self, error=UserError)
        for group in reversed(type(self).__mro__):
            # Of each group alone, so that none has to call those of the others.
            vars(group).get("_check", lambda _: None)(self)


@dataclass(frozen=True, kw_only=True)
class ProblemSettings(Settings, group="problems"):
    """Model, problems, prompts, and how answers are read."""

    model: Annotated[str | None, Role.SOURCE, Role.MEASURED] = None
    """Local folder of a causal language model, hf:owner/name, or tiny, the embedded one as None."""
    tiny_task: Annotated[TinyTask, Role.MEASURED] = "arithmetic"
    """Embedded task: last-digit arithmetic with planted rivals, Collatz steps without any, or ten
    closed answers."""
    tiny_verifies: Annotated[bool, Role.MEASURED] = False
    """Tiny arithmetic: start from the checkpoint that was also taught to judge, as coverrl needs;
    another model if `model` names one that `guard-train make-tiny --verifies` made."""
    tiny_wrong: Annotated[float, Interval("[0.2, 0.6]"), Role.MEASURED] = 0.4
    """Tiny task closed: share of problems whose majority before training is wrong."""
    tiny_lead: Annotated[Literal[20, 40, 60], Role.MEASURED] = 40
    """Tiny task closed: by how many percent of the votes the wrong answer leads in these."""
    problem_seed: Annotated[Natural, Role.MEASURED] = 0
    """Tiny task: seed of the problem set; every published number is of 0 unless it says so."""
    chat_template: Annotated[Literal["auto", "require", "off"], Role.MEASURED] = "auto"
    """Use the tokenizer's chat template if it has one, refuse a model without one, or never."""
    template_options: Annotated[dict[str, bool | int | float | str], Role.MEASURED] = field(
        default_factory=dict, hash=False
    )
    """Variables for the chat template, such as enable_thinking; unknown ones are refused."""
    system_prompt: Annotated[str | None, Role.MEASURED] = None
    """First message of every prompt, in place of one in the problem file."""
    problems: Annotated[str | None, Role.SOURCE, Role.MEASURED] = None
    """File (.json .jsonl .parquet), aime24, aime25, amc, math500 or hf:NAME; tiny task if None."""
    fields: Annotated[FieldMap, Role.MEASURED] = field(default_factory=FieldMap)
    """Fields of the problem file; those left out are found by their usual names."""
    data_dir: Annotated[str | None, Role.OPERATIONAL] = None
    """Folder of aime24.json, aime25.json, amc.json, math500.json; GUARD_DATA if None."""
    hub: Annotated[bool, Role.OPERATIONAL] = False
    """Fetch a named problem set without a file from the Hugging Face hub."""
    n_problems: Annotated[Count | None, Role.MEASURED] = None
    """Take only the first so many problems; if None 64 of the tiny task, all of a file."""
    n_held_out: Annotated[Natural, Role.UNSIMULATED] = 0
    """So many problems that follow these are evaluated with them and never trained on."""
    prompt_suffix: Annotated[str | None, Role.MEASURED] = None
    """Text put behind every prompt; if None nothing for the tiny task, a request for a box else."""
    max_prompt_tokens: Annotated[Count, Role.MEASURED] = 1024
    """Longer prompts are left out, counted and reported."""
    answer_check: Annotated[Literal["auto", "strings", "math"], Role.MEASURED] = "auto"
    """Equality of answers: `strings` by their canonical strings, `math` also by their values;
    `auto` is strings for the tiny task, math else."""
    extract: Annotated[Extract, Role.MEASURED] = "strict"
    """Answer of a vote: `strict` is its last box, `flexible` its last number where it has none."""
    eval_extract: Extract | None = None
    """The same for evaluations, which record pass@1 by both; if None as for votes."""

    def _check(self) -> None:
        if self.problems is not None and self.model is None:
            raise UserError(
                f"problems = {self.problems}: needs a model; name a folder or hf:owner/name with "
                "--model, or --model tiny for the embedded one of last-digit arithmetic"
            )
        if self.tiny_task != "closed" and (self.tiny_wrong, self.tiny_lead) != (0.4, 40):
            raise UserError("tiny_wrong, tiny_lead: for tiny_task = closed alone; leave them out")
        for name in ("tiny_task", "tiny_verifies", "problem_seed") if self.problems else ():
            if (value := getattr(self, name)) not in ("arithmetic", 0):
                raise UserError(
                    f"{name} = {str(value).lower()}: problems = {self.problems} are not the tiny "
                    "task; leave one of the two out"
                )
        if self.tiny_verifies and self.tiny_task != "arithmetic":
            raise UserError(
                f"tiny_verifies = true: no model of tiny_task = {self.tiny_task} was taught to "
                "judge; leave one of the two out"
            )

    @property
    def is_tiny(self) -> bool:
        """The problems are those of the embedded tiny task."""
        return self.problems is None

    @property
    def own_model(self) -> str | None:
        """The setting `model`; None for an embedded checkpoint."""
        return None if self.model == EMBEDDED else self.model


@dataclass(frozen=True, kw_only=True)
class VoteSettings(Settings, group="sampling"):
    """Numbers of responses, where they end, and the distribution that they are drawn from."""

    max_response_tokens: Annotated[Count | None, Role.MEASURED] = None
    """Responses end here at the latest; if None 22 for the tiny task, 1024 else."""
    stop: tuple[str, ...] = ()
    """Texts after which a response ends, as after an end token; they stay in it."""
    max_unread: Annotated[Share, Role.OPERATIONAL] = 0.5
    """A run is refused if more of a pilot's responses hold no answer, and ends when in more of a
    batch's problems no vote holds one; 1 goes on in any case."""
    flips_below: Annotated[Share | None, Role.OPERATIONAL] = None
    """A run ends after visit 2 unless fewer than this share of the labels flip there. With TTRL and
    .1 it is a rule for the learning rate: divide by three until a run goes on."""
    max_mismatch: Annotated[NotNegative, Role.OPERATIONAL] = 0.1
    """A run ends when a batch's `mismatch_kl`, in nats a token, exceeds it: the engine samples from
    another distribution than the one that is trained."""

    n_votes: Count = 64
    """V, responses per visit that vote."""
    n_samples: Annotated[int, Interval("[2, inf)")] = 32
    """K, the first of them that are trained on; a group of one teaches nothing."""

    temperature: Annotated[Positive, Role.MEASURED] = 0.6
    """Sampling temperature of the votes; the loss takes log-probs at this temperature."""
    top_p: PositiveShare = 1.0
    """Nucleus of the votes; below 1 the ratio in the loss ignores the cut."""
    max_rows: Annotated[Count, Role.OPERATIONAL] = 512
    """Responses that are sampled at once; a matter of memory and speed."""

    def _check(self) -> None:
        if self.n_samples > self.n_votes:
            raise UserError(
                f"n_samples = {self.n_samples}: must be at most n_votes = {self.n_votes}"
            )
        if "" in self.stop:
            raise UserError("stop = '': every response holds it; name texts, or leave it out")


@dataclass(frozen=True, kw_only=True)
class EngineSettings(Settings, group="engine"):
    """The engine that samples, and the transfer of weights to it."""

    engine: Annotated[Literal["auto", EngineName], Role.UNSIMULATED] = "auto"
    """Engine that samples: `auto` is vllm for a model on a GPU where it is installed, else
    `transformers`, which samples with the trainer's model, `vllm` in its own process,
    `vllm_inprocess`, or `vllm_server` at `engine_url`."""
    engine_url: Annotated[str | None, Role.OPERATIONAL] = None
    """Address of a running `vllm serve`, such as http://127.0.0.1:8000, or of several, between
    commas, which the ranks share in turn."""
    engine_timeout: Annotated[Positive, Role.OPERATIONAL] = 900.0
    """Seconds without a sign of life after which a vLLM engine counts as hung."""
    restart_engine: Annotated[Natural, Role.OPERATIONAL] = 0
    """Restarts of an engine that died or hung, with the last weights."""
    engine_exchange: Annotated[str | None, Role.OPERATIONAL] = None
    """Folder for the exchange with engine `vllm`; if None /dev/shm, or that of temporary files."""
    engine_memory: Annotated[PositiveShare | None, Role.OPERATIONAL] = None
    """Share of the GPU's memory that vLLM takes; if None all that the trainer leaves."""
    engine_tp: Annotated[Count, Role.OPERATIONAL] = 1
    """Ranks that share one engine `vllm`, which splits every matrix over their GPUs."""
    engine_adapters: Annotated[bool | None, Role.OPERATIONAL] = None
    """Send the engine `vllm` adapters alone, which it applies; else the merged weights; if None,
    adapters where weights are bfloat16: merged ones round the first updates away."""
    engine_quantization: Annotated[Literal["none", "fp8"], Role.UNSIMULATED] = "none"
    """Weights with which vLLM samples: fp8 rounds them as they are loaded and reads half as many
    bytes a token; `tis_cap` corrects the loss for it. Not measured."""
    tis_cap: Annotated[NotNegative | None, Role.UNSIMULATED] = None
    """Truncated importance sampling: multiply each token's loss by min(pi_trainer / pi_engine,
    this), by one more forward pass; 0 never; if None, 2 for vLLM's bfloat16, else 0."""
    async_level: Literal[0, 1] = 0
    """1 samples the votes of the next batch while this one trains, with the weights before that."""

    @property
    def engine_kind(self) -> EngineKind:
        """What the engine can do; `auto` that is not settled counts as `transformers`."""
        return ENGINES["transformers" if self.engine == "auto" else self.engine]


@dataclass(frozen=True, kw_only=True)
class OptimSettings(Settings, group="optim"):
    """Batches, learning rate and AdamW."""

    epochs: Count = 12
    """Visits of every problem."""
    batch_size: Count = 8
    """P, problems per batch of rollouts."""
    mini_batch: Count = 1
    """Problems per optimizer step."""
    lr: Annotated[Positive | None, Role.ARM] = None
    """Peak learning rate; if None 3e-4 for the tiny task, the paper's 5e-7 else."""
    step_factor: Annotated[Positive, Role.ARM] = 1.0
    """Constant factor on the learning rate, the control of matched effort."""
    warmup_ratio: Share = 0.03
    """Share of optimizer steps with growing learning rate; a cosine to 0 follows."""
    weight_decay: Share = 0.01
    """AdamW's decoupled weight decay."""
    max_grad_norm: Positive = 1.0
    """Gradients are scaled down to this L2 norm."""

    ema_decay: Annotated[ShareBelowOne, Role.ARM] = 0.0
    """Decay per optimizer step of a moving average of the weights, which evaluations and the saved
    model then use; votes and training go on with the weights themselves. 0 keeps none."""


@dataclass(frozen=True, kw_only=True)
class LossSettings(Settings, group="loss"):
    """The loss of a mini-batch."""

    loss: Literal["dapo", "grpo", "dr_grpo"] = "dapo"
    """Average over tokens, under TRL's names: `dapo` over all tokens of the mini-batch, `grpo`
    within each response and then over responses, `dr_grpo` sums over responses times
    `max_response_tokens`. It sets nothing else: DAPO's clip is `clip_high = 0.28`, its dynamic
    sampling `drop_uniform`, Dr. GRPO's advantages the guard's `advantage_scale = "none"`."""
    old_logprobs: Annotated[Literal["engine", "trainer"], Role.UNSIMULATED] = "engine"
    """The ratio starts from the log-probs of the engine that sampled or, as in verl, those of the
    trainer before a batch's first update, which take a pass; with `tis_cap` always from these."""
    clip_low: PositiveShare = 0.2
    """The probability ratio is clipped from below at 1 - clip_low."""
    clip_high: Positive = 0.2
    """The probability ratio is clipped from above at 1 + clip_high."""
    drop_uniform: bool = False
    """Problems whose rewards are all equal leave the batch, as DAPO does it."""
    max_num_gen_batches: Annotated[Count, Role.UNSIMULATED] = 1
    """Batches sampled at most to fill one after `drop_uniform`, as in verl; 1 fills none."""
    mask_truncated: bool = False
    """Leave responses out of the loss that did not end within `max_response_tokens`."""
    max_tokens_per_microbatch: Annotated[Count, Role.OPERATIONAL] = 16384
    """Tokens per forward pass; changes memory and speed, never the gradient."""
    kl_coef: Annotated[NotNegative, Role.ARM] = 0.0
    """Factor on the KL divergence from the model before training; at 0 no such model is kept."""
    max_bad_steps: Annotated[Count, Role.OPERATIONAL] = 10
    """Steps in a row without finite log-probs, loss, gradient or update that end the run."""

    def scores_anew(self, cap: float | None) -> bool:
        """Return whether a batch is scored once more before its update, given its `tis_cap`."""
        return bool(cap) or self.old_logprobs == "trainer"


@dataclass(frozen=True, kw_only=True)
class MemorySettings(Settings, group="memory"):
    """What is trained and kept of the model, and where."""

    lora_rank: Natural = 0
    """Train low-rank adapters of this rank in place of the weights; 0 trains the weights."""
    lora_alpha: Annotated[Positive, Role.UNSIMULATED] = 32.0
    """The adapters' product is scaled by `lora_alpha / lora_rank`."""
    lora_targets: Annotated[str, Role.UNSIMULATED] = "all-linear"
    """Ends of the names of linear layers to adapt, such as `q_proj,v_proj`, or all but the head;
    experts that share one tensor are none."""
    gradient_checkpointing: Annotated[bool, Role.OPERATIONAL] = False
    """Keep no activations of the layers but compute them again: a third slower, far smaller."""
    kept_layers: Annotated[Natural, Role.OPERATIONAL] = 0
    """Layers that keep their activations all the same; `guard-train plan` names how many fit."""
    compile_layers: Annotated[bool, Role.OPERATIONAL] = False
    """Compile the layers by torch, which fuses what lies between products; needs a C++ compiler.
    Sampling stays as it is. Not measured."""
    attention: Annotated[
        Literal["auto", "eager", "sdpa", "flash_attention_2", "flash_attention_3"], Role.OPERATIONAL
    ] = "auto"
    """Kernel; `auto` is the library's (sdpa); flash_attention_2, _3 pack rows without padding."""
    fsdp_size: Annotated[Natural, Role.UNSIMULATED] = 0
    """Ranks that share one copy of the model, as in verl; 0 shares one among all. Groups of so many
    hold the same (HSDP), which spares a slow network between nodes."""
    offload_optimizer: Annotated[bool, Role.OPERATIONAL] = False
    """Keep AdamW's moments and the masters in main memory: the same numbers, slower steps."""

    def _check(self) -> None:
        if self.kept_layers and not self.gradient_checkpointing:
            raise UserError(
                f"kept_layers = {self.kept_layers}: without gradient_checkpointing all are kept; "
                "leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class EvalSettings(Settings, group="eval"):
    """Evaluations."""

    eval_every: Annotated[Natural, Role.UNSIMULATED] = 1
    """Epochs between evaluations; 0 for only before and after training."""
    eval_steps: Annotated[Natural, Role.UNSIMULATED] = 0
    """Batches between evaluations, in place of `eval_every`; 0 counts epochs."""
    eval_samples: Annotated[Count, Role.UNSIMULATED] = 4
    """Responses per problem for pass@1; before and after training all `n_votes` are used."""
    eval_temperature: Annotated[Positive, Role.MEASURED] = 0.6
    """Sampling temperature of evaluations."""
    eval_top_p: PositiveShare = 1.0
    """Nucleus of evaluations."""


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Settings, group="checkpoint"):
    """Checkpoints, the trained model, votes in the trace, and destinations of metrics."""

    checkpoint_every: Annotated[Natural | None, Role.OPERATIONAL] = None
    """Batches between checkpoints; if None at the end of every epoch; 0 writes none."""
    checkpoint_minutes: Annotated[NotNegative, Role.OPERATIONAL] = 30.0
    """Minutes after which a checkpoint is written at the end of any batch; 0 for never."""
    checkpoint_keep: Annotated[Count, Role.OPERATIONAL] = 2
    """Checkpoints that stay on disk; older ones are deleted."""
    save_model: Annotated[bool | None, Role.OPERATIONAL] = None
    """Write the trained model to RUN/model; if None not for the tiny task, else yes."""
    keep_votes: Annotated[bool, Role.RECORD] = True
    """Write every answer's votes at every visit, and the answers' texts, into the trace."""
    log: Annotated[tuple[Literal["tensorboard", "wandb"], ...], Role.OPERATIONAL] = ()
    """Further destinations of metrics; wandb is offline unless WANDB_MODE says otherwise."""

    def _check(self) -> None:
        if len(set(self.log)) < len(self.log):
            raise UserError(f"log = {', '.join(self.log)}: name each of them at most once")


@dataclass(frozen=True, kw_only=True)
class MachineSettings(Settings, group="machine"):
    """The random numbers, and the machine that computes."""

    seed: Annotated[Natural, Role.ARM, Role.UNSIMULATED] = 0
    """Fixes votes, problem order, guard draws and evaluation draws."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Role.OPERATIONAL] = "auto"
    """`auto` takes a GPU where there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Precision of the weights; `auto` is bfloat16 for a model on a GPU, else float32."""
    head_dtype: Annotated[Literal["float32", "model"], Role.UNSIMULATED] = "float32"
    """Precision of the logits in trainer and engine; bfloat16 rounds log-probs by up to 0.1."""
    threads: Annotated[Annotated[int, Interval("[1, 1024]")] | None, Role.OPERATIONAL] = None
    """Threads of torch; if None 1 for the tiny task (more only wait for each other), else all."""
    rank_timeout: Annotated[Positive, Role.OPERATIONAL] = 1800.0
    """Seconds that a process of `torchrun` waits for the others before the run ends."""


@dataclass(frozen=True, kw_only=True)
class TaskSettings(VoteSettings, ProblemSettings):
    """The groups that prompts and responses follow from."""

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its response."""
        return self.max_prompt_tokens + (self.max_response_tokens or 1)


@dataclass(frozen=True, kw_only=True)
class UpdateSettings(MemorySettings, LossSettings, OptimSettings, VoteSettings):
    """The groups that an update reads."""
