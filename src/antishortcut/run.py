"""Run: the frozen, validated settings of one training, their hash and their folder. No torch.

A *recipe* (a TOML file) describes a pair: data, teacher, student, optimiser. A *run* is one training made from it,
with nothing left open; its hash names everything that decides the result.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from antishortcut.errors import UserError, near, shown
from antishortcut.files import content
from antishortcut.files import text as text_of

SCHEMA = 1  # raise it when the meaning of a setting changes
LARGEST = 2**20  # bytes of a recipe
DEEPEST = 16  # sections inside sections that --set may name
LONGEST = 10**9  # epochs or iterations; larger numbers have no place in a float's mantissa once they are steps
Value = bool | int | float | str


class Settings(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSettings(Settings):
    name: str = "cues"
    train_limit: int | None = Field(None, ge=1)  # a class-balanced part of the training set
    test_limit: int | None = Field(None, ge=1)
    val_fraction: float = Field(0.0, ge=0, lt=1)  # held out of training, to choose things by
    image_size: int | None = Field(None, ge=8)
    augment: Literal["crop-flip", "crop", "flip", "imagenet", "scale-crop-flip", "none"] = "crop-flip"
    views: int | None = Field(None, ge=1)  # of students: epoch e is augmented as e mod views; None: anew each epoch
    seed: int = Field(
        0, ge=0, lt=2**31
    )  # of limits and splits, and of generated images; the same for all runs that are to be compared
    options: dict[str, float] = {}  # the data set's own: rho, count …


class ModelSettings(Settings):
    name: str
    stem: Literal["cifar", "imagenet"] = "cifar"
    embedding: str | None = None  # module path of the embedding, found by probing when not given
    pretrained: bool = False  # weights from the hub of timm or torchvision
    weights: str | None = None  # weights from a file
    digest: str | None = None  # sha256 of that file, filled in when a run is made: content counts, not the path


class OptimSettings(Settings):
    name: Literal["sgd", "adamw"] = "sgd"
    rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    weight_decay: float = Field(5e-4, ge=0)
    batch: int = Field(64, ge=1)  # images per optimiser step, over all devices
    accumulate: int = Field(1, ge=1)  # in how many parts a batch is computed
    schedule: Literal["cosine", "step", "poly", "constant"] = "cosine"
    milestones: tuple[float, ...] = ()  # for "step": epochs after which the rate falls to a tenth
    warmup: float = Field(0.0, ge=0)  # epochs of linear warm-up
    clip: float = Field(0.0, ge=0)  # largest gradient norm, 0 for none
    label_smoothing: float = Field(0.0, ge=0, lt=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.accumulate > self.batch:
            raise ValueError(f"accumulate ({self.accumulate}) is larger than batch ({self.batch})")
        return self


class TaskSettings(Settings):
    """Of dense prediction; classification has none."""

    rows: int = Field(1024, ge=1)  # locations of a step that methods learn from, over all devices
    aux: float = Field(0.4, ge=0)  # weight of the auxiliary head's loss, where a network has one


class TeacherSettings(ModelSettings):
    epochs: int | None = Field(None, ge=1)  # or iterations, as the recipe counts; the recipe's number when not given
    rate: float | None = Field(None, gt=0)  # optim.rate when not given
    batch: int | None = Field(None, ge=1)  # optim.batch when not given
    seed: int = Field(0, ge=0, lt=2**31)  # one teacher serves all seeds of the students
    keep: tuple[float | str, ...] = Field(
        (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0), min_length=1
    )  # per cent of training, or "epoch:36"
    early: str = "15%"  # "15%", "epoch:36", "rewind", or "<teacher hash>/15%" for a state of another teacher
    rewind_epochs: int = Field(10, ge=1)  # or iterations, as the recipe counts; then a 24th of them when not given
    rewind_rate: float = Field(0.05, gt=0)


class Recipe(Settings):
    """A pair, ready to teach and distil. Its length is in epochs or in iterations, and so is whatever counts time."""

    title: str = ""
    epochs: int = Field(0, ge=0, le=LONGEST)
    iterations: int = Field(0, ge=0, le=LONGEST)
    data: DataSettings = DataSettings()
    teacher: TeacherSettings
    student: ModelSettings
    optim: OptimSettings = OptimSettings()
    task: TaskSettings = TaskSettings()
    methods: dict[str, dict[str, Value]] = {}  # settings that belong to this pair, by method

    @model_validator(mode="before")
    @classmethod
    def _rewinds(cls, tree: Any) -> Any:
        """Ten epochs, unless said, would be ten iterations."""
        if isinstance(tree, dict) and isinstance(tree.get("teacher"), dict) and isinstance(tree.get("iterations"), int):
            own = {"rewind_epochs": rewind_length(tree["iterations"])} if tree["iterations"] > 0 else {}
            return tree | {"teacher": own | tree["teacher"]}
        return tree

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if bool(self.epochs) == bool(self.iterations):
            raise ValueError("give its length as epochs or as iterations, one of them, at least 1")
        return self

    @property
    def length(self) -> str:
        return f"{self.epochs} epochs" if self.epochs else f"{self.iterations} iterations"

    @property
    def views(self) -> int | None:
        """How many augmentations of every image a student sees; None when each epoch has its own."""
        views = self.data.views
        return None if views is None or 0 < self.epochs <= views else views


class Run(Settings):
    """One training, resolved. `kind` says where it starts and what it leaves: a trajectory or a student."""

    kind: Literal["teach", "rewind", "distill"]
    suite: str = "runs"
    name: str
    seed: int
    epochs: int  # 0 when its length is in iterations
    iterations: int = 0
    data: DataSettings
    fingerprint: str  # of the data
    model: ModelSettings
    optim: OptimSettings
    task: TaskSettings = TaskSettings()
    method: str = "ce"
    options: dict[str, Value] = {}
    teacher: str | None = None  # hash of the teacher run: the one it learns from, or is only compared with
    early: str = "15%"  # the state that counts as early when the student is examined
    roles: dict[str, str] = {}  # the states it learns from: "early" → "15%" or "<hash>/final"
    keep: tuple[float | str, ...] = ()

    @property
    def hash(self) -> str:
        """16 hex digits over everything that decides the result; the name and the folder do not."""
        aside = {"suite", "name", "early", "keep"} | (
            set() if self.roles else {"teacher"}
        )  # of no effect on the result
        if self.kind == "rewind":
            aside.discard("teacher")
        science = self.model_dump(mode="json", exclude=aside) | {"schema": SCHEMA}
        science["model"].pop("weights")  # its digest is there
        for name, default in (("iterations", 0), ("task", TaskSettings())):  # runs older than these keep their hash
            if getattr(self, name) == default:
                science.pop(name)
        if self.data.views is None:
            science["data"].pop("views")
        return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def length(self) -> str:
        return f"{self.epochs} epochs" if self.epochs else f"{self.iterations} iterations"

    def folder(self, runs: Path) -> Path:
        """runs/teachers/<hash> when the trajectory is kept, so that it can teach; else runs/<suite>/<name>-s<seed>."""
        if not self.keep:
            return runs / self.suite / f"{self.name}-s{self.seed}"
        return runs / "teachers" / self.hash


class Execution(Settings):
    """How a run is computed. Not part of the hash; resolved once, written into run.json, kept on resume."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: int = Field(1, ge=1)
    nodes: int = Field(1, ge=1)
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"  # of the student; auto: the device's own
    teacher_precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    teacher_compile: Literal["auto", "on", "off"] = "auto"  # auto: when a run is long enough and it is faster
    compile: bool = False  # the student
    threads: int = Field(0, ge=0)  # of each process on the CPU; 0 leaves it to torch
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that decode images on disk
    save_every: float = Field(60.0, ge=0)  # seconds between resume states
    cache_teachers: bool | Literal["auto"] = False  # read their logits and embeddings from disk; auto: if there is room


