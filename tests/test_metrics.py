"""Metrics against Python loops, cases solved by hand, and properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from antishortcut.metrics import (
    accuracy,
    class_answers,
    cue_conflict,
    group_accuracy,
    overlap_accuracy,
    shape_bias,
    split_accuracy,
)


def logits_for(guesses: list[int], classes: int) -> Tensor:
    return torch.eye(classes)[guesses] * 5


@st.composite
def outputs(draw: st.DrawFn, classes: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (N, C), and two facts (N,) of every image."""
    count = draw(st.integers(1, 20))
    maker = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    first, second = torch.randint(0, classes, (2, count), generator=maker)
    return torch.randn(count, classes, generator=maker) * 3, first, second


def test_split_by_hand() -> None:
    logits, label = logits_for([0, 1, 1, 2, 2], 3), torch.tensor([0, 1, 0, 0, 2])
    hard = torch.tensor([False, True, True, True, False])
    values = dict(split_accuracy(logits, label, hard))
    expected = {"hard_share": 3 / 5, "hard_accuracy": 1 / 3, "easy_accuracy": 1.0, "balanced_accuracy": 2 / 3}
    assert values == pytest.approx(expected)
    assert dict(split_accuracy(logits, label, ~hard))["hard_accuracy"] == values["easy_accuracy"]
    none = dict(split_accuracy(logits, label, torch.zeros(5, dtype=torch.bool)))
    assert none == pytest.approx({"hard_share": 0.0, "easy_accuracy": 3 / 5})  # no hard images, no mean with them
    every = dict(split_accuracy(logits, label, torch.ones(5, dtype=torch.bool)))
    assert every == pytest.approx({"hard_share": 1.0, "hard_accuracy": 3 / 5})


@settings(deadline=None, max_examples=60)
@given(outputs(), st.integers(-1, 5))
def test_split_equals_a_loop(drawn: tuple[Tensor, Tensor, Tensor], last: int) -> None:
    logits, label, second = drawn
    hard = second <= last  # none of them up to all
    hits: dict[bool, list[bool]] = {True: [], False: []}
    for row, y, h in zip(logits.tolist(), label.tolist(), hard.tolist(), strict=True):
        hits[h].append(row.index(max(row)) == y)
    values = dict(split_accuracy(logits, label, hard))
    rates = {part: sum(each) / len(each) for part, each in hits.items() if each}
    expected = {"hard_share": len(hits[True]) / len(label)}
    expected |= {f"{'hard' if part else 'easy'}_accuracy": rate for part, rate in rates.items()}
    if len(rates) == 2:
        expected["balanced_accuracy"] = sum(rates.values()) / 2
    assert values == pytest.approx(expected)
    whole = sum(rate * (values["hard_share"] if part else 1 - values["hard_share"]) for part, rate in rates.items())
    assert whole == pytest.approx(dict(accuracy(logits, label))["accuracy"])  # weighed by their shares: all images


def test_overlap_by_hand() -> None:
    logits = torch.tensor([[5.0, 1.0, 0.0], [0.0, 1.0, 2.0], [-math.inf, 3.0, -math.inf], [0.0, 9.0, 1.0]])
    label, allowed = torch.tensor([0, 2, 0, 0]), torch.tensor([True, False, True])
    # among all: right, right, wrong, wrong; among 0 and 2: right, right, 0 (a tie of −∞ goes to the first), 2
    assert dict(overlap_accuracy(logits, label, allowed)) == {"accuracy": 0.5, "accuracy_overlap": 0.75}


@settings(deadline=None, max_examples=60)
@given(outputs(), st.sets(st.integers(0, 5), min_size=1))
def test_overlap_equals_a_loop(drawn: tuple[Tensor, Tensor, Tensor], classes: set[int]) -> None:
    logits, label, _ = drawn
    label = torch.tensor([sorted(classes)[y % len(classes)] for y in label.tolist()])
    allowed = torch.tensor([at in classes for at in range(6)])
    hits = 0
    for row, y in zip(logits.tolist(), label.tolist(), strict=True):
        hits += max(classes, key=lambda at, row=row: row[at]) == y  # type: ignore[misc]
    values = dict(overlap_accuracy(logits, label, allowed))
    assert values["accuracy_overlap"] == pytest.approx(hits / len(label))
    assert values["accuracy"] == dict(accuracy(logits, label))["accuracy"]
    assert values["accuracy_overlap"] >= values["accuracy"] - 1e-6  # fewer rivals never hurt
    if len(classes) == 6:
        assert values["accuracy_overlap"] == pytest.approx(values["accuracy"])


