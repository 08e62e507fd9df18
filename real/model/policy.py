"""The language model that is trained, from a local folder or a GGUF file."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.utils import logging as transformers_logging
from transformers.utils.import_utils import is_gguf_available

from lab.base.errors import Unfit, UserError, first_line, install
from lab.base.files import whole_folder
from real.model.folder import check_folder
from real.model.machine import in_phase, pick_device

_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True, slots=True)
class Policy:
    """A causal language model and what is needed to talk to it."""

    model: Any
    """In evaluation mode for good: dropout would move the ratio away from 1 at no update."""
    tokenizer: Any
    eos_token_ids: tuple[int, ...]
    """Tokens that end a response; empty where the model has none."""
    pad_token_id: int
    device: torch.device

    @property
    def folder(self) -> Path:
        """The folder that it was loaded from."""
        return Path(self.tokenizer.name_or_path)

    def texts(self, tokens_RT: torch.Tensor, lengths_R: torch.Tensor) -> list[str]:
        """Texts of (R, T) responses without special tokens; equal ones are decoded once."""
        rows = zip(tokens_RT.tolist(), lengths_R.tolist(), strict=True)
        keys = [tuple(row[:length]) for row, length in rows]
        distinct = list(dict.fromkeys(keys))
        decoded = self.tokenizer.batch_decode(list(map(list, distinct)), skip_special_tokens=True)
        text_of = dict(zip(distinct, decoded, strict=True))
        return [text_of[key] for key in keys]


def layer_configs(config: Any) -> list[Any]:
    """Return the config of every layer of a model's text part, which in Gemma 4 differ."""
    text = config.get_text_config()
    return [*getattr(text, "per_layer_config", [text] * text.num_hidden_layers)]


def layer_heads(layer: Any) -> tuple[int, int]:
    """Return the heads of a layer's attention and those of its keys; 1 where it has none."""
    heads = getattr(layer, "num_attention_heads", None) or 1
    return heads, getattr(layer, "num_key_value_heads", None) or heads


def attention_heads(config: Any) -> tuple[int, int]:
    """Return the fewest heads of any layer's attention, and of its keys."""
    heads, kv_heads = zip(*map(layer_heads, layer_configs(config)), strict=True)
    return min(heads), min(kv_heads)


def max_positions(model: Any) -> int | None:
    """Return the longest sequence that the model has positions for; None if it names no bound."""
    named = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return named if named and named > 0 else None  # XLNet says -1


def load_policy(
    folder: str | Path,
    device: str = "auto",
    dtype: str = "float32",
    attention: str = "auto",
    head_dtype: str = "model",
) -> Policy:
    """Load a causal language model and its tokenizer from a folder, as `save_pretrained` writes it.

    Only safetensors weights and architectures that transformers knows are loaded; nothing is
    downloaded and no code from the folder runs. Arguments are the settings of these names.
    """
    folder = Path(folder)
    chosen_device = pick_device(device)
    check_folder(folder)
    AttentionInterface.register("sdpa", grouped_attention)
    with loading(
        f"model {folder}: could not be loaded",
        "give a whole causal language model with safetensors weights and its tokenizer"
        + f", or another attention than {attention}" * (attention != "auto"),
    ):
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), **_LOCAL)
        if len(tokenizer) == 0:
            raise UserError(f"model {folder}: the tokenizer is empty; save the model's own into it")
        model = _load_model(folder, getattr(torch, dtype), attention)
        ends = _end_tokens(model, tokenizer)
    if head_dtype == "float32":
        widen_head(model)
    n_embeddings = model.get_input_embeddings().weight.shape[0]
    # Added tokens may be more: Gemma 3's text models have none for images. Prompts are checked.
    if (n_tokens := tokenizer.vocab_size) > n_embeddings:
        raise UserError(
            f"model {folder}: the tokenizer has {n_tokens} tokens, the model {n_embeddings}; "
            "put the model's own tokenizer into the folder"
        )
    pads = tokenizer.pad_token_id, *ends
    pad = next((i for i in pads if i is not None and i < n_embeddings), 0)
    with in_phase("load"):
        model = model.to(chosen_device).eval()
    return Policy(model, tokenizer, ends, pad, chosen_device)


