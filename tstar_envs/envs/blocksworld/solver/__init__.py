"""Optimal plans: which blocks must move, a search over their moves, and the operators of the plan."""
