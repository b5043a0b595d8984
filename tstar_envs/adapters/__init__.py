"""Adapters for other frameworks, one module each; a module imports the framework only if it must."""
