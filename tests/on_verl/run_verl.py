"""verl's own main loop, whole, on a CPU: python run_verl.py OUT key=value ..."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MODEL = ROOT / "real" / "tiny" / "checkpoint"
ENVIRONMENT = {
    "VERL_PLATFORM": "cpu",
    "VERL_USE_EXTERNAL_MODULES": "verl_cpu.platform",
    "VERL_LOGGING_LEVEL": "WARN",
    "PYTHONPATH": f"{ROOT}:{HERE}",
    "HF_HUB_OFFLINE": "1",
    "HYDRA_FULL_ERROR": "1",
    "OMP_NUM_THREADS": "1",
    "RAY_DEDUP_LOGS": "0",
    "RAY_DISABLE_METRICS_COLLECTION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
    "TQDM_DISABLE": "1",
    "TRANSFER_QUEUE_ENABLE": "1",
}


def settings(out: Path) -> list[str]:
    """verl's settings of a run on the tiny task, 8 votes of which 4 are trained on."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    plain = f"""
    algorithm.adv_estimator=grpo critic.enable=False
    data.train_files={out}/problems.parquet data.val_files={out}/problems.parquet
    data.train_batch_size=4 data.shuffle=False data.seed=0 data.dataloader_num_workers=0
    data.max_prompt_length=16 data.max_response_length=22
    data.filter_overlong_prompts=False data.trust_remote_code=False
    actor_rollout_ref.model.path={MODEL} actor_rollout_ref.model.use_remove_padding=False
    actor_rollout_ref.model.enable_gradient_checkpointing=False
    +actor_rollout_ref.model.override_config.attn_implementation=eager
    actor_rollout_ref.actor.strategy=fsdp2 actor_rollout_ref.actor.fsdp_config.strategy=fsdp2
    actor_rollout_ref.actor.fsdp_config.dtype=float32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=fp32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.reduce_dtype=fp32
    +actor_rollout_ref.actor.fsdp_config.mixed_precision.buffer_dtype=fp32
    actor_rollout_ref.actor.use_torch_compile=False
    actor_rollout_ref.actor.fsdp_config.use_torch_compile=False
    actor_rollout_ref.actor.ppo_mini_batch_size=1 actor_rollout_ref.actor.use_dynamic_bsz=True
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=4096
    actor_rollout_ref.actor.clip_ratio_c=1000000 actor_rollout_ref.actor.optim.lr=3e-4
    actor_rollout_ref.rollout.name=hf_cpu actor_rollout_ref.rollout.n=4
    actor_rollout_ref.rollout.calculate_log_probs=True
    actor_rollout_ref.rollout.tensor_model_parallel_size=1
    actor_rollout_ref.rollout.temperature=1.0 actor_rollout_ref.rollout.agent.num_workers=1
    actor_rollout_ref.rollout.agent.default_agent_loop=tiny_single_turn
    actor_rollout_ref.rollout.prompt_length=16 actor_rollout_ref.rollout.response_length=22
    actor_rollout_ref.rollout.val_kwargs.n=4 actor_rollout_ref.rollout.val_kwargs.do_sample=True
    reward.num_workers=1 trainer.device=cpu trainer.n_gpus_per_node=2 trainer.nnodes=1
    trainer.logger=[console] trainer.val_before_train=False
    trainer.test_freq=-1 trainer.save_freq=-1 trainer.total_epochs=2
    trainer.default_local_dir={out}/checkpoints trainer.v1.trainer_mode=guard_on_cpu
    transfer_queue.backend.SimpleStorage.num_data_storage_units=1
    +guard.profile=paper +guard.n_votes=8 +guard.answer_check=strings +guard.out={out}/run
    +guard.W=2 +guard.tau_FR=0.1 +guard.tau_MR=0.3 +guard.theta_MR=0.2 +guard.p_skip=0.9
    +guard.skip_share=0.5
    +ray_kwargs.ray_init.num_gpus=2 ray_kwargs.ray_init.num_cpus=16
    +ray_kwargs.ray_init.include_dashboard=False
    """.split()
    return [*plain, f"actor_rollout_ref.model.custom_chat_template='{template}'"]


def start_ray(tries: int = 5) -> None:
    """Start a cluster of two logical GPUs; Ray gives up after 30 s, too few on a busy machine."""
    import ray

    limits = {"num_cpus": 16, "num_gpus": 2, "object_store_memory": 256 << 20}
    for left in reversed(range(tries)):
        try:
            ray.init(**limits, include_dashboard=False, logging_level="ERROR")
            return
        except Exception as error:
            if not left or "timed out during startup" not in str(error):
                raise


def main() -> None:
    """Run verl's task runner in this process, which makes the Ray cluster."""
    given = os.environ.get("PYTHONPATH", "")
    os.environ.update({**ENVIRONMENT, "PYTHONPATH": f"{ENVIRONMENT['PYTHONPATH']}:{given}"})
    sys.path[:0] = [str(ROOT), str(HERE)]
    out = Path(sys.argv[1]).resolve()
    import ray
    import verl.trainer.main_ppo as main_ppo
    from hydra import compose, initialize_config_module
    from verl.utils.config import validate_config

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", [*settings(out), *sys.argv[2:]])
    start_ray()
    validate_config(config=config, use_reference_policy=False, use_critic=False)
    runner = main_ppo.TaskRunnerV1.__ray_metadata__.modified_class()
    try:
        runner.run(config)
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
