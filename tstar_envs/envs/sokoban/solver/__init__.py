"""Optimal solutions of levels: A* from both ends with lower bounds on the pushes that are left."""
