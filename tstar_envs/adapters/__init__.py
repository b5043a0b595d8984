"""The suite inside harnesses that people already use: one module for each, imported by name, so that its package is needed only there."""
