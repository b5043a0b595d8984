"""Makes the shipped games and those of practice. Nothing that plays loads this package; ``practice`` does, when it is called."""
