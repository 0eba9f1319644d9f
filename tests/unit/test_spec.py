from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builder import spec, yaml_lines
from builder.errors import NothingSelectedError, SpecError, TorchproofError
from builder.resources import IMAGES, walk
from builder.spec_models import json_schema


def load(text: str) -> spec.LoadedMatrix:
    return spec.from_text(yaml_lines.parse(text.encode(), "m.yaml"), folder=Path("/m"), stem="m")


def faults(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load(text)
    return (caught.value.detail or caught.value.what).splitlines()


def test_scalars_stay_the_text_that_was_typed() -> None:
    cell = load("axes: {torch: 2.10, python: 3.10, packages: {wandb: 0.10}}").cells[0]
    assert (cell.torch, cell.python, cell.packages) == ("2.10", "3.10", (("wandb", "0.10"),))


def test_every_combination_is_a_cell_in_order() -> None:
    cells = load("axes: {torch: [2.6.0, 2.5.1], python: [3.11, 3.12]}").cells
    assert [(c.torch, c.python) for c in cells] == [
        ("2.6.0", "3.11"),
        ("2.6.0", "3.12"),
        ("2.5.1", "3.11"),
        ("2.5.1", "3.12"),
    ]


def test_exclude_drops_cells_that_agree_with_all_it_names() -> None:
    text = "axes: {torch: [2.6.0, 2.5.1], python: [3.11, 3.12]}\nexclude: [{torch: 2.6.0, python: 3.12}]"
    assert ("2.6.0", "3.12") not in {(c.torch, c.python) for c in load(text).cells}
    assert len(load(text).cells) == 3


def test_exclude_knows_packages() -> None:
    text = "axes: {packages: {wandb: [0.13.5, auto]}}\nexclude: [{packages: {wandb: auto}}]"
    assert [dict(c.packages)["wandb"] for c in load(text).cells] == ["0.13.5"]


def test_an_empty_exclude_drops_nothing() -> None:
    assert len(load("axes: {torch: 2.6.0}\nexclude: [{}]").cells) == 1


def test_include_adds_a_cell_with_settings_of_its_own() -> None:
    text = "gpus: [A100]\napt: [git]\ninclude:\n- {torch: 2.6.0, gpus: [T4], apt: [libgl1]}\n- {torch: 2.5.1}"
    first, second = load(text).cells
    assert (first.gpus, first.apt) == (("T4",), ("libgl1",))
    assert (second.gpus, second.apt) == (("A100",), ("git",))
    assert first.origin("gpus") == "m.yaml:4: include[0].gpus"


def test_origins_point_at_the_line_and_the_element() -> None:
    cell = load("axes:\n  torch:\n    - 2.6.0\n    - 2.5.1\n").cells[1]
    assert cell.origin("torch") == "m.yaml:4: axes.torch[1]"


def test_all_faults_are_told_at_once_with_line_path_and_nearest_key() -> None:
    text = "axes:\n  torhc: 2.6.0\n  variant: cuda12\nflavor: runtme\ndriver: new\n"
    assert faults(text) == [
        "m.yaml:2: axes.torhc: no such key; did you mean `torch`?",
        "m.yaml:3: axes.variant: `cuda12` is not a CUDA variant: say cpu, cu118, cu124 ... or `auto`",
        "m.yaml:4: flavor: `runtme` is not one of base, runtime, devel; did you mean `runtime`?",
        "m.yaml:5: driver: `new` is not a driver version such as 535.129.03",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("axes: {torch: 2.6.0+cu124}", "say the version here and the build in `variant: cu124`"),
        ("axes: {python: 3}", "is not a Python version"),
        ("axes: {python: yes}", "`yes` is not a Python version"),
        ("axes: {packages: {wandb: latest}}", "neither a version, a specifier"),
        ("axes: {torch: []}", "the list is empty"),
        ("axes: {torch: {a: b}}", "takes a list, not a mapping"),
        ("axes: [torch]", "takes a mapping of keys, not a list"),
        ("axes: {torch: 2.6.0}\nsmoke: {memory: 8GB}", "is not a size such as"),
        ("axes: {torch: 2.6.0}\nexclude_newer: tomorrow", "is not a date"),
        ("axes: {torch: 2.6.0}\napt: ['git; rm -rf /']", "is not the name of an apt package"),
        ("axes: {base: 'debian:12\\nRUN x'}", "is not an image reference"),
        ("indexes: [{name: own}]", "is missing"),
    ],
)
def test_odd_values_say_what_is_taken(text: str, expected: str) -> None:
    assert expected in "\n".join(faults(text))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("axes: {torch: [1", "spec-not-yaml"),
        ("axes: {torch: 1.0}\naxes: {torch: 2.0}", "spec-duplicate-key"),
        ("- a\n- b", "spec-invalid"),
        ("axes: &a {torch: *a}", "spec-not-yaml"),
        ("? [1, 2]\n: x", "spec-not-yaml"),
    ],
)
def test_what_is_not_a_mapping_of_keys_is_an_error_of_the_spec(text: str, code: str) -> None:
    with pytest.raises(SpecError) as caught:
        load(text)
    assert caught.value.code == code
    assert caught.value.exit_status == 2


