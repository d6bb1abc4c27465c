"""Small files that hold one thing many times over: each is refused at once, and its reader not busy for years."""

from __future__ import annotations

import io
import os
import pickle
import resource
import signal
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from antishortcut import saved
from antishortcut.errors import UserError
from antishortcut.models.checkpoints import read
from tests.hostile.payloads import FORMS, doubled, in_torch_zip, lengthy, text

SECONDS = 20
MEMORY = 8 * 2**30  # of addresses, of which torch itself takes some


def ended(work: Callable[[], str]) -> str:
    """What some work says, in a process that is ended when it takes too long, wherever it is."""
    there, here = os.pipe()
    if (pid := os.fork()) == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which needs no Python to come to an end
        signal.alarm(SECONDS)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        try:
            os.write(here, work().encode())
        finally:
            os._exit(0)
    os.close(here)
    assert os.waitpid(pid, 0)[1] == 0
    with os.fdopen(there, "rb") as pipe:
        return pipe.read().decode()


@pytest.mark.parametrize(("name", "form"), [*((name, "zip") for name in lengthy()), ("a key", "old")])
def test_a_small_file_is_refused_at_once(tmp_path: Path, name: str, form: str) -> None:
    path = tmp_path / "small.pt"
    path.write_bytes(FORMS[form](lengthy()[name]))

    def told() -> str:
        try:
            read(path)
        except UserError as error:
            return f"{str(error)[:2_000]} / {error.__cause__}"
        return "read"

    said = ended(told)
    assert "holds no plain tensors" in said
    assert "which no checkpoint of torch does" in said or name == "a layout of numbers"  # which only the message takes


def reread(content: Any) -> Any:
    file = io.BytesIO()
    torch.save(content, file)
    with torch.serialization.safe_globals([Namespace]):
        return saved.load(file)


def test_what_checkpoints_share_is_read() -> None:
    size, names = (3, (224, 224)), [f"class {at}" for at in range(20_000)]
    one = torch.ones(2)
    state = OrderedDict((f"layer{at}.weight", one) for at in range(50))
    state._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    args = Namespace(size=size, names=names, raw=b"\xff\0", buffer=bytearray(b"\xfe"))
    found = reread({"model": state, "ema": state, "args": args, "again": args, "sizes": [size] * 1_000, "of": {1, 2}})
    assert found["model"] is found["ema"]
    assert found["ema"]._metadata == {"": {"version": 1}}
    assert found["model"]["layer0.weight"] is found["model"]["layer49.weight"]
    assert found["again"] == args
    assert found["sizes"] == [size] * 1_000


def test_letters_that_look_like_instructions_are_none() -> None:
    """Texts and numbers of one byte, each that could be a call or a tuple, beside what may not be called."""
    content = {chr(at): [at, 2**33 + at, float(at), chr(at), [chr(at)] * 3] for at in range(256)}
    assert reread(content) == content


def test_tensors_write_themselves_out_again_afterwards(tmp_path: Path) -> None:
    before = repr(torch.ones(2)), repr(torch.ones(2).untyped_storage())
    (tmp_path / "small.pt").write_bytes(in_torch_zip(b"\x80\x02K\x01)R."))
    with pytest.raises(UserError):
        read(tmp_path / "small.pt")
    assert (repr(torch.ones(2)), repr(torch.ones(2).untyped_storage())) == before
    assert saved.UNPICKLER.load is saved.WHOLE


@pytest.mark.parametrize(("depth", "taken"), [(1, True), (17, True), (18, False)])
def test_the_weight_is_that_of_all_that_is_fetched(depth: int, taken: bool) -> None:
    """On stage k of n a tuple of 2ᵏ⁺¹ - 2 values is fetched twice: 2ⁿ⁺² in all, about, and half of that at the end."""
    made, last = doubled(depth)
    file = io.BytesIO(in_torch_zip(b"\x80\x02" + made + b"}" + text(b"a") + last + b"s."))
    if taken:
        assert isinstance(saved.load(file)["a"], tuple)
    else:
        with pytest.raises(pickle.UnpicklingError, match="1048576 values more than once"):
            saved.load(file)
