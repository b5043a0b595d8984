"""The environment families, one folder each."""
