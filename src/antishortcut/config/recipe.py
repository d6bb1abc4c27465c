"""Run: the frozen, validated settings of one training, their hash and their folder. No torch.

A *recipe* (a TOML file) describes a pair: data, teacher, student, optimiser. A *run* is one training made from it,
with nothing left open; its hash names everything that decides the result.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from antishortcut.config.schema import LONGEST, PUBLISHED, Int
from antishortcut.config.schema import DataSettings as DataSettings
from antishortcut.config.schema import Execution as Execution
from antishortcut.config.schema import ModelSettings as ModelSettings
from antishortcut.config.schema import OptimSettings as OptimSettings
from antishortcut.config.schema import Settings as Settings
from antishortcut.config.schema import TaskSettings as TaskSettings
from antishortcut.config.schema import TeacherSettings as TeacherSettings
from antishortcut.errors import UserError, plural, short_repr, suggest
from antishortcut.fileio import expanded, sha256
from antishortcut.fileio import text as text_of

RECIPES = Path(__file__).with_name("recipes")
DIALS = {"contrast+hint": ("strength", "beta", "hint")}  # method → settings that are chosen for a budget
TRIALS = "-trials"  # end of the name of the suite in which they are tried
WEAK = "weak-"  # begins the label of the state of a weak network that stands beside a teacher, whose hash ends it
WEAK_LENGTH, WEAK_SEED = 0.3, 2000  # its training, as a share of the student's; distance of its seed from the teacher's
WEAK_KEEP = (5.0, 10.0, 25.0, 50.0, 75.0, 100.0)  # per cent of that, from which its state is chosen
SCHEMA = 2  # raise it when the meaning of a setting changes
Value = bool | int | float | str
LEVELS: dict[str, dict[str, Value]] = {  # of the dial; the first is plain KD
    "none": {"strength": 0.0, "beta": 0.0, "hint": 0.0},
    "slight": {"strength": 0.1, "beta": 4.0, "hint": 10.0},
    "mild": {"strength": 0.25, "beta": 4.0, "hint": 30.0},
    "medium": {"strength": 0.5, "beta": 4.0, "hint": 100.0},
    "strong": {"strength": 1.0, "beta": 4.0, "hint": 100.0},
    "strongest": {"strength": 2.0, "beta": 4.0, "hint": 100.0},
}


class Recipe(Settings):
    """A pair, ready to teach and distil. Its length is in epochs or in iterations, and so is whatever counts time."""

    title: str = Field("", description="Title of the recipe.")
    epochs: Int = Field(0, ge=0, le=LONGEST, description="Length of training. Give this or `iterations`.")
    iterations: Int = Field(0, ge=0, le=LONGEST, description="Length of training, in optimizer steps.")
    data: DataSettings = DataSettings()
    teacher: TeacherSettings
    student: ModelSettings
    optim: OptimSettings = OptimSettings()
    task: TaskSettings = TaskSettings()
    methods: dict[str, dict[str, Value]] = Field(
        default_factory=dict, description="Settings of a method for this pair, as in `[methods.dkd]`."
    )

    @model_validator(mode="before")
    @classmethod
    def _rewinds(cls, tree: Any) -> Any:
        """The default of rewind_epochs follows the length of training."""
        match tree:
            case {"iterations": int(length), "teacher": dict(teacher)} if length > 0:
                return tree | {"teacher": {"rewind_epochs": rewind_length(length)} | teacher}
            case {"epochs": int(length), "teacher": dict(teacher)} if length > 0:
                return tree | {"teacher": {"rewind_epochs": rewind_length(length)} | teacher}
        return tree

    @model_validator(mode="after")
    def _counts(self) -> Self:
        if bool(self.epochs) == bool(self.iterations):
            raise ValueError("give its length as epochs or as iterations, one of them, at least 1")
        return self

    @property
    def length(self) -> str:
        return plural(self.epochs, "epoch") if self.epochs else plural(self.iterations, "iteration")

    @property
    def augmentation_cycle(self) -> int | None:
        """How many augmentations of every image a student sees; None when each epoch has its own."""
        cycle = self.data.augmentation_cycle
        return None if cycle is None or 0 < self.epochs <= cycle else cycle


class Run(Settings):
    """One training, resolved. `kind` says where it starts and what it leaves: a trajectory or a student."""

    kind: Literal["teach", "rewind", "distill", "imported"]  # imported: a teacher that was trained elsewhere
    suite: str = "runs"
    name: str
    seed: int
    epochs: int = Field(ge=0, le=LONGEST)  # 0 when its length is in iterations
    iterations: int = Field(0, ge=0, le=LONGEST)
    data: DataSettings
    fingerprint: str  # of the data
    model: ModelSettings
    optim: OptimSettings
    task: TaskSettings = TaskSettings()
    method: str = "ce"
    options: dict[str, Value] = Field(default_factory=dict)
    teacher: str | None = None  # hash of the teacher run: the one it learns from, or is only compared with
    early: str = "15%"  # the state that counts as early when the student is examined
    roles: dict[str, str] = Field(default_factory=dict)  # the states it learns from: "early" → "15%" or "<hash>/final"
    keep: tuple[float | str, ...] = ()

    @property
    def title(self) -> str:
        """Before its lines of progress."""
        kind = "teacher " if self.keep else "trial " if self.suite.endswith(TRIALS) else ""
        return f"{kind}{self.name} s{self.seed}"

    @property
    def hash(self) -> str:
        """16 hex digits over everything that decides the result; the name and the folder do not."""
        exclude = {"suite", "name", "early", "keep"}  # without effect on the result
        if not self.roles and self.kind != "rewind":
            exclude.add("teacher")
        science = self.model_dump(mode="json", exclude=exclude) | {"schema": SCHEMA}
        science["model"].pop("weights")  # its digest is there
        if self.data.unlabelled is None:  # as before there was such a setting
            science["data"].pop("unlabelled")
        return hashlib.sha256(json.dumps(science, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def length(self) -> str:
        return plural(self.epochs, "epoch") if self.epochs else plural(self.iterations, "iteration")

    def folder(self, runs: Path) -> Path:
        """`runs/teachers/<hash>` when the trajectory is kept, to teach; else `runs/<suite>/<name>-s<seed>`."""
        if not self.keep:
            return runs / self.suite / f"{self.name}-s{self.seed}"
        return runs / "teachers" / self.hash


def teach_run(recipe: Recipe, fingerprint: str) -> Run:
    """The training of a recipe's teacher; if the teacher is already trained, what stands for it.

    fingerprint: of the labelled images, which are all that a teacher is trained on.
    """
    teacher = recipe.teacher
    length = teacher.epochs or recipe.epochs or recipe.iterations
    own = {"lr": teacher.lr or recipe.optim.lr, "batch": teacher.batch or recipe.optim.batch}
    model = ModelSettings(**{key: getattr(teacher, key) for key in ModelSettings.model_fields})
    if teacher.final is not None:
        published = {"pretrained": True} if teacher.final == PUBLISHED else {"weights": teacher.final}
        model = model.model_copy(update=published)
    return Run(
        kind="teach" if teacher.final is None else "imported",
        suite="teachers",
        name=teacher.name,
        seed=teacher.seed,
        epochs=length if recipe.epochs else 0,
        iterations=length if recipe.iterations else 0,
        data=recipe.data.labelled.model_copy(update={"augmentation_cycle": None}),
        fingerprint=fingerprint,
        model=_with_digest(model),
        options={"early": _digest(teacher.early)} if teacher.early_file else {},
        optim=recipe.optim.model_copy(update=own),
        task=TaskSettings(aux=recipe.task.aux),  # nobody draws rows for a teacher
        keep=teacher.keep,
    )


def rewind_length(length: int) -> int:
    """How long a teacher is rewound unless said: as large a share of the epochs or iterations as 10 in 240."""
    return max(round(min(length, LONGEST) / 24), 1)


def early_state(recipe: Recipe, teacher: Run, early: str | None = None) -> str:
    """The state that stands for "early", also one that is still to be made. early: in place of the recipe's."""
    settings = recipe.teacher
    match early or settings.early:
        case "rewind":
            return f"{rewind_run(teacher, settings.rewind_epochs, settings.rewind_lr).hash}/final"
        case "weak":
            return f"{weak_run(recipe, teacher.fingerprint).hash}/{WEAK}{teacher.hash}"
    return early or settings.early_state


