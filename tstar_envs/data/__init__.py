"""Files and data: bounded reading, atomic writing, locks and faults of untrusted data."""