def test_cue_conflict_by_hand() -> None:
    """Category 0 is class 0, category 1 the mean of classes 1 and 2, category 2 is class 3; class 4 is nobody's."""
    matrix = torch.tensor([[1, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 1, 0]])
    probability = torch.tensor(
        [
            [0.30, 0.35, 0.10, 0.05, 0.2],  # class 1 leads, but its category has (0.35 + 0.10) / 2: category 0
            [0.10, 0.30, 0.30, 0.20, 0.1],  # category 1
            [0.02, 0.01, 0.01, 0.06, 0.9],  # class 4 is no category: category 2
            [0.10, 0.10, 0.10, 0.60, 0.1],  # category 2
        ]
    )
    shape, texture = torch.tensor([0, 0, 1, 2]), torch.tensor([1, 1, 0, 2])  # by shape, texture, neither; no conflict
    values = dict(cue_conflict(probability.log(), matrix, shape, texture))
    assert values == pytest.approx(
        {"by_shape": 1 / 3, "by_texture": 1 / 3, "decided": 2 / 3, "neither": 1 / 3, "shape_bias": 0.5}
    )
    assert list(cue_conflict(probability.log(), matrix, shape, shape)) == []
    undecided = dict(cue_conflict(probability.log()[2:3], matrix, shape[2:3], texture[2:3]))
    assert undecided == {"by_shape": 0, "by_texture": 0, "decided": 0, "neither": 1}


@settings(deadline=None, max_examples=60)
@given(outputs(), st.lists(st.integers(0, 2), min_size=6, max_size=6).filter(lambda of: len(set(of)) == 3))
def test_cue_conflict_equals_a_loop(drawn: tuple[Tensor, Tensor, Tensor], category: list[int]) -> None:
    logits, shape, texture = drawn[0], drawn[1] % 3, drawn[2] % 3
    members = [[at for at in range(6) if category[at] == k] for k in range(3)]
    matrix = torch.tensor([[(at in names) / len(names) for at in range(6)] for names in members])
    counts = {"shape": 0, "texture": 0, "neither": 0}
    for row, s, t in zip(logits.double().tolist(), shape.tolist(), texture.tolist(), strict=True):
        if s == t:
            continue
        total = sum(math.exp(z) for z in row)
        means = [sum(math.exp(row[at]) / total for at in names) / len(names) for names in members]
        guess = means.index(max(means))
        counts["shape" if guess == s else "texture" if guess == t else "neither"] += 1
    values = dict(cue_conflict(logits, matrix, shape, texture))
    observed = sum(counts.values())
    assert bool(values) == (observed > 0)
    if observed:
        assert values["by_shape"] == pytest.approx(counts["shape"] / observed)
        assert values["by_texture"] == pytest.approx(counts["texture"] / observed)
        assert values["decided"] + values["neither"] == pytest.approx(1)
        decided = counts["shape"] + counts["texture"]
        assert values.get("shape_bias") == (pytest.approx(counts["shape"] / decided) if decided else None)


def test_with_a_category_for_every_class_cue_conflict_is_shape_bias() -> None:
    logits, shape, texture = torch.randn(20, 6), torch.arange(20) % 6, torch.arange(20) % 5
    plain = dict(shape_bias(logits, shape, {"texture": texture}))
    values = dict(cue_conflict(logits, torch.eye(6), shape, texture))
    assert {name: values[name] for name in plain} == pytest.approx(plain)


