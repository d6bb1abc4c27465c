"""What can be set: data, networks, teachers, optimiser, task, and how all that is computed. No torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Upper bounds far beyond real settings: what lies above would end in an error of torch's, or take all memory.
LONGEST = 10**9  # epochs or iterations; as steps, larger numbers have no place in a float's mantissa
LARGEST = 1e6  # of weights, decays and the like
FASTEST = 1e30  # of learning rates: such a training fails, but one float32 holds its rate times any decay
SIDE = 4096  # pixels of an image
PROCESSES = 1024  # and threads: torch falls over with a million of them
PUBLISHED = "pretrained"  # in place of a file: the weights that a network comes with
FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")  # how files of weights are called
BUILT = ("stem", "embedding", "stages", "mean", "std", "size")  # how a network is built


def _no_bool(value: Any) -> Any:
    if isinstance(value, bool):  # which Python takes for 0 or 1
        raise ValueError(f"wants a number, not {str(value).lower()}")
    return value


Int = Annotated[int, BeforeValidator(_no_bool)]
Float = Annotated[float, BeforeValidator(_no_bool)]
Fraction = Annotated[Float, Field(ge=0, lt=1)]
Length = Annotated[Int, Field(ge=1, le=LONGEST)]
Images = Annotated[Int, Field(ge=1, le=10**7)]
Side = Annotated[Int, Field(ge=8, le=SIDE)]
Seed = Annotated[Int, Field(ge=0, lt=2**31)]
Processes = Annotated[Int, Field(ge=0, le=PROCESSES)]
Weight = Annotated[Float, Field(ge=0, le=LARGEST)]
Rate = Annotated[Float, Field(gt=0, le=FASTEST)]
Level = Annotated[Float, Field(ge=-LARGEST, le=LARGEST)]
Positive = Annotated[Float, Field(gt=0, le=LARGEST)]


class Settings(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSettings(Settings):
    name: str
    stem: Literal["cifar", "imagenet"] = "cifar"
    embedding: str | None = None  # module path of the embedding, found by probing when not given
    stages: tuple[str, ...] | None = Field(None, min_length=1)  # module paths of the feature maps, likewise
    mean: tuple[Level, Level, Level] | None = None  # of the images it wants to see, in [0, 1]; its own when not given
    std: tuple[Positive, Positive, Positive] | None = None
    size: Side | None = None  # side that images are brought to, where it takes only one
    pretrained: bool = False  # weights from the hub of timm or torchvision
    weights: str | None = None  # weights from a file
    digest: str | None = None  # sha256 of that file, filled in when a run is made: content counts, not the path

    def without_weights(self) -> ModelSettings:
        """The same architecture with random weights."""
        return self.model_copy(update={"weights": None, "pretrained": False})

    @property
    def build_options(self) -> dict[str, Any]:
        """How the network is built, besides its name."""
        return {key: value for key in BUILT if (value := getattr(self, key)) != type(self).model_fields[key].default}


class OptimSettings(Settings):
    name: Literal["sgd", "adamw"] = "sgd"
    lr: Rate = 0.05
    momentum: Fraction = 0.9
    nesterov: bool = False
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)  # of AdamW
    weight_decay: Weight = 5e-4
    decay: Literal["all", "weights"] = "all"  # weights: no decay of biases, norms, and what a network wants spared
    batch: Images = 64  # images per optimiser step, over all devices
    accumulate: Images = 1  # in how many parts a batch is computed
    schedule: Literal["cosine", "step", "poly", "constant"] = "cosine"
    milestones: tuple[Float, ...] = ()  # for "step": epochs after which the rate falls to a tenth
    warmup: Float = Field(0.0, ge=0, le=LONGEST)  # epochs of linear warm-up
    clip: Float = Field(0.0, ge=0, le=FASTEST)  # largest gradient norm, 0 for none
    label_smoothing: Fraction = 0.0
    mixup: Weight = 0.0  # α of the Beta distribution of shares, 0 for none; with cutmix one of the two
    cutmix: Weight = 0.0
    ema: Fraction = 0.0  # decay of a running mean of the weights, which is then the student; 0 for none

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.accumulate > self.batch:
            raise ValueError(f"accumulate ({self.accumulate}) is larger than batch ({self.batch})")
        return self

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others of their batch."""
        return self.mixup > 0 or self.cutmix > 0


