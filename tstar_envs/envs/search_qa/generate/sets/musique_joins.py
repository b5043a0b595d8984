"""Entities that two values fix together, and how MuSiQue's branching questions describe them."""

from __future__ import annotations

# type of the joined entity -> (two relations, phrases, second query); {D} and {E} describe their objects, {k} the entity's kind
JOINS: dict[str, tuple[tuple[tuple[str, str], tuple[str, ...], str], ...]] = {
    "work": (
        (
            ("creator", "company"),
            (
                "the {k} made by {D} and released by {E}",
                "the {k} of {D} that was published by {E}",
                "the one {k} by {D} that came out at {E}",
                "the {k} that {D} made for {E}",
            ),
            "{k} by {D} released by {E}",
        ),
    ),
    "person": (
        (
            ("birthplace", "school"),
            (
                "the person who was born in {D} and studied at {E}",
                "the native of {D} who attended {E}",
                "the person from {D} who went to {E}",
                "the student from {D} at {E}",
            ),
            "born in {D}, studied at {E}",
        ),
        (
            ("birthplace", "employer"),
            (
                "the person who was born in {D} and worked for {E}",
                "the native of {D} who was employed by {E}",
                "the person from {D} on the staff of {E}",
                "the one who left {D}, the birthplace, for a job at {E}",
            ),
            "born in {D}, worked for {E}",
        ),
        (
            ("school", "employer"),
            (
                "the person who studied at {D} and worked for {E}",
                "the student of {D} who was employed by {E}",
                "the one who left {D} for a job at {E}",
                "the person who went to {D} and joined the staff of {E}",
            ),
            "studied at {D}, worked for {E}",
        ),
    ),
}
