"""Audit a model: a final state, candidates for an early one, images, and optionally a student → audit.json."""
# N images, D features, K directions

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from antishortcut.analysis.answers import write_answers
from antishortcut.analysis.directions import GROWN, K, States, cue_images, displaced_and_abandoned, examine_states
from antishortcut.analysis.features import Predictions, features, predictions, sample
from antishortcut.analysis.moments import (
    LEFT,
    Kind,
    Moments,
    angles,
    energy,
    folds,
    held_out_directions,
    ratio,
    student_views,
    subspace_projection,
    to_json,
)
from antishortcut.errors import UserError, suggest
from antishortcut.metrics import near_chance
from antishortcut.models import Network
from antishortcut.types import DataSplits

VERSION = 1  # of audit.json
POOL = 5_000  # images of each set by default (S-Sec. A.3)
MAPS = Path("pictures") / "maps.npz"
KINDS: tuple[Kind, ...] = ("displaced", "abandoned")
PAPER = (  # projections of KD students on the shortcut eigenspace (S-Sec. A.9.1); the random value is √(K/D)
    {"pair": "P1, ResNet-34 → ResNet-18", "projection": 0.21, "random": math.sqrt(4 / 512), "outcome": "ASD helped"},
    {"pair": "P3, ResNet-32x4 → ResNet-8x4", "projection": 0.07, "random": math.sqrt(4 / 256), "outcome": "it did not"},
)


def audit(
    final: Network,
    states: Mapping[str, Network],
    sets: DataSplits,
    out: Path,
    *,
    early: str | None = None,
    student: Network | None = None,
    set_name: str | None = None,
    limit: int = POOL,
    device: str = "cpu",
    quiet: bool = True,
) -> dict[str, Any]:
    """Measurements ready for JSON, with strips of images in out/pictures.

    states: candidates for the early state by name, in the order of training. `early` is the one whose directions are
    described, by default the first. Images are those of a test set, by default the first, and of the training set for
    stability and the student's linear map; at most `limit` of each.
    """
    early = next(iter(states)) if early is None else early
    if early not in states:
        raise UserError(f"no early state {early!r}{suggest(early, states)}")
    set_name = next(iter(sets.tests)) if set_name is None else set_name
    if set_name not in sets.tests:
        raise UserError(f"{sets.name} has no test set {set_name!r}{suggest(set_name, sets.tests)}")
    images, names = sample(sets.tests[set_name], limit)
    students = {} if student is None else {"student": student}
    results = predictions({**states, "final": final, **students}, images, sets.image_size, device, "states", quiet)
    pool = {name: results[name].features for name in (*states, "final")}
    if len({rows.shape[1] for rows in pool.values()}) > 1:
        widths = {name: rows.shape[1] for name, rows in pool.items()}
        raise UserError(f"the states have features of different widths, {widths}: they are not of one model")
    accuracy = {
        name: float((one.label == images.label).double().mean()) if one.classes == len(sets.classes) else None
        for name, one in results.items()
    }
    pair = {"early": states[early], "final": final}
    train_images, _ = sample(sets.train, limit)
    train = features({**pair, **students}, train_images, sets.image_size, device, "training images", quiet)

    cues = None
    if (known := cue_images(sets)) is not None:
        known, _ = sample(known, limit)
        cues = features(pair, known, sets.image_size, device), known
    (out / "pictures").mkdir(parents=True, exist_ok=True)
    measured = examine_states(pool, early, train, images, names, sets.classes, out / "pictures", final, cues)
    moments = Moments(pool["final"], pool[early])
    bases = displaced_and_abandoned(moments)
    result: dict[str, Any] = {
        "audit": VERSION,
        "data": sets.name,
        "set": set_name,
        "fingerprint": sets.fingerprint,
        "classes": len(sets.classes),
        "training_images": len(train_images),
        "pixels": final.size or sets.image_size,
        **{
            key: [round(x, 4) for x in value.flatten().tolist()]
            for key, value in (("mean", final.mean), ("std", final.std))
        },
        "limits": {"abandoned": LEFT, "grown": GROWN},
        "early": early,
        "answers": None if accuracy[early] is None else changed(results[early], results["final"], images.label),
        **measured,
        "overlap": overlap(moments),
        "candidates": [row | {"accuracy": accuracy[row["state"]]} for row in candidates(pool)],
    }
    for row in result["energy"]:
        row |= {"accuracy": accuracy[row["state"]], "abandoned": energy(pool[row["state"]], bases["abandoned"])}
    if student is not None:
        rows = {"final": pool["final"], "early": pool[early], "student": results["student"].features}
        result["student"] = {"accuracy": accuracy["student"]} | student_projections(rows, train, bases)
    if result["answers"] is not None:
        roles = {"early": early, "final": "final"} | ({} if accuracy.get("student") is None else {"own": "student"})
        networks = {role: ({**states} | {"final": final} | students)[name] for role, name in roles.items()}
        answers = {role: results[roles[role]].label for role in ("early", "final")}  # what training gave up comes first
        try:
            write_answers(out / MAPS, networks, answers, images, names, sets, device)
        except UserError as error:  # of a network without feature maps
            result["no_maps"] = str(error)
    result = to_json(result)
    text = {"notes": list(notes(result)), "sentences": list(sentences(result)), "findings": findings(result)}
    return result | text