class Execution(Settings):
    """How a run is computed. Not part of the hash; resolved once, written into run.json, kept on resume."""

    accelerator: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: Int = Field(1, ge=1, le=PROCESSES)
    nodes: Int = Field(1, ge=1, le=PROCESSES)
    precision: Literal["auto", "32-true", "bf16-mixed", "16-mixed"] = "auto"  # of the student; auto: the device's own
    teacher_precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    teacher_compile: Literal["auto", "on", "off"] = "auto"  # auto: when a run is long enough and it is faster
    compile: bool = False  # the student
    threads: Processes = 0  # of each process on the CPU; 0 leaves it to torch
    workers: Processes | Literal["auto"] = "auto"  # processes that decode images on disk
    save_every: Float = Field(60.0, ge=0, le=LONGEST)  # seconds between resume states
    cache_teachers: bool | Literal["auto"] = False  # read their logits and embeddings from disk; auto: if there is room
    micro_batches: Length | Literal["auto"] = 1  # of each of optim.accumulate's; auto: as memory demands
    log: tuple[Literal["tensorboard", "wandb"], ...] = ("tensorboard",)  # may be another when a run goes on
    force: bool = False  # resume although the code of a network changed; of each command, not kept


class DataSettings(Settings):
    name: str = "cues"
    train_limit: Length | None = None  # a class-balanced part of the training set
    test_limit: Length | None = None
    val_fraction: Fraction = 0.0  # held out of training, to choose things by
    image_size: Side | None = None
    augment: Literal["crop-flip", "crop", "flip", "imagenet", "scale-crop-flip", "none"] = "crop-flip"
    augmentation_cycle: Length | None = None  # of students: epoch e is augmented as e mod this; None: anew each epoch
    seed: Seed = 0  # of limits, splits and generated images; the same for all runs that are to be compared
    options: dict[str, Float] = Field(default_factory=dict)  # the data set's own: rho, count …
    unlabelled: str | None = None  # a folder of further training images, without labels, in any layout

    @property
    def labelled(self) -> DataSettings:
        """The same without the images that have no labels: what a teacher is trained on."""
        return self.model_copy(update={"unlabelled": None})


class TaskSettings(Settings):
    """Of dense prediction; classification has none."""

    samples: Length = 1024  # locations of a step that methods learn from, over all devices
    aux: Weight = 0.4  # weight of the auxiliary head's loss, where a network has one


class TeacherSettings(ModelSettings):
    # already trained: a file of weights, a folder of states that Snapshots kept, or "pretrained", its published weights
    final: str | None = None
    epochs: Length | None = None  # or iterations, as the recipe counts; the recipe's number when not given
    lr: Rate | None = None  # optim.lr when not given
    batch: Images | None = None  # optim.batch when not given
    seed: Seed = 0  # one teacher serves all seeds of the students
    # states to save: per cent of training, or "epoch:36"
    keep: tuple[Float | str, ...] = Field((2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0), min_length=1)
    # "15%", "epoch:36", "<teacher hash>/15%" of another, a file as final, "rewind", or "weak" (the default for a file)
    early: str = "15%"
    rewind_epochs: Length = 10  # or iterations, as the recipe counts; then a 24th of them when not given
    rewind_lr: Rate = 0.05
    weak: str | None = None  # with early = "weak", the network that takes T_early's place; the student's when not given
    weak_epochs: Length | None = None  # or iterations, as the recipe counts; 30 % of the student's when not given
    weak_lr: Rate | None = None  # optim.lr when not given

    @model_validator(mode="before")
    @classmethod
    def _weak(cls, tree: Any) -> Any:
        """A file of final weights alone has no early state; a folder of Snapshots has several."""
        match tree:
            case {"final": str(final)} if "early" not in tree and final.endswith(FILES):
                return tree | {"early": "weak"}
        return tree

    @model_validator(mode="after")
    def _given(self) -> Self:
        if self.final is None and self.early_file:
            raise ValueError(f"early = {self.early!r} is a file, so final must be one too")
        if self.final is not None and (self.pretrained or self.weights):
            raise ValueError("final is a teacher already trained: leave pretrained and weights off")
        return self

    @property
    def early_file(self) -> bool:
        """Whether the early state is a file of weights."""
        return self.early.endswith(FILES)

    @property
    def early_state(self) -> str:
        """What the early state is called among those of the teacher."""
        return "early" if self.early_file else self.early