def weak_length(whole: int) -> int:
    """How long a weak network is trained unless said: 30 % of the student's epochs or iterations."""
    return math.ceil(WEAK_LENGTH * whole)


def weak_run(recipe: Recipe, fingerprint: str) -> Run:
    """A small network trained briefly on the same images, of which one state takes T_early's place.

    Whatever counts time in the optimiser is shortened like the default length. Its seed is no student's.
    """
    settings, optim = recipe.teacher, recipe.optim
    length = settings.weak_epochs or weak_length(recipe.epochs or recipe.iterations)
    own: dict[str, Any] = {"lr": settings.weak_lr or optim.lr, "warmup": WEAK_LENGTH * optim.warmup}
    own["milestones"] = tuple(WEAK_LENGTH * milestone for milestone in optim.milestones)
    student = _with_digest(recipe.student.without_weights())
    return Run(
        kind="teach",
        suite="teachers",
        name=settings.weak or student.name,
        seed=settings.seed + WEAK_SEED,
        epochs=length if recipe.epochs else 0,
        iterations=length if recipe.iterations else 0,
        data=recipe.data.labelled.model_copy(update={"augmentation_cycle": None}),
        fingerprint=fingerprint,
        model=student if settings.weak is None else ModelSettings(name=settings.weak, stem=student.stem),
        optim=optim.model_copy(update=own),
        task=TaskSettings(aux=recipe.task.aux),
        keep=WEAK_KEEP,
    )


