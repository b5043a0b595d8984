"""The six types of task, as ALFRED names them and as the ids of the environments do."""

from __future__ import annotations

PICK, LOOK, PICK_TWO = "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place"
CLEAN, HEAT, COOL = (
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
)
# The short names of the ids, in the order of ALFWorld's task numbers.
TASK_TYPES = {"pick": PICK, "look": LOOK, "clean": CLEAN, "heat": HEAT, "cool": COOL, "pick2": PICK_TWO}