def changed(early: Predictions, final: Predictions, label: Tensor) -> dict[str, float]:
    """Shares of the images: answered otherwise; wrong early and right now; right early and wrong now."""
    before, now = early.label == label, final.label == label
    which = {"differ": early.label != final.label, "gained": now & ~before, "given_up": before & ~now}
    return {name: float(each.double().mean()) for name, each in which.items()}


def overlap(moments: Moments) -> dict[str, Any]:
    """The displaced directions compared with T_final's own principal ones, and with the abandoned ones."""
    bases, principal = displaced_and_abandoned(moments), moments.pca("final", K)
    displaced, variance = bases["displaced"], moments.final.moment(centred=True)  # (D, K), (D, D)

    def share(basis: Tensor) -> float:
        inside = float((basis * (variance @ basis)).sum())
        return ratio(inside, float(variance.diagonal().sum())) if basis.shape[1] > 0 else math.nan

    return {
        "angles": angles(displaced, principal),
        "displaced_abandoned": angles(displaced, bases["abandoned"]),
        "variance_displaced": share(displaced),
        "variance_principal": share(principal),
        "variance_random": displaced.shape[1] / moments.width if displaced.shape[1] > 0 else math.nan,
    }


def candidates(pool: States) -> list[dict[str, Any]]:
    """Every candidate for the early state: its directions fitted on one half of the images, measured on the other."""
    final = pool["final"]
    if len(final) < 2:
        return []
    fit, test = folds(len(final), 2)
    return [
        {"state": state} | {kind: held_out_directions(rows, final, fit, test, K, kind) for kind in KINDS}
        for state, rows in pool.items()
        if state != "final"
    ]


def student_projections(pool: States, train: States, bases: Mapping[str, Tensor]) -> dict[str, Any]:
    """Mean ‖h̄ᵀU‖ of T_final, T_early and the views of a student; "view" is the one the paper has, where it exists."""
    views = student_views(pool["student"], pool["final"], train)
    projections = {}
    for name, rows in {"final": pool["final"], "early": pool["early"], **views}.items():
        by_kind = {kind: subspace_projection(rows, basis) for kind, basis in bases.items()}
        projections[name] = {kind: one["length"].mean for kind, one in by_kind.items()}
        projections[name]["random"] = by_kind["displaced"]["random"]
    view = "raw" if "raw" in views else "aligned"
    return {"view": view, "width": pool["student"].shape[1], "projections": projections, "paper": list(PAPER)}


# --- What the numbers mean, in plain words: only measurements are reported, nothing here is a verdict ---

