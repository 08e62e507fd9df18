"""What the model knows before training: a distribution over answers for every problem.

* The correct answer has the probability c, the ability, cut off at ability_floor and
  1 - ability_floor. Its law is the population:

      a name of `NAMED`   Beta(mean * s, (1 - mean) * s), s the concentration
      beta                the same with ability_mean and ability_concentration
      point               ability_mean for every problem
      mixture             several Beta laws with weights
      histogram           a CSV file with the columns p0 and weight
      trace               label accuracies at visit 0 of a run folder: drawn from with replacement,
                          or one by one, problem by problem, with fixed_population

* The attractor, one wrong answer per problem, holds a share ~ Beta(att_share * t,
  (1 - att_share) * t) of the wrong mass 1 - c, with t = att_concentration.
* The other A - 2 wrong answers share the rest as Dirichlet(wrong_concentration).
* Answer ids are a uniform permutation per problem, so neither the truth nor the attractor has a
  preferred id and every tie-break rule, `first` included, is fair to it.

The law does not depend on the policy: all policies start from the same populations. By default
every replicate draws problems of its own, with `fixed_population` all have those of replicate 0.

`docs/calibration.md` says how well such laws reproduce the paper's rows, and what they predict.
"""

from sim.world.populations.abilities import FREE
from sim.world.populations.draw import P_MIN, draw_population
from sim.world.populations.named import NAMED, Ability
from sim.world.populations.population import Population

__all__ = ["FREE", "NAMED", "P_MIN", "Ability", "Population", "draw_population"]
