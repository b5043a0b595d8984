"""Makes the mini tier and practice worlds. Nothing that plays loads this package; ``practice`` does, when it is called."""
