"""Several processes on one node: joining, sharding, one of them deciding."""
