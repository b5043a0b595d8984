"""Proofs that what is made is fit to ship."""
