"""The base algorithms that T-STAR's tree is laid over, and the numbers they are made of."""
