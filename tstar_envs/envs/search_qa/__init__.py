"""Search-QA: questions over a searchable corpus."""
