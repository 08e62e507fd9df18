"""Configuration files: TOML in, a checked dataclass out; and what a wrong name was meant to be."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

import msgspec
import numpy as np

from guard_core.config import GROUP_OF, GuardConfig, fault, short_names
from lab.base.errors import UserError

T = TypeVar("T")
_SHOWN = 9  # differences that a refusal names
_MEANT = {
    word: setting
    for setting, words in {
        "lr": "learning_rate",
        "epochs": "num_train_epochs total_epochs",
        "n_samples": "num_generations samples",
        "n_votes": "rollout_n votes",
        "batch_size": "per_device_train_batch_size train_batch_size",
        "mini_batch": "ppo_mini_batch_size",
        "max_response_tokens": "max_completion_length max_response_length max_new_tokens "
        "max_tokens",
        "max_prompt_tokens": "max_prompt_length",
        "stop": "stop_strings",
        "kl_coef": "beta kl_loss_coef",
        "clip_low": "epsilon clip_ratio clip_ratio_low",
        "clip_high": "epsilon_high clip_ratio_high",
        "loss": "loss_type loss_agg_mode",
        "max_grad_norm": "grad_clip gradient_clip_val",
        "warmup_ratio": "lr_warmup_steps_ratio",
        "model": "model_name_or_path model_path",
        "problems": "dataset dataset_name train_files data",
        "out": "output_dir output default_local_dir",
        "log": "report_to logger",
        "checkpoint_every": "save_steps save_freq",
        "eval_every": "eval_freq",
        "eval_steps": "test_freq",
        "lora_rank": "lora_r",
        "lora_targets": "target_modules",
        "attention": "attn_implementation",
        "dtype": "torch_dtype bf16",
        "engine": "use_vllm",
        "engine_memory": "vllm_gpu_memory_utilization gpu_memory_utilization",
        "engine_tp": "vllm_tensor_parallel_size tensor_model_parallel_size tensor_parallel_size",
        "tis_cap": "vllm_importance_sampling_cap tis_imp_ratio_cap importance_cap",
        "mask_truncated": "mask_truncated_completions",
        "drop_uniform": "use_dynamic_sampling",
        "W": "window",
        "resume": "resume_from_checkpoint",
        "run": "train",
    }.items()
    for word in words.split()
}
"""Names in TRL, verl and Hugging Face to ours."""


def toml_values(path: Path | None) -> dict[str, Any]:
    """The content of a settings file, if any, unchecked; a UserError where it cannot be read."""
    try:
        return {} if path is None else tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error}); give an existing TOML file") from error
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error


def from_values(values: Mapping[str, Any], kind: type[T], source: str) -> T:
    """Fill a dataclass from nested plain values; a UserError names the source and the setting."""
    made, guard = dict(values), values.get("guard")
    try:
        _refuse_unknown(values, _kinds(kind))
        if isinstance(guard, Mapping):
            made["guard"] = GuardConfig.from_dict(guard)
        return msgspec.convert(made, kind)
    except (msgspec.ValidationError, ValueError, UserError) as error:
        raise UserError(f"{source}: {error}" if source else str(error)) from error


def to_values(config: Any) -> dict[str, Any]:
    """A dataclass as plain nested values that JSON and TOML can hold."""
    if isinstance(config, GuardConfig):
        values = config.to_dict()
    else:
        values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    made = {n: to_values(v) if dataclasses.is_dataclass(v) else v for n, v in values.items()}
    return msgspec.to_builtins(made, enc_hook=plain)


def plain(value: Any) -> Any:
    """NumPy's numbers and arrays as Python's, for msgspec; a TypeError for other kinds."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r}: cannot stand in JSON")


