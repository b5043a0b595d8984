"""Tokens, latency and money add up, and what is not known is not counted as nothing."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tstar_envs import BadData, Episode, MissingData, Step
from tstar_envs.agents.base import Call, percentile, total
from tstar_envs.evaluation.cost import Price, PriceTable, add_costs, read_prices, summarise_costs, usage_notes


def episode(*calls: Call, success: bool = False, seconds: tuple[float, ...] = ()) -> Episode:
    steps = [Step("r", "", "a", "o", True, "", False, "", "k", seconds=s) for s in seconds]
    return Episode(
        "e",
        "mini",
        "t",
        "test",
        "1",
        "a",
        "",
        "",
        success=success,
        calls=[call.record() for call in calls],
        steps=steps,
    )


TABLE = PriceTable("USD", "2026-11", {"m": Price(2.0, 0.5, 8.0)})


def test_money_is_tokens_times_prices() -> None:
    played = [
        episode(
            Call("act", 1.0, 1_000_000, 500_000),
            Call("reflect", 3.0, 2_000_000, 0, cached_tokens=1_000_000),
            seconds=(1.0,),
        ),
        episode(Call("act", 2.0, 0, 1_000_000, tries=3), success=True, seconds=(2.0, 4.0)),
    ]
    found = summarise_costs(played, TABLE, "m")
    assert found.cost == pytest.approx(2.0 + 4.0 + (2.0 + 0.5) + 8.0) and found.cost_per_success == found.cost
    assert (found.usage.calls, found.usage.retries, found.usage.cached_tokens) == (3, 2, 1_000_000)
    assert (
        found.reply_seconds == (1.0, 2.0, 4.0)
        and found.reply_percentile(0.5) == 2.0
        and found.usage.percentile(1.0) == 3.0
    )
    assert summarise_costs(played[:1], TABLE, "m").cost_per_success is None, "nothing was solved"
    played[0].attempts.append(
        {
            "reward": 0.0,
            "success": False,
            "ended": "truncated",
            "steps": [{"seconds": 0.5}, {"reply": "untimed"}],
        }
    )
    assert summarise_costs(played, TABLE, "m").reply_seconds == (0.5, 1.0, 2.0, 4.0)
    assert (
        summarise_costs(played, TABLE, "other").cost is None
        and summarise_costs(played, TABLE, None).cost is None
    )


def test_an_endpoint_that_does_not_count_has_no_known_cost() -> None:
    found = summarise_costs([episode(Call("act", 1.0, 10, 10), Call("act", 1.0))], TABLE, "m")
    assert found.cost is None and (found.usage.calls, found.usage.uncounted, found.usage.input_tokens) == (
        2,
        1,
        10,
    )


@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(sorted(values), share)
    assert found in values and sum(v <= found for v in values) >= share * len(values) - 1e-9
    smaller = [v for v in values if v < found]
    assert not smaller or sum(v <= max(smaller) for v in values) < share * len(values) + 1e-9


def test_a_call_is_recorded_without_what_is_as_usual() -> None:
    assert Call("act", 0.5).record() == {"purpose": "act", "seconds": 0.5, "step": 0}
    more = Call("act", 0.5, 3, 0, tries=2).record()
    assert more == {
        "purpose": "act",
        "seconds": 0.5,
        "step": 0,
        "input_tokens": 3,
        "output_tokens": 0,
        "tries": 2,
    }
    assert total([]).percentile(0.5) is None


def test_the_shipped_table_has_a_date_and_dated_versions_have_the_plain_price() -> None:
    table = read_prices()
    assert table.as_of and table.currency == "USD" and table.models
    assert table.of_model("gpt-4o-2024-08-06") == table.of_model("gpt-4o@20240806") == table.models["gpt-4o"]
    assert table.of_model("gpt-4o-mini-2024-07-18") == table.models["gpt-4o-mini"] != table.models["gpt-4o"]
    for other in ("gpt-4o-audio", "gpt-5-pro", "my/gpt-4o", "qwen"):
        assert table.of_model(other) is None, "a price is never guessed"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models = 3", "models must be tables"),
        ("x = [", "is not valid TOML"),
        ("price = 3", "unknown entry 'price'"),
        ("[models]\nm = { input = 1 }", "model 'm': needs input and output"),
        ("[models]\nm = { input = 1, output = 2, reasoning = 3 }", "may have cached_input"),
        ("[models]\nm = { input = -1, output = 2 }", "input must be a number of 0 or more, found -1"),
        ("[models]\nm = { input = true, output = 2 }", "found True"),
        ("[models]\nm = { input = 1, output = inf }", "found inf"),
        ("[models]\nm = { input = 1e10, output = 1 }", "at most 1,000,000,000"),
        (f"[models]\nm = {{ input = 1{'0' * 400}, output = 1 }}", "at most 1,000,000,000"),
        (f"[models]\nm = {{ input = 0x{'f' * 1800}, output = 1 }}", "input must be a number"),
        (f"[models]\nm = [0x{'f' * 1900}, 0x{'f' * 50}]", "needs input and output"),
        (f"x = [\n{'9' * 1900}\n{'9' * 1900}{'9' * 1900}]", "a line of 3,801 characters"),
        ("x = " + "[" * 1900, "is not valid TOML"),
        ("x = " + "[\n" * 5000 + "]\n" * 5000, "is not valid TOML"),
        ("x = " + "{ a = " * 300, "is not valid TOML"),
        (f"[models]\nm = {{ input = {'1_' * 900}1, output = 1 }}", "at most 1,000,000,000"),
        (".".join("a" * 200_000) + " = 1", "a line of 400,003 characters"),
        ("currency = 3", "currency must be a text, found 3"),
        ("currency = { EUR = 1 }", "currency must be a text"),
        ("as_of = [2026]", "as_of must be a text"),
        ("x = '\0'", "not a text file"),
    ],
)
def test_a_bad_table_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "prices.toml"
    path.write_text(text)
    with pytest.raises(BadData, match="prices.toml") as caught:
        read_prices(path)
    assert message in str(caught.value)
    with pytest.raises(MissingData):
        read_prices(tmp_path / "none.toml")


def test_a_table_of_prices_is_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "prices.toml"
    path.write_text("# x\n" * 400_000)
    with pytest.raises(BadData, match="more than 1,048,576 bytes in one table of prices"):
        read_prices(path)
    with pytest.raises(BadData, match="not a regular file"):
        read_prices(Path("/dev/zero"))
    path.write_text('as_of = 2026-11-01\n[models]\n"m" = { input = 1, output = 2 }\n')
    assert read_prices(path).as_of == "2026-11-01" and read_prices(path).models["m"] == Price(1.0, 1.0, 2.0)


def record(**fields: object) -> dict[str, object]:
    return {"purpose": "act", "seconds": 1.0, "step": 0, "input_tokens": 10, "output_tokens": 5, **fields}


@pytest.mark.parametrize("value", [10**400, 10**12, -1, True, 1.5, "3", [], float("nan")])
@pytest.mark.parametrize("name", ["input_tokens", "output_tokens"])
def test_counts_that_no_endpoint_can_mean_are_unknown_in_older_records_too(name: str, value: object) -> None:
    usage = total([record(), record(**{name: value})])
    assert (usage.calls, usage.uncounted, usage.input_tokens, usage.output_tokens) == (2, 1, 10, 5)
    assert TABLE.models["m"].of([record(**{name: value})]) is None
    assert (
        total([record(cached_tokens=value)]).cached_tokens in (0, 10)
        and TABLE.models["m"].of([record()]) is not None
    )


def test_what_was_cut_is_told() -> None:
    calls = [record(finish=finish) for finish in ("length", "MAX_TOKENS", "stop", "tool_calls", "")]
    usage = total([*calls, record(miscounted=True)])
    assert (usage.cut, usage.miscounted, usage.calls) == (2, 1, 6)
    cut, miscounted = usage_notes(usage, 1024)
    assert (
        cut.startswith("2 of 6 replies were cut at --max-tokens 1024")
        and "OLLAMA_CONTEXT_LENGTH" in miscounted
    )
    assert "--max-tokens)" in usage_notes(usage, None)[0] and usage_notes(total([record()]), 5) == []
    both = summarise_costs([episode(Call("act", 1.0, 1, 1, finish="length"))], TABLE, "m")
    assert add_costs([both, both]).usage.cut == 2
