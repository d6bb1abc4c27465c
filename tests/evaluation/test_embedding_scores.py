"""Nearest neighbours and the linear probe of frozen embeddings, against loops and by what must hold."""

import math

import pytest
import torch

from antishortcut.evaluation.embedding_scores import PENALTY, TEMPERATURE, linear_probe, nearest_classes


@pytest.mark.parametrize(("count", "k"), [(40, 5), (40, 20), (7, 20)])
def test_neighbours_agree_with_a_loop(count: int, k: int) -> None:
    generator = torch.Generator().manual_seed(count + k)
    train, rows = torch.randn(count, 6, generator=generator), torch.randn(9, 6, generator=generator)
    label = torch.arange(count) % 3
    expected = []
    for row in rows.tolist():
        cosines = []
        for at, other in enumerate(train.tolist()):
            dot = sum(a * b for a, b in zip(row, other, strict=True))
            cosines.append((dot / math.hypot(*row) / math.hypot(*other), int(label[at])))
        votes = [0.0] * 3
        for cosine, one in sorted(cosines, reverse=True)[:k]:
            votes[one] += math.exp(cosine / TEMPERATURE)
        expected.append(votes.index(max(votes)))
    assert nearest_classes(train, label, rows, 3, k).tolist() == expected


def test_the_probe_is_the_minimum_of_its_loss() -> None:
    """Of a convex loss there is one; scikit-learn finds the same classes."""
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 8, generator=generator)
    label = torch.arange(200) % 4
    train = centres[label] + torch.randn(200, 8, generator=generator)
    rows = centres[torch.arange(300) % 4] + torch.randn(300, 8, generator=generator)
    x, y = ((each - train.mean(0)) / train.std(0, correction=0) for each in (train, rows))
    known = linear_model.LogisticRegression(C=1 / (200 * PENALTY), max_iter=2000, tol=1e-8).fit(x, label)
    guess = linear_probe(train, label, rows, 4)
    assert (guess.numpy() == known.predict(y)).mean() > 0.99
    assert torch.equal(guess, linear_probe(1000 * train + 5, label, 1000 * rows + 5, 4))  # scales do not count
    assert torch.equal(guess, linear_probe(train, label, rows, 4))


def test_a_constant_feature_does_no_harm() -> None:
    train = torch.cat([torch.randn(20, 2, generator=torch.Generator().manual_seed(0)), torch.full((20, 1), 3.0)], dim=1)
    label = (train[:, 0] > 0).long()
    assert torch.equal(linear_probe(train, label, train, 2), label)
