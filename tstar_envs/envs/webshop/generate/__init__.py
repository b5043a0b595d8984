"""Makes the mini tier and practice shops. Nothing that plays loads this package; ``practice`` does, when it is called."""
