"""What verl 0.9.1 needs to run whole on a CPU: a platform, FSDP on gloo, a rollout server.

For tests. With this folder's parent on the path, verl finds the package by its entry point; chosen
by `VERL_PLATFORM=cpu`, `VERL_USE_EXTERNAL_MODULES=verl_cpu.platform` and
`actor_rollout_ref.rollout.name=hf_cpu`. No line of verl is changed.
"""