Tree = Mapping[str, Any]
Finding = tuple[str, str, str, str]  # name, value, what to compare it with, what it means
USUAL_BATCH = 64  # images of a training step
FEW = 200  # images: fewer are a sign, not a proof
VIEWS = {
    "raw": "unchanged, as in the paper, although nothing aligns a student’s axes with its teacher’s",
    "aligned": "after a linear map onto T_final’s features, fitted on training images",
}


def notes(audit: Tree) -> Iterator[str]:
    """What a reader must know first: wrong files, equal states, too few images."""
    early, final = (_state(audit, name)["accuracy"] for name in (audit["early"], "final"))
    count, width, k, chance = audit["count"], audit["width"], audit["K"], 1 / audit["classes"]
    if final is None:
        yield "The model’s outputs are not the data’s classes, so accuracy cannot show if the right files were read."
    elif audit["classes"] > 1 and (
        near_chance(final, chance) or final <= chance + 2 * math.sqrt(chance * (1 - chance) / count)
    ):
        yield (
            f"T_final classifies {share(final)} of these images right, hardly better than chance ({share(chance)}). "
            f"Check first mean and std ({normalisation(audit)}; --mean and --std change them), then the image size, "
            "the file, the model and the order of the classes."
        )
    if early is not None and final is not None and early > final:
        yield (
            f"T_early is more accurate than T_final ({share(early)} against {share(final)}). Check first mean and std "
            f"({normalisation(audit)}; --mean and --std change them), then the image size ({audit['pixels']} pixels), "
            "then if the files were swapped."
        )
    if audit["moved"]["size"] is None:
        yield "T_final’s features are zero for all these images, so what it uses cannot be measured."
    elif audit["moved"]["size"] == 0:
        yield "T_early and T_final have the same features for all these images: nothing moved, in no direction."
    if width <= k:
        yield f"The features have only {width} dimensions, so {k} directions span the whole space and say nothing."
    elif count <= k:
        yield f"Only {count:,} image{'s' * (count > 1)} for {k} directions: none of the directions is certain."
    elif count < width:
        yield f"There are fewer images ({count:,}) than features ({width:,}): check how stable the directions are."
    there = len(audit["directions"]["displaced"])
    if 0 < there < min(k, width, count):
        yield f"The features moved along {there} of the {k} requested directions, and along no other."


def sentences(audit: Tree) -> Iterator[str]:
    """What training gave up, for the first screen and the end of the command."""
    early, final = (_state(audit, name)["accuracy"] for name in (audit["early"], "final"))
    count, answers = audit["count"], audit["answers"]
    if answers is None:
        yield "The model’s outputs are not the data’s classes: what it answers early and now cannot be compared."
    else:
        yield f"T_early is right in {percent(early)} of {count:,} images, T_final in {percent(final)}."
        if answers["differ"] == 0:
            yield "They answer every image alike."
        else:
            gained, lost = percent(answers["gained"]), percent(answers["given_up"])
            yield f"Training gained {gained} of the images and gave up {lost}: right early, wrong now."
    fates = [one["fate"] for one in audit["directions"]["displaced"]]
    if None not in fates and fates:
        parts = (("gave up", "abandoned"), ("kept", "reused"), ("strengthened", "grown"))
        done = " and ".join(f"{word} {fates.count(fate)}" for word, fate in parts if fate in fates)
        yield f"Of the {len(fates)} direction{'s' * (len(fates) > 1)} in which features moved most, training {done}."
    if cues := audit.get("explained", {}).get("displaced"):
        largest = (max(cues[state].items(), key=lambda cue: cue[1] or 0) for state in ("early", "final"))
        before, now = (f"{cue} ({percent(value)})" for cue, value in largest)
        yield f"What varies along them follows the {before} early and the {now} now."
    if audit.get("student", {}).get("accuracy") is not None:
        yield f"The student is right in {percent(audit['student']['accuracy'])}."
    if count < FEW:
        yield f"Only {count} image{'s' * (count > 1)}: a sign, not a proof."


