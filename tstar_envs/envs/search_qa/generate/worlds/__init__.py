"""The two invented worlds: facts, names and passages."""
