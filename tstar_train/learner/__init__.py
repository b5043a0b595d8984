"""Learners: what changes the policy's weights."""

from __future__ import annotations
