"""Policies: models, codecs, and the shipped weights."""