def readings(word: str) -> Iterator[bool | int | float | str | None]:
    """The values that a word of a command line can mean; the last is the word itself."""
    words = {"true": True, "false": False, "none": None}
    if word.lower() in words:
        yield words[word.lower()]
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            yield kind(word)
    yield word


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by their names joined by dots; an empty mapping stays a value.

    Settings of a guard have their short names: `guard.W`.
    """
    flat: dict[str, Any] = {}
    for name, value in values.items():
        value = short_names(value) if name == "guard" and isinstance(value, Mapping) else value
        inner = isinstance(value, Mapping) and value
        flat |= flattened(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return flat


def check_unchanged(
    folder: Path, old: Mapping[str, Any], new: Mapping[str, Any], free: Collection[str] = ()
) -> None:
    """Refuse settings other than those that a folder was made with; those in `free` may differ."""
    before, after = flattened(old), flattened(new)
    changed = [
        f"{name} = {after.get(name)!r} (was {before.get(name)!r})"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name) and name.partition(".")[0] not in free
    ]
    if changed:
        more = [f"{len(changed) - _SHOWN} more"] if len(changed) > _SHOWN else []
        raise UserError(
            f"{folder}: settings differ from those it was run with: "
            f"{', '.join([*changed[:_SHOWN], *more])}; leave them out, or start in another folder"
        )


def _refuse_unknown(values: Mapping[str, Any], kinds: Mapping[str, Any], prefix: str = "") -> None:
    for last, value in values.items():
        name, is_table = prefix + last, isinstance(value, Mapping)
        if prefix == "guard." and last in GROUP_OF and not is_table:
            continue  # by its short name, outside of its table
        if name not in kinds:
            remedy = _remedy(name, nearest(name, kinds), is_table)
            raise UserError(f"{name}: no such setting; {remedy}")
        # Checked here, since the converter does not name the values that a choice has.
        chooses = get_origin(kinds[name]) is Literal
        if chooses and (message := fault(name, value, kinds[name])):
            raise UserError(message)
        if is_table and any(other.startswith(f"{name}.") for other in kinds):
            _refuse_unknown(value, kinds, f"{name}.")


def _kinds(kind: Any, prefix: str = "") -> dict[str, Any]:
    """Types of all settings of a dataclass by name, nested ones after a dot."""
    kinds, hints = dict[str, Any](), get_type_hints(kind)
    for field in dataclasses.fields(kind):
        kinds[prefix + field.name] = hints[field.name]
        if dataclasses.is_dataclass(nested := default_of(field)):
            kinds |= _kinds(type(nested), f"{prefix}{field.name}.")
    return kinds


def _remedy(wrong: str, near: str | None, is_table: bool) -> str:
    """What to write in place of an unknown name; names of other tables with their table."""
    if near is None:
        return "see --help-all for the names"
    table, _, name = near.rpartition(".")
    if table == wrong.rpartition(".")[0]:
        return f"perhaps you meant {f'[{near}]' if is_table else near}"
    place = f"under [{table}]" if table else "at the top of the file"
    return f"perhaps you meant {name} {place}"


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The value of a field that is not given; `dataclasses.MISSING` if it has to be."""
    factory = field.default_factory
    return field.default if factory is dataclasses.MISSING else factory()


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a wrong one was probably meant to be; None if none is near.

    Upper case and dashes make no difference. A name of a nested setting, such as `W`, is found
    where it stands, `guard.W`.
    """
    names = {_plain(each): each for each in reversed(list(known))}
    by_word = {each.rpartition(".")[2]: whole for each, whole in names.items()} | names
    wanted = _plain(name)
    for word in (wanted, wanted.rpartition(".")[2]):
        meant = _plain(_MEANT.get(word, word))
        if meant in by_word:
            return by_word[meant]
    close = difflib.get_close_matches(wanted, names, 1)
    return names[close[0]] if close else None


def hint(name: str, known: Iterable[str]) -> str:
    """Return `; perhaps you meant NAME`, or nothing where no known name is near."""
    near = nearest(name, known)
    return "" if near is None else f"; perhaps you meant {near}"


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()
