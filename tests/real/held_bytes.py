def held_bytes(optimizer):
    """Bytes of storages, each counted once: of the model's parameters, and of all else."""
    weights = storages(list(optimizer.model.parameters()))
    state = [t for name, t in optimizer.state_tensors().items() if not name.startswith("n_")]
    everything = [*optimizer.parameters, *optimizer.masters.gradients(), *state]
    rest = {k: n for k, n in storages(everything).items() if k not in weights}
    return {"weights": sum(weights.values()), "rest": sum(rest.values())}


def storages(tensors):
    local = [getattr(t, "_local_tensor", t) for t in tensors]
    found = [t.untyped_storage() for t in local]
    return {storage.data_ptr(): storage.nbytes() for storage in found if storage.nbytes()}
