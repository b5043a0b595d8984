"""The policy: model, tokens, and the weights that ship with the package."""
