r"""The start model linearised over its measured token tree, trained as the real trainer trains it.

    log p_w(e) = log p_0(e) + psi_e S w + X_e S u - log-sum over the node
    p_w(leaf)  = product over its edges, normalised over the leaves of the problem

e is an edge of the tree (one token after one prefix), psi_e its measured gradient
(`lab.trace.response`), w the change of D of the d weights, S the diagonal matrix of the number of
weights that each of them stands for. w moves by AdamW on the clipped GRPO gradient of sampled
leaves, so the step size is the trainer's learning rate and nothing is fitted to the outcome of a
run.

Curvature (g > 0): the gradient of an edge changes with the distance |theta - theta_0| travelled,
psi_e(w) = psi_e + sqrt(max(0, g |theta - theta_0| - s)) X_e, with X_e a random direction of psi_e's
norm, and u is the integral of this factor over dw. X_e is a random sum of measured gradients, not
white noise: real gradients change within the directions in which those of all edges differ. The
growth g and the error s of gradients on the drawn weights are measured at token level
(`guard-train measure --growth`), the growth beyond what the softmax of the linear tree explains.

Every replicate uses most of the file's weights and its own X: the spread over replicates holds part
of the uncertainty of the model. Only a file with all d weights is used whole.

tree      the trees of all problems, their answers' probabilities, the weights before training
training  the optimizer steps of one batch
policy    all replicates together
"""
