"""The reference gateway as one state machine, its request records, admission control, and its forms as a target."""
