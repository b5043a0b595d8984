"""Makes the shipped games and practice, and proves the rules against the original engine. Nothing that plays loads this package;
``practice`` does, when it is called.
"""
