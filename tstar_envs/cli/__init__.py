"""The command line: one module per subcommand, joined in ``main``."""
