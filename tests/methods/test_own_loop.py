"""What a loop of one's own takes from here needs torch, and nothing else that has to be installed."""

import subprocess
import sys

import pytest

ALONE = """
import sys
import torch

model = torch.nn.Linear(2, 2)  # a step with torch alone: what it imports itself, some of it when first used
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with torch.autocast("cpu", enabled=False):
    model(torch.ones(1, 2)).sum().backward()
optimizer.step()
allowed = {name.partition(".")[0] for name in sys.modules} | set(sys.stdlib_module_names) | {"antishortcut", "numpy"}

class Alone:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in allowed | {ALSO}:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

sys.meta_path.insert(0, Alone())
before = set(sys.modules)
"""
LOSS = """
from antishortcut import ASDLoss, contrast_loss, kd_loss, shortcut_subspace
student = torch.nn.Linear(6, 5)
asd = ASDLoss(5, 8, queue=16, directions=2, warmup=0, sync=True)
optimizer = torch.optim.SGD([*student.parameters(), *asd.parameters()], lr=0.1)
weight = student.weight.detach().clone()
for _ in range(2):
    terms = asd(student(torch.randn(7, 6)), torch.randn(7, 8), torch.randn(7, 8), epoch=1.0)
    sum(terms.values()).backward()
    optimizer.step()
assert terms.keys() == {"tc", "ss"} and not torch.equal(weight, student.weight)
assert contrast_loss(*torch.randn(3, 4, 5)) > 0
"""
KEEP = """
import tempfile
from antishortcut import Snapshots, load_state
with tempfile.TemporaryDirectory() as folder:
    Snapshots(folder, total_steps=1)(torch.nn.Linear(2, 2), 1)
    assert load_state(folder).keys() == {"weight", "bias"}
"""
LAST = """
new = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names)
assert new <= {"antishortcut", "torch", "numpy", ALSO}, new
"""


@pytest.mark.parametrize(("code", "also"), [(LOSS, "torch"), (KEEP, "safetensors")], ids=["ASDLoss", "Snapshots"])
def test_torch_is_all_it_needs(code: str, also: str) -> None:
    text = (ALONE + code + LAST).replace("ALSO", repr(also))
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_imports_nothing_else() -> None:
    code = """
import sys
before = set(sys.modules)
import antishortcut
new = {name.partition(".")[0] for name in set(sys.modules) - before}
assert new <= {"antishortcut"} | set(sys.stdlib_module_names), new
assert set(antishortcut.__all__) - {"__version__"} == set(antishortcut._PLACES)
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
