"""Rollout: collecting groups of episodes, and KL estimates between their turns."""
