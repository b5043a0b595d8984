"""What the pages of both packages stand on: data that stays data, and a policy that lets one script run."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tstar_envs.utils import content_policy, script_json

JSON = st.recursive(
    st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda x: st.lists(x) | st.dictionaries(st.text(), x),
    max_leaves=6,
)


@given(JSON)
@example(["</script><!--<img src=x onerror=alert(1)>\u2028\u2029&amp;"])
def test_script_json_is_the_same_data_and_cannot_break_out(data: Any) -> None:
    block = script_json(data)
    assert not set("<>&\u2028\u2029") & set(block) and block.isascii()
    assert json.loads(block) == data


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_has_not_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        script_json({"x": [number]})


def test_the_policy_names_the_two_sources_and_nothing_else() -> None:
    script, style = "let x = 1;", "p { color: red }"
    directives = dict(part.split(" ", 1) for part in content_policy(script, style).split("; "))
    for name, source in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
        assert directives.pop(name) == f"'sha256-{digest}'"
    assert directives == {
        "default-src": "'none'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
