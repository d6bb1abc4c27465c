"""Recipes and runs: what is read, what is refused, and what the hash covers."""

from pathlib import Path

import pytest

from antishortcut.config.recipe import Recipe, Run, distill_run, load_recipe, rewind_run, shipped_recipes, teach_run
from antishortcut.errors import UserError


def student(recipe: Recipe, **changes: object) -> Run:
    settings: dict[str, object] = {"method": "asd", "options": {"tc": 0.8}, "seed": 1, "suite": "s"}
    settings |= {"teacher": "t" * 16, "roles": {"final": "final", "early": "15%"}, "early": "15%"}
    return distill_run(recipe, "data", **(settings | changes))  # type: ignore[arg-type]


@pytest.fixture
def p2() -> Recipe:
    return load_recipe("P2")


def test_shipped_recipes_have_the_settings_of_the_paper() -> None:
    names = shipped_recipes()
    assert all(load_recipe(name).title for name in names)
    assert [f"P{n}" for n in range(1, 14)] == [name for name in names if name.startswith("P")]
    for number in range(1, 11):
        recipe = load_recipe(f"P{number}")
        assert (recipe.epochs, recipe.data.name, recipe.data.augment) == (240, "cifar100", "crop-flip")
        optim = recipe.optim
        assert (optim.name, optim.lr, optim.momentum, optim.weight_decay) == ("sgd", 0.05, 0.9, 5e-4)
        assert (optim.batch, optim.schedule, optim.nesterov, recipe.teacher.early) == (64, "cosine", False, "15%")


def test_the_repdistiller_protocol() -> None:
    plain, other = load_recipe("P2"), load_recipe("P2@repdistiller")
    assert (other.optim.schedule, other.optim.milestones, other.optim.lr) == ("step", (150, 180, 210), 0.05)
    assert other.model_copy(update={"optim": plain.optim}) == plain
    shuffle = load_recipe("P6@repdistiller", ["epochs=1"])
    assert (shuffle.optim.lr, shuffle.teacher.lr, shuffle.epochs) == (0.01, 0.05, 1)
    teachers = [teach_run(load_recipe(name), "data").hash for name in ("P6@repdistiller", "P2@repdistiller")]
    assert teachers[0] == teachers[1]
    with pytest.raises(UserError, match="no protocol 'repdistilled'; did you mean 'repdistiller'"):
        load_recipe("P2@repdistilled")


