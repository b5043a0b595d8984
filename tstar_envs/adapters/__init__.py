"""The suite inside harnesses that people already use: one module for each, which imports the other package only where it must."""
