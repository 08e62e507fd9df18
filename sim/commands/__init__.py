"""The commands of `guard-sim`. Their modules import the simulator when they run."""

from sim.commands.agree import Agree
from sim.commands.calibrate import Calibrate
from sim.commands.explore import Explore
from sim.commands.runs import Compare, Run
from sim.commands.sweep import SearchCommand, SweepCommand
from sim.commands.theory import Theory

COMMANDS = {
    "run": Run,
    "compare": Compare,
    "sweep": SweepCommand,
    "search": SearchCommand,
    "agree": Agree,
    "calibrate": Calibrate,
    "theory": Theory,
    "explore": Explore,
}
ABOUT = """Simulate test-time reinforcement learning with and without a guard.

Examples:
    guard-sim run --out runs/guard
    guard-sim compare --arms ttrl guard memory --out runs/arms
    guard-sim sweep --vary guard.W=2,3,5 --out runs/window
"""
