"""From the responses to a batch to what each of them is paid."""
