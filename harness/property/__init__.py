"""Properties: declaration, findings of a check, outcomes and records."""
