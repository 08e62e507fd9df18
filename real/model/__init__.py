"""The language model that is trained: its folder, adapters, limits of memory."""