def test_groups_by_hand() -> None:
    label = torch.tensor([0, 0, 0, 0, 1, 1])
    group = torch.tensor([0, 0, 0, 1, 3, 3])  # group 2 has no image
    names = ("land on land", "land on water", "water on land", "water on water")
    share = {"land on land": 0.7, "land on water": 0.05, "water on land": 0.05, "water on water": 0.2}
    values, detail = group_accuracy(logits_for([0, 0, 1, 1, 1, 1], 2), label, group, names, share)
    assert detail == {
        "land on land": {"accuracy": pytest.approx(2 / 3), "count": 3},
        "land on water": {"accuracy": 0.0, "count": 1},
        "water on water": {"accuracy": 1.0, "count": 2},
    }
    expected = {"worst_group": 0.0, "mean_group": 5 / 9, "worst_group_size": 1}
    assert values == pytest.approx(expected | {"adjusted": (0.7 * 2 / 3 + 0.2) / 0.95})
    assert group_accuracy(logits_for([0, 0, 1, 1, 1, 1], 2), label, group, names)[0] == pytest.approx(expected)
    unseen = group_accuracy(logits_for([0] * 6, 2), label, group, names, {"water on land": 1.0})[0]
    assert "adjusted" not in unseen  # the training set has none of these groups
    assert group_accuracy(torch.zeros(0, 2), label[:0], group[:0], names, share) == ({}, {})


@settings(deadline=None, max_examples=60)
@given(outputs(), st.data())
def test_groups_equal_a_loop(drawn: tuple[Tensor, Tensor, Tensor], data: st.DataObject) -> None:
    logits, label, group = drawn
    names = tuple("abcdef")
    weights = data.draw(st.lists(st.integers(0, 5), min_size=6, max_size=6))
    share = {name: weight / 30 for name, weight in zip(names, weights, strict=True)}
    hits: dict[str, list[bool]] = {}
    for row, y, at in zip(logits.tolist(), label.tolist(), group.tolist(), strict=True):
        hits.setdefault(names[at], []).append(row.index(max(row)) == y)
    rates = {name: sum(each) / len(each) for name, each in hits.items()}
    values, detail = group_accuracy(logits, label, group, names, share)
    assert {name: facts["accuracy"] for name, facts in detail.items()} == pytest.approx(rates)
    assert {name: facts["count"] for name, facts in detail.items()} == {name: len(each) for name, each in hits.items()}
    assert values["worst_group"] == pytest.approx(min(rates.values()))
    assert values["mean_group"] == pytest.approx(sum(rates.values()) / len(rates))
    assert values["worst_group_size"] in [len(hits[n]) for n in rates if rates[n] == pytest.approx(min(rates.values()))]
    total = sum(share[name] for name in rates)
    if total:
        assert values["adjusted"] == pytest.approx(sum(share[name] * rates[name] for name in rates) / total)
    own = {name: len(each) / len(label) for name, each in hits.items()}  # weighed by its own shares: plain accuracy
    plain = dict(accuracy(logits, label))["accuracy"]
    assert group_accuracy(logits, label, group, names, own)[0]["adjusted"] == pytest.approx(plain)


def test_class_answers_equal_a_count_by_hand() -> None:
    names, generator = ("ant", "bee", "bee", "cow"), torch.Generator().manual_seed(0)
    logits, label = torch.randn(60, 4, generator=generator), torch.randint(3, (60,), generator=generator)
    result = class_answers(logits, label, names, most=5)
    titles = ["ant", "bee (1)", "bee (2)", "cow"]
    counts: dict[str, dict[str, int]] = {title: {} for title in titles}
    wrong = []
    for at in range(60):
        row = [float(value) for value in logits[at]]
        answer, true = row.index(max(row)), int(label[at])
        counts[titles[true]][titles[answer]] = counts[titles[true]].get(titles[answer], 0) + 1
        if answer != true:
            share = math.exp(max(row)) / sum(map(math.exp, row))
            wrong.append((-share, at, titles[true], titles[answer]))
    assert result["confusion"] == counts
    for title, answers in counts.items():
        expected = answers.get(title, 0) / sum(answers.values()) if answers else None
        assert result["class_accuracy"][title] == expected
    assert result["class_accuracy"]["cow"] is None  # no image of it
    for mistake, (share, *facts) in zip(result["mistakes"], sorted(wrong)[:5], strict=True):
        assert [mistake[key] for key in ("image", "class", "answer")] == facts
        assert mistake["confidence"] == pytest.approx(-share, abs=1e-6)
    right = class_answers(torch.eye(4), torch.arange(4), names)
    assert right["mistakes"] == []
