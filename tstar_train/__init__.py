"""A trainer that turns the suite's vectorized episodes into T-STAR updates: ``python -m tstar_train --env hotpotqa``."""

__version__ = "0.1.0"
