"""Blocksworld in PDDL: the 4-operator STRIPS domain and its problems, plain or in mystery words."""
