"""Sampling engines behind one contract, and the check that an engine and the trainer agree."""