def findings(audit: Tree) -> list[dict[str, str]]:
    """One line per number: the section it belongs to, its name, its value, what to compare it with, what it means."""
    sections = {
        "states": _moved,
        "energy": _energy,
        "overlap": _overlap,
        "steadiness": _stability,
        "named": _named,
        "carried": _explained,
        "student": _student,
    }
    keys = ("part", "name", "value", "beside", "means")
    return [dict(zip(keys, (part, *line), strict=True)) for part, lines in sections.items() for line in lines(audit)]


def _moved(audit: Tree) -> Iterator[Finding]:
    early, final = (share(_state(audit, name)["accuracy"]) for name in (audit["early"], "final"))
    moved = audit["moved"]
    means = "What the model was shown. Wrong ones make every number here wrong: --image-size, --mean, --std."
    yield "images", f"{audit['pixels']} × {audit['pixels']} pixels", normalisation(audit), means
    means = "Share of the images that T_early and T_final classify correctly; it shows if the right files were read."
    yield "accuracy", f"{early} → {final}", f"chance {share(1 / audit['classes'])}", means
    means = "Mean squared distance between an image’s early and final features, relative to their final squared length."
    yield "how far the features moved", share(moved["size"]), "", means
    means = "The part of the movement that is the same shift for every image, so it separates no image from another."
    yield "of that, the same for all images", share(moved["common"]), "", means
    if (held_out := _held_out(audit)) is not None:
        value, random = (share(held_out["displaced"][key]) for key in ("explained", "random"))
        means = f"Share of the movement in {audit['K']} directions, fitted on half of the images, measured on the rest."
        yield "of that, in the displaced directions", value, f"random {random}", means


def _energy(audit: Tree) -> Iterator[Finding]:
    early, final = (_state(audit, name) for name in (audit["early"], "final"))
    random, limits = f"random {share(audit['energy_random'])}", audit["limits"]
    value = f"{share(early['shortcut'])} → {share(final['shortcut'])}"
    means = "Mean share of an image’s squared feature length in the directions that moved most, T_early → T_final."
    yield "energy in the displaced directions", value, random, means
    fates = [direction["fate"] for direction in audit["directions"]["displaced"]]
    value = f"{fates.count('abandoned')} of {len(fates)}"
    beside = f"reused {fates.count('reused')}, grown {fates.count('grown')}"
    means = (
        f"The paper assumes that training abandons them. Abandoned: less than {limits['abandoned']:g} of a direction’s "
        f"early share of the energy is left; grown: more than {limits['grown']:g} times; reused: in between."
    )
    yield "displaced directions that training abandoned", value, beside, means
    value = f"{share(early['abandoned'])} → {share(final['abandoned'])}"
    means = "The same for directions chosen to be strong in the movement and weak in T_final: little is left by design."
    yield "energy in the abandoned directions", value, random, means
    if (held_out := _held_out(audit)) is not None:
        value = ", ".join(share(held_out[kind]["lost"]) for kind in ("displaced", "abandoned"))
        means = "1 − final / early energy on the images that the directions were not fitted on; negative if it grew."
        yield "energy lost on other images", value, "displaced, abandoned", means


def _overlap(audit: Tree) -> Iterator[Finding]:
    overlap = audit["overlap"]
    value, random = (degrees(overlap["angles"][key]) for key in ("mean", "random"))
    means = "Between the displaced directions and those of T_final’s largest variance: near 0° they are the same."
    yield "angle to T_final’s principal directions", value, f"random {random}", means
    limits = f"at most {share(overlap['variance_principal'])}, random {share(overlap['variance_random'])}"
    means = "Share of T_final’s variance between images in them; its principal directions hold the most possible."
    yield "T_final’s variance in the displaced directions", share(overlap["variance_displaced"]), limits, means
    both = overlap["displaced_abandoned"]
    means = "Whether the two kinds are the same directions: near 0° they are."
    yield "angle between displaced and abandoned", degrees(both["mean"]), f"random {degrees(both['random'])}", means
    if "head" in audit:
        value, random = (share(audit["head"]["share"][key]) for key in ("frobenius_share", "random_frobenius_share"))
        means = "How much T_final’s last layer reads them: the Frobenius norm of its weights in them, relative to all."
        yield "the classifier’s weights in the displaced directions", value, f"random {random}", means


