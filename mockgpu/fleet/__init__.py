"""A fleet of mock backends with one control port."""
