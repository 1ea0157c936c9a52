"""Child processes of a live run: start, guard, ports, session directory, small HTTP calls."""
