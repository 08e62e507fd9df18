"""What a rule is told beside the votes, as models of known strength.

Here, and only here, the truth may enter what a rule is shown: an observation of strength s is
correlated with being right, and at strength 0 it knows no more than the votes. `Observer` draws
them; the laws are in the files of their names.
"""

from sim.world.observe.observer import Observer, Visit

__all__ = ["Observer", "Visit"]
