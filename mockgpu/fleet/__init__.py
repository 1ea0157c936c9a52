"""Many mock backends and their control port."""