def _load_model(folder: Path, dtype: torch.dtype, attention: str) -> Any:
    kernel = {} if attention == "auto" else {"attn_implementation": attention}
    if how := json.loads((folder / "config.json").read_text()).get("quantization_config"):
        raise UserError(
            f"model {folder}: its weights are quantized ({how.get('quant_method')}), which cannot "
            "be trained; give a folder that holds them in bfloat16 or wider"
        )
    with in_phase("load"):
        model, info = AutoModelForCausalLM.from_pretrained(
            str(folder),
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, with their names
            **_LOCAL,
            **kernel,
        )
    wrong = {
        "are missing": sorted(info["missing_keys"]),
        "have another shape than config.json says": sorted(n[0] for n in info["mismatched_keys"]),
        "are none of the model of config.json": sorted(
            name for name in info["unexpected_keys"] if _is_inside(name, model)
        ),
    }
    for fault, names in wrong.items():
        if names:
            raise UserError(
                f"model {folder}: {len(names)} weights {fault}, {names[0]} for one; give a folder "
                "that holds a whole causal language model"
            )
    head = model.get_output_embeddings()
    tied = getattr(model.config.get_text_config(), "tie_word_embeddings", False)
    if tied and head is not None and head.weight is not model.get_input_embeddings().weight:
        raise UserError(
            f"model {folder}: its output head is another matrix than its embeddings, though "
            "config.json ties them; set tie_word_embeddings to false there"
        )
    config = model.config.get_text_config()
    named = {name: value for name, value in _PLAIN.items() if getattr(config, name, value) != value}
    for module in {model, model.base_model} if named else ():
        module.register_forward_pre_hook(
            lambda _, args, given: (args, {**given, **named}), with_kwargs=True
        )
    return model


_PLAIN = {"output_router_logits": False, "output_hidden_states": False, "return_dict": True}
"""Arguments for logits alone. A config may name others, such as a loss that no token has."""


def lost_parts(policy: Policy) -> list[str]:
    """Return a notice where the library has taken the text part out of a larger model."""
    named = json.loads((policy.folder / "config.json").read_text())
    kind = named.get("model_type")
    if "text_config" not in named or kind == policy.model.config.model_type:
        return []
    return [
        f"the model is the text part of a {kind}: the others, such as that for images, are not "
        "loaded, and the trained model that is saved lacks them"
    ]