def rewind_run(teacher: Run, epochs: int = 10, lr: float = 0.05) -> Run:
    """Fine-tune a final teacher at a constant high learning rate (S-Sec. A.4.6) to get an early-like state."""
    own = {"schedule": "constant", "lr": lr, "warmup": 0.0, "ema": 0.0}  # averaged, it would be a better state
    length = {"iterations": epochs} if teacher.iterations else {"epochs": epochs}
    changes = {"kind": "rewind", "teacher": teacher.hash, "optim": teacher.optim.model_copy(update=own)}
    return teacher.model_copy(update={**changes, **length, "keep": (100.0,)})


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
        epochs=recipe.epochs,
        iterations=recipe.iterations,
        data=recipe.data.model_copy(update={"augmentation_cycle": recipe.augmentation_cycle}),
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


def _with_digest(model: ModelSettings) -> ModelSettings:
    return model.model_copy(update={"digest": None if model.weights is None else _digest(model.weights)})


def _digest(weights: str) -> str:
    """sha256 of a file of weights. For a folder of states: of its manifest, which has theirs."""
    path = expanded(weights)
    try:
        return sha256(path / "manifest.json" if path.is_dir() else path)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        if isinstance(error, FileNotFoundError) and path.is_dir():
            raise UserError(
                f"{weights} is a folder without manifest.json; name one that Snapshots wrote, or a file of weights"
            ) from None
        raise UserError(f"weights {weights}: cannot be read ({_reason(error)})") from None


def _reason(error: OSError | ValueError) -> str:
    return str(error.strerror if isinstance(error, OSError) else error)


def recipe_template() -> str:
    """The commented recipe that `asd init` writes."""
    return (RECIPES / "template.toml.txt").read_text(encoding="utf-8")


def shipped_recipes() -> dict[str, Path]:
    """Recipes inside the package, by name."""
    return {path.stem: path for path in sorted(RECIPES.glob("*.toml"), key=lambda p: (len(p.stem), p.stem))}


def _repdistiller(tree: dict[str, Any]) -> None:
    """RepDistiller's: a tenth after epochs 150, 180, 210; rate 0.01 for MobileNet and ShuffleNet students."""
    if tree["data"]["name"] != "cifar100":
        raise UserError("RepDistiller's protocol is for the CIFAR-100 pairs, P1 to P10")
    optim = tree.setdefault("optim", {})
    optim |= {"schedule": "step", "milestones": [150, 180, 210], "lr": 0.05}
    if tree["student"]["name"].startswith(("mobilenet", "shufflenet")):
        tree["teacher"]["lr"], optim["lr"] = 0.05, 0.01


