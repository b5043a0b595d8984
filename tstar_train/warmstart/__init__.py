"""Warm start: imitation of oracle demonstrations, so that a policy of a million parameters can play at all."""