def _is_inside(name: str, model: Any) -> bool:
    """A weight that the model has no place for is one of its layers', and no further head's."""
    modules, prefix = dict(model.named_modules()), model.base_model_prefix
    owner, _, last = name.rpartition(".")
    # Tables of positions and masks, which earlier versions of a model saved.
    if last in ("inv_freq", "masked_bias") or (last == "bias" and owner.endswith("attn")):
        return False
    while owner and not {owner, f"{prefix}.{owner}"} & modules.keys():
        owner = owner.rpartition(".")[0]
    return owner not in ("", prefix)


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers' `sdpa`, to the bit, but without copies of shared keys on a CPU.

    These took a quarter of the time of sampling from a model in which 9 heads share 3.
    """
    shared = attention_mask is not None and query.is_cpu and key.shape[1] < query.shape[1]
    special = any(options.get(name) is not None for name in ("position_bias", "cache"))
    if special or not shared:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    dropout, scale = options.get("dropout", 0.0), options.get("scaling")
    output = scaled_dot_product_attention(
        query, key, value, attention_mask, dropout, scale=scale, enable_gqa=True
    )
    return output.transpose(1, 2).contiguous(), None


def _end_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    named = model.generation_config.eos_token_id if model.generation_config else None
    model_ids: Sequence[Any] = named if isinstance(named, (list, tuple)) else [named]
    ids = [i for i in (*model_ids, tokenizer.eos_token_id) if i is not None]
    n_tokens = model.get_input_embeddings().weight.shape[0]
    if wrong := [i for i in ids if type(i) is not int or not 0 <= i < n_tokens]:
        raise ValueError(f"eos_token_id = {wrong[0]!r}: no token of its {n_tokens}")
    return tuple(dict.fromkeys(ids))


@contextlib.contextmanager
def loading(fault: str, remedy: str) -> Iterator[None]:
    """Load a model's files, or raise `Unfit` in one line whatever comes of damaged ones."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:
        # Transformers logs a report, which is silenced here.
        cause = first_line(error).partition(" For details look at ")[0]
        raise Unfit(f"{fault} ({cause}); {remedy}") from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Loading says nothing: its errors are reported by the exceptions."""
    level = transformers_logging.get_verbosity()
    bars = transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(logging.CRITICAL)
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()


def import_gguf(file: Path, out: Path) -> Any:
    """Write a GGUF file as a model folder, whole or not at all, in float32; returns the model."""
    if not file.is_file():
        raise UserError(f"{file}: no such file; give a GGUF file")
    if not is_gguf_available():
        hint = f"install with {install('gguf')}"
        raise UserError(f"gguf not installed, which reads {file.name}; {hint}")
    where: dict[str, Any] = {"gguf_file": file.name, "local_files_only": True}
    with whole_folder(out) as folder:  # made before anything is read, which takes longer
        try:
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(str(file.parent), **where)
                model, info = AutoModelForCausalLM.from_pretrained(
                    str(file.parent), dtype=torch.float32, output_loading_info=True, **where
                )
        except (ValueError, LookupError, NotImplementedError, OSError, struct.error) as error:
            reason = first_line(error)
            raise UserError(
                f"{file}: transformers cannot read it ({reason}); give a whole file of a causal "
                "language model that transformers knows, or the model's safetensors folder"
            ) from error
        if info["missing_keys"]:  # they would be random
            raise UserError(f"{file}: lacks {min(info['missing_keys'])}; give a whole file")
        # A model that tells of its quantization could not be saved.
        model.hf_quantizer = None
        del model.config.quantization_config
        write_model(model, tokenizer, folder, file.parent)
    return model


_COPIED = "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json"
"""Files of models that also take images, without which no engine serves them."""


def write_model(
    model: Any, tokenizer: Any, folder: Path, source: Path, weights: Any = None
) -> None:
    """Write model and tokenizer, with the generation settings of the folder `source` as they are.

    What belongs to images is copied from there, too.
    `weights` take the place of the model's own if not None.
    """
    config, generation, dtype = model.config, model.generation_config, model.config.dtype
    for name in config._get_generation_parameters():
        delattr(config, name)  # they were read into the generation settings, and stop the writing
    # It writes no settings that contradict each other, though it reads them.
    name, model.generation_config = "generation_config.json", GenerationConfig()
    try:
        with quiet():
            model.save_pretrained(str(folder), state_dict=weights)
            tokenizer.save_pretrained(str(folder))
    finally:
        # The library sets the precision of the parameters, which may be masters.
        model.generation_config, config.dtype = generation, dtype
    for copied in (name, *_COPIED):
        if (source / copied).is_file():
            shutil.copyfile(source / copied, folder / copied)
    if not (source / name).is_file() and generation is not None:
        generation.to_json_file(str(folder / name))


_MATRIX_UNITS = ("cuda", "meta")
"""Kinds of devices with products of low-precision matrices that give single precision."""


class WideHead(nn.Linear):
    """An output layer whose logits are in single precision, whatever its weights are."""

    _keeps = False
    _kept: Tensor | None = None

    def forward(self, input: Tensor) -> Tensor:
        """(..., V) logits of (..., H) hidden states."""
        if self.weight.dtype == torch.float32 or self.weight.dtype == torch.float64:
            return super().forward(input)
        hidden = input.flatten(0, -2)
        if self._keeps:
            self._kept = self.weight.float() if self._kept is None else self._kept
            flat: Any = wide_product(hidden, self._kept, self.bias)
        else:
            flat = _Product.apply(hidden, self.weight, self.bias)
        return flat.view(*input.shape[:-1], -1)

    @classmethod
    @contextlib.contextmanager
    def constant(cls, model: Any) -> Iterator[None]:
        """Let a head on a CPU widen its weights once, for decoding, while nothing changes them."""
        # Not for as long as the weights' version counter stands still: FSDP2 keeps it unmoved.
        heads = [m for m in model.modules() if isinstance(m, cls)]
        heads = [head for head in heads if head.weight.device.type not in _MATRIX_UNITS]
        for head in heads:
            head._keeps = True
        try:
            yield
        finally:
            for head in heads:
                head._keeps, head._kept = False, None


def widen_head(model: Any) -> None:
    """Let an output layer that is just a matrix give logits in single precision, in place."""
    head = model.get_output_embeddings()
    if type(head) is nn.Linear:
        head.__class__ = WideHead


def wide_product(hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
    """(n, V) `linear(hidden, weight, bias)` of low-precision numbers in single precision."""
    if hidden_nH.device.type not in _MATRIX_UNITS:
        matmul = cast(Any, torch.backends.mkldnn).matmul
        before = matmul.fp32_precision
        try:
            if hidden_nH.dtype == torch.bfloat16:
                # Numbers of `bfloat16` are multiplied as such, which loses nothing.
                matmul.fp32_precision = "bf16"
            bias = None if bias_V is None else bias_V.float()
            return linear(hidden_nH.float(), weight_VH.float(), bias)
        finally:
            matmul.fp32_precision = before
    logits_nV = torch.mm(hidden_nH, weight_VH.T, out_dtype=torch.float32)
    return logits_nV if bias_V is None else logits_nV.add_(bias_V)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """Add `left @ right` to a total of at least their precision, in place."""
    if total.dtype == right.dtype:
        total.addmm_(left, right)
    elif right.device.type in _MATRIX_UNITS:
        torch.addmm(total, left, right, out_dtype=total.dtype, out=total)
    else:
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


class _Product(torch.autograd.Function):
    """`wide_product` with gradient, whose products are of low-precision numbers as well."""

    @staticmethod
    def forward(ctx: Any, hidden_nH: Tensor, weight_VH: Tensor, bias_V: Tensor | None) -> Tensor:
        ctx.save_for_backward(hidden_nH, weight_VH)
        return wide_product(hidden_nH, weight_VH, bias_V)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # pyrefly: ignore[bad-override]
        hidden_nH, weight_VH = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad
        narrow_nV = grads[0].to(weight_VH.dtype)
        return (
            narrow_nV @ weight_VH if needs_hidden else None,
            narrow_nV.T @ hidden_nH if needs_weight else None,
            grads[0].sum(0).to(weight_VH.dtype) if needs_bias else None,
        )
