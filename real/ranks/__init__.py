"""Several processes, on one node or more: joining, sharding, one of them deciding."""
