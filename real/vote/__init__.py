"""From the responses to a batch to the advantage of each of them."""
