"""Whether a network can learn from one image, and whether one ever comes alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.data.loading import Loader
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.models.lone import learns_alone
from antishortcut.run import load_recipe
from antishortcut.types import ImageSet
from antishortcut.workflow import Workshop, distill
from tests.data.official import picture
from tests.test_subspace import several


@pytest.mark.parametrize(("side", "alone"), [(8, False), (32, True)])
def test_maps_of_one_pixel_have_no_variance(side: int, alone: bool) -> None:
    network = build("cnn-2-16", 3, image_size=side)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = torch.random.get_rng_state()
    assert learns_alone(network, side) is alone
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), drawn)


def test_without_batch_norm_one_is_enough() -> None:
    assert learns_alone(build("timm:test_vit", 3, image_size=32), 32)


@several
@given(count=st.integers(1, 40), batch=st.integers(1, 12), world=st.integers(1, 3))
def test_the_smallest_share_is_told_beforehand(count: int, batch: int, world: int) -> None:
    images = ImageSet(torch.zeros(count, 3, 4, 4, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64))
    if batch < world:
        return
    shares = [
        [len(part.index) for part in Loader(images, batch=batch, seed=0, image_size=4, rank=rank, world=world).epoch(0)]
        for rank in range(world)
    ]
    loader = Loader(images, batch=batch, seed=0, image_size=4, world=world)
    assert loader.fewest == min((min(share) for share in shares if share), default=0)


@pytest.mark.parametrize(("batch", "parts"), [(1, 1), (4, 4)])
def test_an_image_that_comes_alone_is_told_before_training(
    shop: Workshop, tmp_path: Path, batch: int, parts: int
) -> None:
    for name in ("ape", "bat"):
        for at in range(10):
            picture(tmp_path / "data" / name / f"{at}.png", size=(8, 8))
    path = tmp_path / "lone.toml"
    path.write_text(
        f'epochs = 1\n[data]\nname = "folder:{tmp_path / "data"}"\nimage_size = 8\n[teacher]\nname = "cnn-2-16"\n'
        f'[student]\nname = "cnn-2-16"\n[optim]\nbatch = {batch}\n'
    )
    shop.execution = shop.execution.model_copy(update={"parts": parts})
    with pytest.raises(UserError, match="cannot learn from a single image"):
        distill(load_recipe(str(path)), shop, method="ce", seed=1, suite="lone")
    assert not [*(tmp_path / "runs").rglob("*.json")]
