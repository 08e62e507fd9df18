"""What rules ask to be told of responses beside their answers, see `guard_core.rules.seen.Seen`."""
