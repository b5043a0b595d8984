"""Thought grafting: at a divergence the policy rewrites the failed thought in the light of the successful branch."""
