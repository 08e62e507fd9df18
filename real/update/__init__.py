"""One update: groups of responses packed, their log-probs, the loss, AdamW."""
