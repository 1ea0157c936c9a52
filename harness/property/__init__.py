"""Properties: how one is declared, what its check yields, and what is decided of it."""
