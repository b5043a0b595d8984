"""Rollout: engines that sample from the policy, and the loop that plays episodes with them."""
