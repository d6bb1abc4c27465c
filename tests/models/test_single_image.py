"""A batch of one image: whether a network can train on it, and whether there ever is one."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from antishortcut.config.recipe import load_recipe
from antishortcut.data.loader import Loader
from antishortcut.errors import UserError
from antishortcut.models import build
from antishortcut.models.user_models import check_single_image
from antishortcut.training.pipeline import Session, distill
from antishortcut.types import DataSplits, ImageSet
from tests.data.official import picture
from tests.test_subspace import several


def sets(side: int) -> DataSplits:
    images = ImageSet(torch.zeros(2, 3, side, side, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64))
    return DataSplits("any", ("a", "b", "c"), side, images, None, {}, "")


@pytest.mark.parametrize(("name", "side", "works"), [("cnn-2-16", 8, False), ("cnn-2-16", 32, True)])
def test_maps_of_one_pixel_have_no_variance(name: str, side: int, works: bool) -> None:
    network = build(name, 3, image_size=side)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    drawn = torch.random.get_rng_state()
    with nullcontext() if works else pytest.raises(UserError, match="cannot train on a single image"):
        check_single_image(network, name, sets(side))
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert torch.equal(torch.random.get_rng_state(), drawn)


@several
@given(count=st.integers(1, 40), batch=st.integers(1, 12), world=st.integers(1, 3))
def test_the_loader_knows_its_smallest_batch(count: int, batch: int, world: int) -> None:
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
def test_a_step_of_one_image_is_refused_before_training(
    session: Session, tmp_path: Path, batch: int, parts: int
) -> None:
    for name in ("ape", "bat"):
        for at in range(10):
            picture(tmp_path / "data" / name / f"{at}.png", size=(8, 8))
    path = tmp_path / "lone.toml"
    path.write_text(
        f'epochs = 1\n[data]\nname = "folder:{tmp_path / "data"}"\nimage_size = 8\n[teacher]\nname = "cnn-2-16"\n'
        f'[student]\nname = "cnn-2-16"\n[optim]\nbatch = {batch}\n'
    )
    session.execution = session.execution.model_copy(update={"micro_batches": parts})
    with pytest.raises(UserError, match="cannot train on a single image"):
        distill(load_recipe(str(path)), session, method="ce", seed=1, suite="lone")
    assert not [*(tmp_path / "runs").rglob("*.json")]
