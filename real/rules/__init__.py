"""The label-free rules of `guard_core.rules` in the trainer: what they are told, and what follows.

`checks` refuses what cannot run, `observing` looks at responses, `second_votes` and its two kinds
draw further ones, `paying` turns all of it into advantages, `further_groups` trains what is drawn.
"""