def test_aliases_cannot_make_a_small_file_explode() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    with pytest.raises(SpecError, match="more than 100,000 values"):
        load("\n".join(levels))


def test_a_matrix_without_images_selects_nothing() -> None:
    with pytest.raises(NothingSelectedError) as caught:
        load("gpus: [A100]")
    assert caught.value.exit_status == 3


def test_missing_file_and_directory_are_told(tmp_path: Path) -> None:
    for path, code in ((tmp_path / "no.yaml", "spec-not-found"), (tmp_path, "spec-unreadable")):
        with pytest.raises(SpecError) as caught:
            spec.load(path)
        assert caught.value.code == code


def test_selection_by_pattern_names_the_nearest() -> None:
    ids = ["torch2.6.0-cu124-py311", "torch2.5.1-cu124-py311"]
    assert spec.select(ids, ["torch2.6*"]) == ids[:1]
    assert spec.select(ids, []) == ids
    with pytest.raises(NothingSelectedError, match="no image matches") as caught:
        spec.select(ids, ["torch2.6.1-cu124-py311"])
    assert "torch2.6.0-cu124-py311" in str(caught.value)


def test_digest_is_of_what_is_asked_not_of_how_it_is_written() -> None:
    one = load("axes: {torch: 2.6.0, python: 3.11}\ngpus: [A100]").cells[0]
    same = load("# a comment\ngpus:\n- A100\naxes:\n  python: [3.11]\n  torch: [2.6.0]\n").cells[0]
    other = load("axes: {torch: 2.6.0, python: 3.11}\ngpus: [T4]").cells[0]
    assert one.digest == same.digest != other.digest


def test_the_schema_takes_every_sample_and_refuses_a_wrong_key() -> None:
    schema = json_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(json.loads(json.dumps(schema)))
    for name, content in walk(IMAGES):
        if name.endswith(".yaml"):
            # As an editor reads it: numbers are numbers there.
            assert not list(validator.iter_errors(yaml.safe_load(content))), name
            assert load(content.decode()).cells, name
    assert list(validator.iter_errors({"axes": {"torhc": "2.6.0"}}))


@given(st.binary(max_size=300))
def test_any_bytes_give_a_matrix_or_an_error_of_ours(content: bytes) -> None:
    try:
        spec.from_text(yaml_lines.parse(content, "m.yaml"), folder=Path("/m"), stem="m")
    except TorchproofError as error:
        assert error.exit_status in (2, 3)


_scalars = st.one_of(st.text(max_size=12), st.integers(), st.none(), st.booleans())
_trees = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["axes", "include", "gpus", "apt", "indexes", "smoke", "exclude"]), _trees))
def test_any_tree_under_known_keys_gives_a_matrix_or_an_error_of_ours(tree: object) -> None:
    try:
        load(yaml.safe_dump(tree, allow_unicode=True))
    except TorchproofError as error:
        assert error.exit_status in (2, 3)


def test_a_budget_is_no_part_of_what_a_lock_is_made_from(tmp_path: Path) -> None:
    digests = []
    for budget in ("", "budget: {image: 8GiB, packages: 512MiB}\n"):
        (tmp_path / "m.yaml").write_text(f"axes: {{torch: 2.6.0}}\n{budget}")
        digests.append(spec.load(tmp_path / "m.yaml").cells[0].digest)
    assert digests[0] == digests[1]


@pytest.mark.parametrize("budget", ["{image: 8GB}", "{image: 8}", "{images: 8GiB}", "8GiB"])
def test_a_budget_that_cannot_be_read(tmp_path: Path, budget: str) -> None:
    (tmp_path / "m.yaml").write_text(f"axes: {{torch: 2.6.0}}\nbudget: {budget}\n")
    with pytest.raises(SpecError, match="budget"):
        spec.load(tmp_path / "m.yaml")
