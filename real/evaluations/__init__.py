"""How good the policy is: accuracies, their curve, examples."""
