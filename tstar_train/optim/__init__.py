"""Optimizers: one gradient step over rows and preference pairs."""
