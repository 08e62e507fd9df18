"""Statistics of paired replicates: intervals, bootstrap, AUROC."""