PROTOCOLS = {"repdistiller": _repdistiller}  # "P2@repdistiller" is P2 under another protocol, never mixed in


def load_recipe(source: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe from a TOML file or by the name of a shipped one (NAME or NAME@PROTOCOL), with overrides applied."""
    path, protocol = Path(source), ""
    if not path.is_file():
        name, _, protocol = source.partition("@")
        shipped = shipped_recipes()
        if name not in shipped:
            if path.is_dir():
                raise UserError(f"{source!r} is a folder, not a recipe; images go with --data, --teacher and --student")
            raise UserError(f"no recipe {source!r}: neither a file nor a shipped one{suggest(name, shipped)}")
        if protocol and protocol not in PROTOCOLS:
            raise UserError(f"no protocol {protocol!r}{suggest(protocol, PROTOCOLS)}")
        path = shipped[name]
    try:
        text = text_of(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a TOML file: {_reason(error)}") from None
    return recipe_from(text, path, overrides, protocol)


def recipe_from(text: str, where: Path, overrides: Iterable[str] = (), protocol: str = "") -> Recipe:
    """A recipe from the text of a TOML file."""
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # of numbers with thousands of digits, a plain ValueError
        raise UserError(f"{where}: not a TOML file: {error}") from None
    if protocol:
        PROTOCOLS[protocol](tree)
    return _validated(tree, overrides, where)


def with_settings(recipe: Recipe, overrides: Iterable[str]) -> Recipe:
    """A recipe with settings overridden, as by --set."""
    return _validated(recipe.model_dump(mode="json", exclude_unset=True), overrides, recipe.title)


def _validated(tree: dict[str, Any], overrides: Iterable[str], where: Path | str) -> Recipe:
    for override in overrides:
        _override(tree, override)
    try:
        return Recipe.model_validate(tree)
    except ValidationError as error:
        raise UserError(f"{where}: {_first(error)}") from None


RENAMED = {  # keys of version 0.1
    "optim.rate": "optim.lr",
    "teacher.rate": "teacher.lr",
    "teacher.rewind_rate": "teacher.rewind_lr",
    "data.views": "data.augmentation_cycle",
    "task.rows": "task.samples",
}
COUNTS = {"epochs": "iterations", "iterations": "epochs"}


def setting(text: str) -> tuple[str, Any]:
    """`optim.lr=0.1` is ("optim.lr", 0.1); values are TOML, bare words are strings."""
    key, mark, value = text.partition("=")
    if not mark or not key.strip():
        raise UserError(f"--set {text!r}: write key=value, like --set epochs=10 or --set optim.lr=0.1")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        return key.strip(), value


def _override(tree: dict[str, Any], text: str) -> None:
    """`optim.lr=0.1` sets tree["optim"]["lr"]."""
    key, parsed = setting(text)
    if key in COUNTS:  # a length takes the place of the other kind
        tree.pop(COUNTS[key], None)
    *parents, last = key.split(".")
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
        return f"{setting}: wants one number, word or true/false, not {short_repr(problem['input'])}"
    place = ".".join(str(part) for part in problem["loc"]) or "recipe"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if problem["type"] == "extra_forbidden" and place in RENAMED:
        return f"{place!r} is called {RENAMED[place]!r} since version 0.2; rename it{more}"
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {place!r}{suggest(str(problem['loc'][-1]), _keys(problem['loc'][:-1]))}{more}"
    if problem["type"] == "value_error":  # of a whole section, which needs no repeating
        return f"{place}: {problem['msg'].removeprefix('Value error, ')}{more}"
    return f"{place}: {problem['msg']}, not {short_repr(problem.get('input'))}{more}"


def _keys(path: tuple[int | str, ...]) -> list[str]:
    """The settings known at a place of the recipe."""
    model: Any = Recipe
    for part in path:
        model = model.model_fields[str(part)].annotation
    return list(model.model_fields)
