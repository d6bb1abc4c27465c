"""Shipped recipes: every CIFAR-100 pair of the paper is built and takes a step."""

from pathlib import Path

import pytest
import torch

from antishortcut.config.recipe import load_recipe, recipe_template
from antishortcut.methods import METHODS, method_options
from antishortcut.models import build, feature_shapes
from antishortcut.tasks import Classification
from antishortcut.training.step import DistillationStep
from antishortcut.types import Batch, Sizes


@pytest.mark.parametrize("number", range(1, 11))
def test_a_pair_takes_a_step(number: int) -> None:
    torch.manual_seed(0)
    recipe = load_recipe(f"P{number}")
    final, early = (build(recipe.teacher.name, 100).eval().requires_grad_(False) for _ in range(2))
    student = build(recipe.student.name, 100)
    shapes = {"final": feature_shapes(final, 32), "early": feature_shapes(early, 32)}
    sizes = Sizes(100, 1000, feature_shapes(student, 32), shapes, torch.arange(1000) % 100)
    step = DistillationStep(
        student, METHODS["asd"](sizes, **method_options("asd", recipe.methods.get("asd", {}))), Classification()
    )
    optimizer = torch.optim.SGD(step.parameters(), lr=0.05)
    batch = Batch(torch.rand(4, 3, 32, 32), torch.arange(4), torch.arange(4))
    before = {name: value.clone() for name, value in student.named_parameters()}
    with torch.no_grad():
        targets = {"final": final(batch.image), "early": early(batch.image)}
    terms = step(batch, targets, 20.0)
    assert set(terms) == {"task", "kd", "tc", "ss"}
    torch.autograd.backward(torch.stack(list(terms.values())).sum())
    optimizer.step()
    assert all(torch.isfinite(value).all() for value in terms.values())
    assert any(not torch.equal(value, before[name]) for name, value in student.named_parameters())


def test_the_template_of_asd_init_shows_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(recipe_template())
    plain = load_recipe(str(path))
    assert plain.teacher.early == "15%"
    # uncommenting everything changes no default
    lines = [
        line.removeprefix("# ") if " = " in line and line.startswith("# ") else line
        for line in recipe_template().splitlines()
    ]
    shown = [
        line for line in lines if not line.startswith(("weights", "final", "embedding", "train_limit", "image_size"))
    ]
    path.write_text("\n".join(shown))
    full = load_recipe(str(path))
    assert (full.optim, full.teacher) == (plain.optim, plain.teacher)
    assert method_options("asd", full.methods["asd"]) == method_options("asd", {})


def test_a_recipe_may_begin_with_a_byte_order_mark(tiny: Path) -> None:
    plain = load_recipe(str(tiny))
    tiny.write_bytes(b"\xef\xbb\xbf" + tiny.read_bytes())
    assert load_recipe(str(tiny)) == plain
