"""Reading, writing and guarding files: what every part of the suite does with data that others may have made."""
