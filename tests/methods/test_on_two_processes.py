"""Every method of the table on two real processes and on one: the same terms and gradients, given the same features."""

from pathlib import Path

import pytest
import torch

from antishortcut.experiments.method_check import Examined, examine, on_two_processes
from antishortcut.methods import METHODS


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Examined]:
    folder: Path = tmp_path_factory.mktemp("two")
    return on_two_processes(METHODS, "gloo", folder)


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_agree_with_one(name: str, both: dict[str, Examined]) -> None:
    single, combined = examine(name, torch.device("cpu")), both[name]
    assert single.keys() == combined.keys()
    for part, value in single.items():
        assert torch.allclose(value, combined[part], rtol=1e-4, atol=1e-5), part