def teach_run(recipe: Recipe, fingerprint: str) -> Run:
    """The training of a recipe's teacher."""
    teacher = recipe.teacher
    return Run(
        kind="teach",
        suite="teachers",
        name=teacher.name,
        seed=teacher.seed,
        **_length(recipe, teacher.epochs),
        data=recipe.data.model_copy(update={"views": None}),
        fingerprint=fingerprint,
        model=_with_digest(_model(teacher)),
        optim=recipe.optim.model_copy(
            update={"rate": teacher.rate or recipe.optim.rate, "batch": teacher.batch or recipe.optim.batch}
        ),
        task=TaskSettings(aux=recipe.task.aux),  # nobody draws rows for a teacher
        keep=teacher.keep,
    )


def _length(recipe: Recipe, own: int | None = None) -> dict[str, int]:
    """Epochs and iterations of a run, one of them 0; its own number counts as the recipe's does."""
    if recipe.iterations:
        return {"epochs": 0, "iterations": own or recipe.iterations}
    return {"epochs": own or recipe.epochs, "iterations": 0}


def rewind_length(iterations: int) -> int:
    """How long a teacher is rewound unless said: ten epochs, or as large a share of its iterations as 10 in 240."""
    return max(round(min(iterations, LONGEST) / 24), 1) if iterations else 10


def rewind_run(teacher: Run, epochs: int = 10, rate: float = 0.05) -> Run:
    """Fine-tuning of a final teacher at a constant high rate (S-Sec. A.4.6): an early-like state when none was kept."""
    constant = teacher.optim.model_copy(update={"schedule": "constant", "rate": rate, "warmup": 0.0})
    length = {"iterations": epochs} if teacher.iterations else {"epochs": epochs}
    return teacher.model_copy(
        update={"kind": "rewind", "teacher": teacher.hash, "optim": constant, "keep": (100.0,)} | length
    )


def distill_run(
    recipe: Recipe,
    fingerprint: str,
    *,
    method: str,
    options: Mapping[str, Value],
    seed: int,
    roles: Mapping[str, str],
    teacher: str,
    early: str,
    suite: str,
    name: str | None = None,
    keep: tuple[float | str, ...] = (),
) -> Run:
    """The training of a student. `options` are the method's, complete; `roles` the teacher states it wants."""
    return Run(
        kind="distill",
        suite=suite,
        name=name or method,
        seed=seed,
        **_length(recipe),
        data=recipe.data.model_copy(update={"views": recipe.views}),
        fingerprint=fingerprint,
        model=_with_digest(recipe.student),
        optim=recipe.optim,
        task=recipe.task,
        method=method,
        options=dict(options),
        teacher=teacher,
        early=early,
        roles=dict(roles),
        keep=keep,
    )


