"""The load of a live run: the load process, ad-hoc loads, and a background load."""