def test_the_length_is_in_epochs_or_in_iterations() -> None:
    by_epochs, by_steps = load_recipe("P2", ["epochs=3"]), load_recipe("P2", ["iterations=70"])
    assert (by_epochs.length, by_steps.length) == ("3 epochs", "70 iterations")
    teacher = teach_run(load_recipe("P2", ["iterations=70", "teacher.epochs=90"]), "f")
    assert (teacher.epochs, teacher.iterations) == (0, 90)
    rewound = rewind_run(teacher, 7)
    assert (rewound.epochs, rewound.iterations) == (0, 7)
    assert load_recipe("P2", ["iterations=11"]).teacher.rewind_epochs == 1
    assert [load_recipe("P2", [f"epochs={n}"]).teacher.rewind_epochs for n in (2, 48, 240)] == [1, 2, 10]
    assert load_recipe("ade20k-resnet18").teacher.rewind_epochs == 1667  # 10 of 240 epochs, as a fraction
    assert load_recipe("cues-seg", ["teacher.rewind_epochs=7"]).teacher.rewind_epochs == 7
    plain = teach_run(by_epochs, "f")
    assert (plain.epochs, plain.iterations) == (3, 0)
    assert plain.hash != teacher.hash
    for text, same in (("task.aux=0.4", True), ("task.samples=10", True), ("task.aux=0.1", False)):
        other = teach_run(load_recipe("P2", ["epochs=3", text]), "f")  # a teacher draws no samples
        assert (other.hash == plain.hash) == same


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("epoch=1", ["epoch", "'epochs'"]),
        ("optim.moment=1", ["optim.moment", "'momentum'"]),
        ("optim.rate=0.1", ["'optim.rate' is called 'optim.lr' since version 0.2"]),
        ("data.views=2", ["'data.views' is called 'data.augmentation_cycle'"]),
        ("optim.lr=fast", ["optim.lr", "fast"]),
        ("epochs=0", ["epochs or", "iterations"]),
        ("iterations=-1", ["iterations", "greater than"]),
        ("epochs", ["key=value"]),
        ("=3", ["key=value"]),
        ("epochs.x=3", ["epochs"]),
        ("optim.lr=nan", ["optim.lr"]),
        ("optim.accumulate=65", ["accumulate"]),
        ("methods.asd.queue=[1]", ["methods.asd.queue: ", "not [1]"]),
        ("optim.ema=1", ["optim.ema"]),
        ("optim.mixup=-1", ["optim.mixup"]),
        ("optim.decay=some", ["optim.decay"]),
        ("optim.betas=[0.9,1.0]", ["optim.betas"]),
        ("teacher.early=first.pt", ["teacher: ", "final must be one too"]),
        ("teacher.final=last.pt teacher.pretrained=true", ["leave pretrained and weights off"]),
        ("teacher.final=last.pt teacher.weights=other.pt", ["leave pretrained and weights off"]),
    ],
)
def test_a_wrong_override_is_one_line_with_a_hint(override: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_recipe("P2", override.split())
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_missing_or_broken_recipe_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did you mean 'cues'"):
        load_recipe("cue")
    broken = tmp_path / "broken.toml"
    broken.write_text("epochs = = 3")
    with pytest.raises(UserError, match=r"broken\.toml: not a TOML file"):
        load_recipe(str(broken))
    broken.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not a TOML file"):
        load_recipe(str(broken))


def test_the_hash_covers_all_that_changes_the_result(p2: Recipe) -> None:
    base = student(p2)
    assert len(base.hash) == 16
    assert base.hash == student(p2).hash
    assert base.hash == student(p2, suite="other", name="another").hash
    settings = ["optim.lr=0.1", "optim.ema=0.99", "optim.mixup=0.2", "optim.cutmix=1", "optim.decay=weights"]
    settings += ["optim.betas=[0.9, 0.95]", "data.augment=none"]
    others = [load_recipe("P2", [text]) for text in settings]
    changed = [
        student(p2, seed=2),
        student(p2, options={"tc": 0.7}),
        student(p2, teacher="u" * 16),
        student(p2, roles={"final": "final", "early": "10%"}),
        base.model_copy(update={"fingerprint": "other data"}),
        *(student(recipe) for recipe in others),
    ]
    assert len({run.hash for run in [base, *changed]}) == len(changed) + 1
    assert len({teach_run(recipe, "data").hash for recipe in [p2, *others]}) == len(others) + 1


def test_the_hash_of_a_student_covers_only_the_states_it_uses(p2: Recipe) -> None:
    ce = student(p2, method="ce", options={}, roles={})
    assert ce.hash == student(p2, method="ce", options={}, roles={}, teacher="u" * 16, early="10%").hash
    kd = student(p2, method="kd", options={}, roles={"final": "final"})
    assert kd.hash == student(p2, method="kd", options={}, roles={"final": "final"}, early="10%").hash
    assert kd.hash != student(p2, method="kd", options={}, roles={"final": "final"}, teacher="u" * 16).hash


def test_teachers_are_shared_whatever_states_are_saved(p2: Recipe) -> None:
    teacher = teach_run(p2, "data")
    assert teacher.hash == teach_run(load_recipe("P4"), "data").hash  # P2 and P4 have the same WRN-40-2
    assert teacher.hash == teach_run(load_recipe("P2", ["teacher.keep=[15]"]), "data").hash
    assert teacher.hash != teach_run(load_recipe("P2", ["teacher.epochs=100"]), "data").hash
    assert teacher.folder(Path("runs")) == Path("runs/teachers") / teacher.hash


def test_the_content_of_a_weights_file_is_hashed_and_not_its_path(tmp_path: Path) -> None:
    hashes = []
    for name, data in (("a", b"1"), ("b", b"1"), ("a", b"2")):
        (tmp_path / name).write_bytes(data)
        hashes.append(teach_run(load_recipe("P2", [f"teacher.weights={tmp_path / name}"]), "data").hash)
    assert hashes[0] == hashes[1] != hashes[2]
    assert teach_run(load_recipe("P2"), "data").hash not in hashes
    with pytest.raises(UserError, match="cannot be read"):
        teach_run(load_recipe("P2", ["teacher.weights=nowhere.pt"]), "data")


def test_rewinding_is_a_run_with_its_own_hash(p2: Recipe) -> None:
    teacher = teach_run(p2, "data")
    rewound = rewind_run(teacher)
    assert (rewound.epochs, rewound.optim.schedule, rewound.optim.lr) == (10, "constant", 0.05)
    assert rewound.teacher == teacher.hash
    assert rewind_run(teach_run(load_recipe("P2", ["optim.ema=0.99"]), "data")).optim.ema == 0  # not averaged
    assert rewound.hash not in (teacher.hash, rewind_run(teacher.model_copy(update={"seed": 9})).hash)


def test_runs_are_frozen_and_round_trip(p2: Recipe) -> None:
    run = student(p2)
    assert Run.model_validate_json(run.model_dump_json()) == run
    with pytest.raises(ValueError, match="frozen"):
        run.seed = 3  # type: ignore[misc]