def _model(teacher: TeacherSettings) -> ModelSettings:
    return ModelSettings(**{key: getattr(teacher, key) for key in ModelSettings.model_fields})


def _with_digest(model: ModelSettings) -> ModelSettings:
    if model.weights is None:
        return model.model_copy(update={"digest": None})
    try:
        data = content(Path(model.weights), None)
    except OSError as error:
        raise UserError(f"weights {model.weights}: cannot be read ({error.strerror})") from None
    return model.model_copy(update={"digest": hashlib.sha256(data).hexdigest()})


def shipped_recipes() -> dict[str, Path]:
    """Recipes inside the package, by name."""
    folder = Path(str(files("antishortcut") / "recipes"))
    return {path.stem: path for path in sorted(folder.glob("*.toml"), key=lambda p: (len(p.stem), p.stem))}


def _repdistiller(tree: dict[str, Any]) -> None:
    """RepDistiller's: a tenth after epochs 150, 180, 210; rate 0.01 for MobileNet and ShuffleNet students."""
    if tree["data"]["name"] != "cifar100":
        raise UserError("RepDistiller's protocol is for the CIFAR-100 pairs, P1 to P10")
    optim = tree.setdefault("optim", {})
    optim |= {"schedule": "step", "milestones": [150, 180, 210], "rate": 0.05}
    if tree["student"]["name"].startswith(("mobilenet", "shufflenet")):
        tree["teacher"]["rate"], optim["rate"] = 0.05, 0.01


PROTOCOLS = {"repdistiller": _repdistiller}  # "P2@repdistiller" is P2 under another protocol, never mixed in


def load_recipe(source: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from a TOML file or by the name of a shipped one (NAME or NAME@PROTOCOL), with overrides applied."""
    shipped = shipped_recipes()
    path = Path(source)
    protocol = ""
    if not path.is_file():
        name, _, protocol = source.partition("@")
        if name not in shipped:
            raise UserError(f"no recipe {source!r}: neither a file nor a shipped one{near(name, shipped)}")
        if protocol and protocol not in PROTOCOLS:
            raise UserError(f"no protocol {protocol!r}{near(protocol, PROTOCOLS)}")
        path = shipped[name]
    try:
        tree = tomllib.loads(text_of(path, LARGEST))
    except (OSError, ValueError, RecursionError) as error:  # of numbers with thousands of digits, a plain ValueError
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path}: not a TOML file: {reason}") from None
    if protocol:
        PROTOCOLS[protocol](tree)
    for override in overrides:
        _override(tree, override)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{path}: {_first(error)}") from None


def with_settings(recipe: Recipe, overrides: Iterable[str]) -> Recipe:
    """A recipe with settings overridden, as by --set."""
    tree = recipe.model_dump(mode="json", exclude_unset=True)
    for override in overrides:
        _override(tree, override)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{recipe.title}: {_first(error)}") from None


COUNTS = {"epochs": "iterations", "iterations": "epochs"}


def _override(tree: dict[str, Any], text: str) -> None:
    """`optim.rate=0.1` sets tree["optim"]["rate"]; values are TOML, bare words are strings."""
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise UserError(f"--set {text!r}: write key=value, like --set epochs=10 or --set optim.rate=0.1")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value
    if key.strip() in COUNTS:  # a length takes the place of the other kind
        tree.pop(COUNTS[key.strip()], None)
    *parents, last = key.strip().split(".", DEEPEST + 1)
    if len(parents) > DEEPEST:
        raise UserError(f"--set {text[:80]!r}: no setting lies so deep; write key=value, like --set optim.rate=0.1")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise UserError(f"--set {text!r}: {parent!r} is a value, not a section")
    tree[last] = parsed


def _first(error: ValidationError) -> str:
    """The first complaint of pydantic in one line, with the near names for an unknown key."""
    problem = error.errors()[0]
    if problem["loc"][:1] == ("methods",) and len(problem["loc"]) > 3:  # methods.asd.queue, then a branch of the union
        setting = ".".join(map(str, problem["loc"][:3]))
        return f"{setting}: wants one number, word or true/false, not {shown(problem['input'])}"
    place = ".".join(str(part) for part in problem["loc"]) or "recipe"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {place!r}{near(str(problem['loc'][-1]), _keys(problem['loc'][:-1]))}{more}"
    if problem["type"] == "value_error":  # of a whole section, which needs no repeating
        return f"{place}: {problem['msg'].removeprefix('Value error, ')}{more}"
    return f"{place}: {problem['msg']}, not {shown(problem.get('input'))}{more}"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """The settings known at a place of the recipe."""
    model: Any = Recipe
    for part in path:
        model = model.model_fields[str(part)].annotation
    return list(model.model_fields)
