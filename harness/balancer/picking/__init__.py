"""Choice of a backend: consistent hashing, load-aware policies, session affinity."""