def _stability(audit: Tree) -> Iterator[Finding]:
    value = share(audit["spectrum"]["eigengap"]["uncentred"]["relative"])
    means = f"The drop after direction {audit['K']}. If small, another sample of images may give other directions."
    yield "eigengap", value, "of the largest eigenvalue", means
    folds = audit["bootstrap"]
    value = degrees(folds["mean"]) + ("" if folds["std"] is None else f" ± {degrees(folds['std'])}")
    means = f"Displaced directions of {folds['parts']} folds of {folds['rows']:,} images, in pairs: 0° is stable."
    yield "angle between folds of the training images", value, f"random {degrees(folds['random'])}", means
    batches = [row for row in audit["batches"] if row["batch"] <= USUAL_BATCH] or audit["batches"][:1]
    for row in batches[-1:]:
        means = "A training step sees one batch: the angle from its directions to those of all training images."
        random = f"random {degrees(audit['batches_random'])}"
        yield f"angle of a batch of {row['batch']}", degrees(row["to_whole"]), random, means


def _explained(audit: Tree) -> Iterator[Finding]:
    for kind, states in audit.get("explained", {}).items():
        for cue in ("texture", "shape"):
            value = f"{share(states['early'][cue])} → {share(states['final'][cue])}"
            means = f"Share of the variance along them that the image’s {cue} explains, T_early → T_final."
            yield f"{cue} in the {kind} directions", value, "chance 0 %", means


def _named(audit: Tree) -> Iterator[Finding]:
    """Only directions that simple statistics explain."""
    means = (
        "What projections on it go along with, out of brightness, contrast, saturation, tints, edges, the border and, "
        "where it is known, the object’s size and place."
    )
    for kind, directions in audit["directions"].items():
        for one in directions:
            if name := one.get("statistics", {}).get("name"):
                yield f"{kind} direction {one['number']} is", name, f"R² of all {one['statistics']['r2']:.2f}", means


def _student(audit: Tree) -> Iterator[Finding]:
    if "student" not in audit:
        return
    student, projections = audit["student"], audit["student"]["projections"]
    chance = f"chance {share(1 / audit['classes'])}"
    yield "accuracy", share(student["accuracy"]), chance, "Share of the images that the student classifies correctly."
    for view in (view for view in VIEWS if view in projections):
        value, random = (number(projections[view][key]) for key in ("displaced", "random"))
        states = ", ".join(f"T_{state} {number(projections[state]['displaced'])}" for state in ("early", "final"))
        means = f"Mean length of its normalised features in the displaced directions; {VIEWS[view]}."
        yield f"projection, {view}", value, f"random {random}, {states}", means
    points = student["paper"]
    yield (
        "the paper’s two students",
        ", ".join(f"{point['projection']:.2f}" for point in points),
        "random " + ", ".join(number(point["random"]) for point in points),
        "; ".join(f"{point['projection']:.2f}: {point['pair']}, where {point['outcome']}" for point in points)
        + ". Two points, of networks of other widths, are no scale, so nothing here is decided by them.",
    )


def _held_out(audit: Tree) -> Tree | None:
    return next((row for row in audit["candidates"] if row["state"] == audit["early"]), None)


def _state(audit: Tree, name: str) -> Tree:
    row: Tree = next(row for row in audit["energy"] if row["state"] == name)
    return row


def normalisation(audit: Tree) -> str:
    return ", ".join(f"{key} {' '.join(f'{value:g}' for value in audit[key])}" for key in ("mean", "std"))


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value * 100:.1f} %".replace("-", "−")


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def degrees(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}°"
