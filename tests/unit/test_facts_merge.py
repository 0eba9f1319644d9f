from __future__ import annotations

import copy
from typing import Any

import pytest

from builder.facts_merge import OverlayRefusedError, merge

BASE: dict[str, Any] = {
    "table": {"source": "s", "row": {"source": "s", "value": 1, "parts": {"a": {"value": 1}}}},
    "list": [{"id": "one", "source": "s", "value": 1}],
    "texts": ["x"],
}


@pytest.mark.parametrize(
    ("overlay", "expected"),
    [
        ({}, {}),
        ({"new": 1}, {"new": 1}),
        ({"texts": ["x", "y"]}, {"texts": ["x", "y"]}),
        ({"list": [{"id": "two"}]}, {"list": [BASE["list"][0], {"id": "two"}]}),
        ({"list": [{"id": "one", "source": "t", "value": 2}]}, {"list": [{"id": "one", "source": "t", "value": 2}]}),
        ({"list": [{"id": "one", "more": 2}]}, {"list": [{**BASE["list"][0], "more": 2}]}),
    ],
)
def test_merge(overlay: dict[str, Any], expected: dict[str, Any]) -> None:
    before = copy.deepcopy(BASE)
    assert merge(BASE, overlay, "topic") == {**BASE, **expected}
    assert before == BASE


def test_a_row_with_its_own_source_replaces_the_whole_row() -> None:
    row = {"source": "t", "parts": {"a": {"value": 2}}}
    assert merge(BASE, {"table": {"row": row}}, "topic")["table"] == {"source": "s", "row": row}


@pytest.mark.parametrize(
    ("overlay", "said"),
    [
        ({"table": {"row": {"value": 2}}}, "topic.table.row.value: 2 would replace 1 without a source of its own"),
        ({"table": {"source": "t"}}, "topic.table: a new source for the whole would lose row"),
        ({"table": {"source": "t", "row": {"parts": {}}}}, "would lose row.parts.a"),
        ({"list": [{"value": 2}]}, "topic.list: a row needs one of id, name, image, version"),
        ({"list": {"id": "one"}}, "topic.list: "),
        ({"list": [{"id": "one", "value": 2}]}, "topic.list[one].value: 2 would replace 1"),
    ],
)
def test_what_is_refused(overlay: dict[str, Any], said: str) -> None:
    with pytest.raises(OverlayRefusedError) as error:
        merge(BASE, overlay, "topic")
    assert said in str(error.value)
