"""Learners: optimizer steps on the policy's weights."""

from __future__ import annotations
