"""Readers given files that are wrong: one line, or nothing wrong at all. The long run of the same is `make torture`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.hostile.mutation import TOKENS, VALUES, mutated
from tests.hostile.targets import Bench, Target, targets

EXAMPLES = 30  # of mutated files a reader, in the short run


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("readers"))


NAMES = (
    "recipe (TOML)", "overrides by --set", "run.json", "result.json", "metrics.jsonl", "manifest.json of a teacher",
    "manifest.json of a loop", "states of a teacher from elsewhere", "scores/<set>.json", "export.json",
    "key.json of teachers' outputs", "teachers' outputs", "report: run.json", "report: result.json",
    "report: metrics.jsonl", "report: scores/corruptions.json", "report: scores/groups.json",
    "report: artifacts/mechanism.json",
    "report: artifacts/directions.json", "metadata.csv", "classes.txt", "classes.json", "classes.txt of CamVid",
    "objectInfo150.txt of ADE20K", "wnids.txt of TinyImageNet", "words.txt of TinyImageNet",
    "val/val_annotations.txt of TinyImageNet", "mapping of cue conflict (TOML)", "facts.json of corruptions",
    "facts.json of stylised copies", "facts.json of a stylizer", "images (.npy)", "labels (.npy)",
    "decoded images (.npy)", "CIFAR's pickles", "weights (.pt)", "weights (.pt, old form)", "weights (.safetensors)",
    "weights in parts (.index.json)", "resume state", "image file", "mask file", "any JSON", "request to the server",
)  # fmt: skip


def test_every_reader_is_tried(readers: dict[str, Target]) -> None:
    assert tuple(readers) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_files_as_they_should_be_are_read(readers: dict[str, Target], name: str) -> None:
    bench = Bench()
    for seed in readers[name].seeds:
        assert bench.attempt(readers[name], seed) is None


@pytest.mark.parametrize("name", NAMES)
@settings(
    max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(at=st.integers(0, 7), seed=st.integers(0, 2**32 - 1), rounds=st.integers(1, 4))
def test_wrong_files_are_one_line(readers: dict[str, Target], name: str, at: int, seed: int, rounds: int) -> None:
    target = readers[name]
    assert Bench().attempt(target, mutated(target.seeds[at % len(target.seeds)], seed, rounds)) is None


@pytest.mark.parametrize("name", NAMES)
def test_files_that_are_something_else_are_one_line(readers: dict[str, Target], name: str) -> None:
    bench = Bench()
    others = [b"", b"\0", b"\xff\xfe\x00", b"PK\x03\x04", b"\x80\x04.", b"\x93NUMPY\x01\x00\xff\xff", b"\xef\xbb\xbf{}"]
    for data in (*others, *(token.encode("utf-8", "surrogatepass") for token in TOKENS)):
        assert bench.attempt(readers[name], data) is None


def test_a_bench_sees_what_it_must_not(tmp_path: Path) -> None:
    """The proof that these tests can fail."""

    def read(data: bytes) -> None:
        raise KeyError(data)

    assert "KeyError" in str(Bench().attempt(Target("x", (), read), b"a"))
    assert len(VALUES) > 20


def test_mutations_depend_on_their_seed_alone(readers: dict[str, Target]) -> None:
    data = readers["run.json"].seeds[0]
    made = [mutated(data, seed, 2) for seed in range(200)]
    assert made == [mutated(data, seed, 2) for seed in range(200)]
    assert len(set(made)) > 150
