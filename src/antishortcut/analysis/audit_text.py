"""What the numbers mean, in plain words beside them. Only what was measured here is said; nothing here is a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

Tree = Mapping[str, Any]
USUAL_BATCH = 64  # images of a training step
VIEWS = {
    "raw": "features as they are, as in the paper, though nothing makes a student’s axes those of its teacher",
    "aligned": "after a linear map onto T_final’s features, fitted on training images",
}


def notes(found: Tree) -> list[str]:
    """What a reader must know before any number: wrong files, states that are the same, too few images."""
    return [*_files(found), *_sizes(found)]


def _files(found: Tree) -> Iterator[str]:
    early, final = (_state(found, name)["accuracy"] for name in (found["early"], "final"))
    chance, count = 1 / found["classes"], found["count"]
    if final is None:
        yield "The model’s outputs are not the data’s classes, so no accuracy says whether the right files were read."
    elif final <= chance + 2 * math.sqrt(chance * (1 - chance) / count) and found["classes"] > 1:
        yield (
            f"T_final classifies {share(final)} of these images rightly; guessing would do as much ({share(chance)}). "
            "Are the file, the model, its normalisation and the order of the classes the right ones?"
        )
    if early is not None and final is not None and early > final:
        yield (
            f"T_early classifies more of these images rightly than T_final ({share(early)} against {share(final)}). "
            "Were the two files swapped?"
        )
    if found["moved"]["size"] is None:
        yield "T_final’s features are zero for all these images, so nothing can be said of what it uses."
    elif found["moved"]["size"] == 0:
        yield "T_early and T_final give the same features for all these images: nothing moved, in no direction."


def _sizes(found: Tree) -> Iterator[str]:
    count, width, k = found["count"], found["width"], found["K"]
    there = len(found["directions"]["displaced"])
    if width <= k:
        yield (
            f"The features have only {width} dimensions, so {k} directions are the whole space: shares and angles tell "
            "nothing here."
        )
    elif count <= k:
        yield f"Only {_images(count)} seen, so no more directions than that can be found, and none of them is certain."
    elif count < width:
        yield f"There are fewer images ({count:,}) than features ({width:,}): see first how steady the directions are."
    if 0 < there < min(k, width, count):
        yield f"The features moved along {there} of the {k} directions asked for, and along no other."


def findings(found: Tree) -> list[dict[str, str]]:
    """A line for each number: the part it belongs to, its name, the number, what stands beside it, what it means."""
    pieces = {
        "states": _moved,
        "energy": _energy,
        "overlap": _overlap,
        "steadiness": _steadiness,
        "carried": _carried,
        "student": _student,
    }
    keys = ("name", "value", "beside", "means")
    return [
        {"part": part} | dict(zip(keys, each, strict=True))
        for part, message in pieces.items()
        for each in message(found)
    ]


Line = tuple[str, str, str, str]  # name, number, what stands beside it, what it means


def _moved(found: Tree) -> Iterator[Line]:
    early, final = (_state(found, name)["accuracy"] for name in (found["early"], "final"))
    yield (
        "accuracy",
        f"{share(early)} → {share(final)}",
        f"guessing {share(1 / found['classes'])}",
        "Share of the images that T_early and T_final classify rightly: it shows whether the right files were read.",
    )
    yield (
        "how far the features moved",
        share(found["moved"]["size"]),
        "",
        "Mean squared distance between early and final features of an image, against their final squared length.",
    )
    yield (
        "of that, alike for all images",
        share(found["moved"]["common"]),
        "",
        "The part of the movement that is one and the same shift of every image, and tells no image from another.",
    )
    evaluated = _judged(found)
    if evaluated is not None:
        yield (
            "of that, in the displaced directions",
            share(evaluated["displaced"]["explained"]),
            f"random {share(evaluated['displaced']['random'])}",
            f"How much of the movement {found['K']} directions catch: found on one half of the images, measured on the "
            "other.",
        )


def _energy(found: Tree) -> Iterator[Line]:
    early, final = (_state(found, name) for name in (found["early"], "final"))
    random, limits = f"random {share(found['energy_random'])}", found["limits"]
    yield (
        "energy in the displaced directions",
        f"{share(early['shortcut'])} → {share(final['shortcut'])}",
        random,
        "Mean share of an image’s squared feature length in the directions that moved most, T_early → T_final.",
    )
    fates = [direction["fate"] for direction in found["directions"]["displaced"]]
    yield (
        "displaced directions that training abandoned",
        f"{fates.count('abandoned')} of {len(fates)}",
        f"reused {fates.count('reused')}, grown {fates.count('grown')}",
        "The paper’s premise is that training abandons them. Counted here by arithmetic alone: abandoned, if less than "
        f"{limits['abandoned']:g} of a direction’s early share of the energy is left; grown, if more than "
        f"{limits['grown']:g} times; reused in between.",
    )
    yield (
        "energy in the abandoned directions",
        f"{share(early['abandoned'])} → {share(final['abandoned'])}",
        random,
        "The same for directions searched for on purpose, strong in the movement and weak in T_final. That little is "
        "left is how they were chosen; how much there was early is the finding.",
    )
    evaluated = _judged(found)
    if evaluated is not None:
        yield (
            "energy lost on other images",
            f"{share(evaluated['displaced']['lost'])}, {share(evaluated['abandoned']['lost'])}",
            "displaced, abandoned",
            "1 − final / early energy on the half of the images that the directions were not found on; negative where "
            "it grew.",
        )


def _overlap(found: Tree) -> Iterator[Line]:
    held = found["overlap"]
    yield (
        "angle to T_final’s principal directions",
        degrees(held["angles"]["mean"]),
        f"random {degrees(held['angles']['random'])}",
        "Between the displaced directions and those along which T_final varies most: near 0° they are the same, near "
        "the random value they have nothing in common.",
    )
    yield (
        "T_final’s variance in the displaced directions",
        share(held["variance_displaced"]),
        f"at most {share(held['variance_principal'])}, random {share(held['variance_random'])}",
        "How much of what tells images apart in T_final lies in them; its principal directions hold the most possible.",
    )
    both = held["displaced_abandoned"]
    yield (
        "angle between displaced and abandoned",
        degrees(both["mean"]),
        f"random {degrees(both['random'])}",
        "Whether the two searches found the same directions: near 0° they did.",
    )
    if "head" in found:
        read = found["head"]["share"]
        yield (
            "the classifier’s weights in the displaced directions",
            share(read["frobenius_share"]),
            f"random {share(read['random_frobenius_share'])}",
            "How much T_final’s last layer reads them: the length (Frobenius norm) of that part of its weights against "
            "the whole.",
        )


def _steadiness(found: Tree) -> Iterator[Line]:
    yield (
        "eigengap",
        share(found["spectrum"]["eigengap"]["uncentred"]["relative"]),
        "of the largest eigenvalue",
        f"The drop behind direction {found['K']}. Where it is small, another sample of images may choose others.",
    )
    boot = found["bootstrap"]
    spread = "" if boot["std"] is None else f" ± {degrees(boot['std'])}"
    yield (
        "angle between parts of the training images",
        f"{degrees(boot['mean'])}{spread}",
        f"random {degrees(boot['random'])}",
        f"Displaced directions of {boot['parts']} disjoint parts of {boot['rows']:,} images, compared pair by pair: 0° "
        "is perfectly steady, the random value is chance.",
    )
    batches = [row for row in found["batches"] if row["batch"] <= USUAL_BATCH] or found["batches"][:1]
    for row in batches[-1:]:
        yield (
            f"angle of a batch of {row['batch']}",
            degrees(row["to_whole"]),
            f"random {degrees(found['batches_random'])}",
            "A training step sees a batch only: how far its directions lie from those of all training images.",
        )


def _carried(found: Tree) -> Iterator[Line]:
    for kind, states in found.get("explained", {}).items():
        for cue in ("texture", "shape"):
            yield (
                f"{cue} in the {kind} directions",
                f"{share(states['early'][cue])} → {share(states['final'][cue])}",
                "chance 0 %",
                f"Share of the variance along them that the image’s {cue} explains, T_early → T_final.",
            )


def _student(found: Tree) -> Iterator[Line]:
    if "student" not in found:
        return
    held, outputs = found["student"], found["student"]["projections"]
    guess = f"guessing {share(1 / found['classes'])}"
    yield "accuracy", share(held["accuracy"]), guess, "Share of the images that the student classifies rightly."
    for view, words in VIEWS.items():
        if view in outputs:
            yield (
                f"projection, {view}",
                number(outputs[view]["displaced"]),
                f"random {number(outputs[view]['random'])}, T_early {number(outputs['early']['displaced'])}, "
                f"T_final {number(outputs['final']['displaced'])}",
                f"Mean length of its normalised features in the displaced directions; {words}.",
            )
    points = held["paper"]
    yield (
        "the paper’s two students",
        ", ".join(f"{point['projection']:.2f}" for point in points),
        "random " + ", ".join(number(point["random"]) for point in points),
        "; ".join(f"{point['projection']:.2f}: {point['pair']}, where {point['outcome']}" for point in points)
        + ". Two points, of networks of other widths, are no scale: nothing here decides by them.",
    )


def _judged(found: Tree) -> Tree | None:
    return next((row for row in found["candidates"] if row["state"] == found["early"]), None)


def _state(found: Tree, name: str) -> Tree:
    row: Tree = next(row for row in found["energy"] if row["state"] == name)
    return row


def _images(count: int) -> str:
    return "1 image was" if count == 1 else f"{count:,} images were"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %".replace("-", "−")


def degrees(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}°"
