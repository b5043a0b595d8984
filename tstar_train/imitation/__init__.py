"""Imitation for any causal LM: ``python -m tstar_train warmstart --model PATH`` (docs/chain.md)."""
