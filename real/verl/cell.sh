#!/usr/bin/env bash
# The paper's cell {preset} ({model_name}), arm {arm}, by verl 0.9
# on {nodes} x {gpus} GPUs of {gpu_memory} GiB.
#
# Before, once, on a disk that all nodes see:
#   guard-verl problems {problems} --data-dir FOLDER --out {problem_file}
# Before, on more than one node:
#   ray start --head                       on the first node, where this script is to be run
#   ray start --address=FIRST_NODE:6379    on every other node
# Settings of verl may follow the name of this script, and win over those below.
#
# Differences from guard-train: verl leaves {left_out} problems out of every epoch of {n_batches}
# batches, others each time; its learning rate moves once a batch, not once an optimizer step; the
# ratio has no truncated weight (--tis-cap), by which guard-train corrects vLLM's bfloat16.
# verl packs rows, for which torch's own attention needs a dense mask; and of GPUs that share a row
# each would attend to its own part alone.
attention=sdpa
if python -c 'import flash_attn' >/dev/null 2>&1; then attention=flash_attention_2; fi
if [ "$attention" = sdpa ] && [ {sequence_ranks} -gt 1 ]; then
  echo "flash_attn: not installed, which {sequence_ranks} GPUs that share a row need;" \
    "install 'verl[vllm,fsdp]', or take at most {rows} GPUs" >&2
  exit 2
fi
settings=(
  # The plugin. The guard's numbers are those of its profile; its advantages replace GRPO's.
  # The agent loop seeds the votes, and refuses another trainer_mode, which would run unguarded.
  trainer.v1.trainer_mode=ttrl_guard
  actor_rollout_ref.rollout.agent.default_agent_loop=guard_single_turn
  {guard}
  +guard.seed={seed}
  +guard.out={out}
  algorithm.adv_estimator=grpo
  critic.enable=False

  # From the paper: 64 votes, of which 32 are trained on; 8 optimizer steps a batch.
  +guard.n_votes={n_votes}
  actor_rollout_ref.rollout.n={n_samples}
  data.train_batch_size={batch_size}
  actor_rollout_ref.actor.ppo_mini_batch_size={mini_batch}
  trainer.total_epochs={epochs}
  data.max_prompt_length={max_prompt_tokens}
  data.max_response_length={max_response_tokens}
  actor_rollout_ref.rollout.temperature={temperature}
  actor_rollout_ref.actor.optim.lr={lr}
  actor_rollout_ref.actor.optim.lr_warmup_steps_ratio={warmup_ratio}
  actor_rollout_ref.actor.optim.lr_scheduler_type=cosine
  actor_rollout_ref.actor.use_kl_loss={uses_kl}
  actor_rollout_ref.actor.kl_loss_coef={kl_coef}
  actor_rollout_ref.rollout.val_kwargs.n={eval_samples}

  # From the scripts of its release; the third clip of verl is switched off.
  actor_rollout_ref.rollout.name={engine}
  actor_rollout_ref.rollout.top_p={top_p}
  actor_rollout_ref.rollout.val_kwargs.do_sample=True
  actor_rollout_ref.rollout.val_kwargs.temperature={eval_temperature}
  actor_rollout_ref.rollout.val_kwargs.top_p={eval_top_p}
  trainer.test_freq={eval_steps}
  actor_rollout_ref.actor.clip_ratio_low={clip_low}
  actor_rollout_ref.actor.clip_ratio_high={clip_high}
  actor_rollout_ref.actor.clip_ratio_c=1e6
  actor_rollout_ref.actor.loss_agg_mode={loss}
  actor_rollout_ref.actor.optim.weight_decay={weight_decay}
  actor_rollout_ref.actor.optim.clip_grad={max_grad_norm}
  actor_rollout_ref.model.enable_gradient_checkpointing={gradient_checkpointing}

  # Chosen here: the files, test-time training on the problems of the evaluation; a checkpoint an
  # epoch, from which the same command resumes.
  actor_rollout_ref.model.path={model}
  +actor_rollout_ref.model.override_config.attn_implementation="$attention"
  data.train_files={problem_file}
  data.val_files={problem_file}
  data.filter_overlong_prompts=True
  data.seed={seed}
  trainer.default_local_dir={checkpoints}
  trainer.save_freq={n_batches}
  trainer.max_actor_ckpt_to_keep={checkpoint_keep}
  'trainer.logger=[console]'
  # Weights in single precision, passes in {dtype}.
  actor_rollout_ref.actor.fsdp_config.dtype={dtype}

  # The cluster: {rows} rows of a mini-batch on {data_ranks} ranks; GPUs that share a row, GPUs that
  # share a copy of vLLM; FSDP's state in main memory where it would take half of a GPU.
  trainer.nnodes={nodes}
  trainer.n_gpus_per_node={gpus}
  actor_rollout_ref.actor.strategy=fsdp2
  actor_rollout_ref.actor.ulysses_sequence_parallel_size={sequence_ranks}
  actor_rollout_ref.rollout.tensor_model_parallel_size={tensor_ranks}
  actor_rollout_ref.actor.use_dynamic_bsz=True
  actor_rollout_ref.actor.ppo_max_token_len_per_gpu={max_tokens_per_microbatch}
  actor_rollout_ref.actor.fsdp_config.param_offload={offload}
  actor_rollout_ref.actor.fsdp_config.optimizer_offload={offload}
)
{address}python -m verl.trainer.main_ppo "${{settings[@]}}" "$@"
