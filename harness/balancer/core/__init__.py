"""The reference gateway as one state machine: requests, admission control, settings files, claims, and loading."""
