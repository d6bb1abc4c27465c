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
    name: str = Field(description="The network: `asd list models`, `timm:NAME`, `torchvision:NAME` or `import:…`.")
    stem: Literal["cifar", "imagenet"] = Field("cifar", description="First layers, for small or for large images.")
    embedding: str | None = Field(None, description="Module path of the embedding; found automatically by default.")
    stages: tuple[str, ...] | None = Field(
        None, min_length=1, description="Module paths of the feature maps; found automatically by default."
    )
    mean: tuple[Level, Level, Level] | None = Field(
        None, description="Mean that normalises its images, which are in [0, 1]; the network's own by default."
    )
    std: tuple[Positive, Positive, Positive] | None = Field(None, description="Standard deviation, likewise.")
    size: Side | None = Field(None, description="Side that images are resized to, for networks that accept only one.")
    pretrained: bool = Field(False, description="Start from the published weights of timm or torchvision.")
    weights: str | None = Field(None, description="Start from the weights in this file.")
    digest: str | None = Field(None, description="SHA-256 of that file. Filled in for you, so that its content counts.")

    def without_weights(self) -> ModelSettings:
        """The same architecture with random weights."""
        return self.model_copy(update={"weights": None, "pretrained": False})

    @property
    def build_options(self) -> dict[str, Any]:
        """How the network is built, besides its name."""
        return {key: value for key in BUILT if (value := getattr(self, key)) != type(self).model_fields[key].default}


class OptimSettings(Settings):
    name: Literal["sgd", "adamw"] = Field("sgd", description="Optimizer.")
    lr: Rate = Field(0.05, description="Learning rate.")
    momentum: Fraction = Field(0.9, description="Momentum of SGD.")
    nesterov: bool = Field(False, description="Use Nesterov momentum.")
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), description="Betas of AdamW.")
    weight_decay: Weight = Field(5e-4, description="Weight decay.")
    decay: Literal["all", "weights"] = Field(
        "all", description="`weights`: no decay for biases, norms and what the network's `no_weight_decay()` names."
    )
    batch: Images = Field(64, description="Images per optimizer step, over all devices.")
    accumulate: Images = Field(1, description="Gradient accumulation: number of parts that a batch is split into.")
    schedule: Literal["cosine", "step", "poly", "constant"] = Field("cosine", description="Learning rate schedule.")
    milestones: tuple[Float, ...] = Field((), description="For `step`: epochs after which the rate falls to a tenth.")
    warmup: Float = Field(0.0, ge=0, le=LONGEST, description="Epochs of linear warm-up.")
    clip: Float = Field(0.0, ge=0, le=FASTEST, description="Largest gradient norm; 0 for no clipping.")
    label_smoothing: Fraction = Field(0.0, description="Label smoothing of the task's loss.")
    mixup: Weight = Field(0.0, description="α of mixup; 0 for none. With `cutmix` too, each step draws one of them.")
    cutmix: Weight = Field(0.0, description="α of CutMix; 0 for none.")
    ema: Fraction = Field(
        0.0, description="Decay of the moving average of the weights; the average is the student. 0 for none."
    )

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
    name: str = Field("cues", description="The data set: `asd list datasets`, or `folder:PATH`.")
    train_limit: Length | None = Field(None, description="Use only this many training images, balanced by class.")
    test_limit: Length | None = Field(None, description="The same for the test sets.")
    val_fraction: Fraction = Field(0.0, description="Share of the training images held out for validation.")
    image_size: Side | None = Field(None, description="Side of the images in pixels; the data set's own by default.")
    augment: Literal["crop-flip", "crop", "flip", "imagenet", "scale-crop-flip", "none"] = Field(
        "crop-flip", description="Training augmentation."
    )
    augmentation_cycle: Length | None = Field(
        None, description="Students repeat their augmentations after this many epochs; by default each epoch is new."
    )
    seed: Seed = Field(0, description="Seed of limits, splits and generated images. Keep it the same to compare runs.")
    options: dict[str, Float] = Field(
        default_factory=dict, description="Options of the data set itself, such as `rho` or `count`."
    )
    unlabelled: str | None = Field(None, description="Folder of more training images, without labels.")

    @property
    def labelled(self) -> DataSettings:
        """The same without the images that have no labels: what a teacher is trained on."""
        return self.model_copy(update={"unlabelled": None})


class TaskSettings(Settings):
    """Of dense prediction; classification has none."""

    samples: Length = Field(1024, description="Locations per step that methods learn from, over all devices.")
    aux: Weight = Field(0.4, description="Weight of the auxiliary head's loss, if the network has one.")


class TeacherSettings(ModelSettings):
    final: str | None = Field(
        None,
        description="A teacher you have: a file of weights, a folder of `Snapshots`, or `pretrained`, the published "
        "weights. By default the teacher is trained.",
    )
    epochs: Length | None = Field(None, description="Length of its training; the recipe's by default.")
    lr: Rate | None = Field(None, description="Learning rate; `optim.lr` by default.")
    batch: Images | None = Field(None, description="Batch size; `optim.batch` by default.")
    seed: Seed = Field(0, description="Seed of the teacher, which all seeds of the students share.")
    keep: tuple[Float | str, ...] = Field(
        (2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 50.0, 75.0, 100.0),
        min_length=1,
        description="Checkpoints to save: percent of training, or `epoch:36`.",
    )
    early: str = Field(
        "15%",
        description="The early checkpoint: `15%`, `epoch:36`, `HASH/15%` of another teacher, a file, `rewind`, or "
        "`weak` (default if `final` is a file).",
    )
    rewind_epochs: Length = Field(
        10, description="Length of a rewind; by default a 24th of `epochs` or `iterations`, at least 1."
    )
    rewind_lr: Rate = Field(0.05, description="Learning rate of a rewind.")
    weak: str | None = Field(
        None, description='Network of the weak reference (`early = "weak"`); the student\'s by default.'
    )
    weak_epochs: Length | None = Field(None, description="Its length of training; 30 % of the student's by default.")
    weak_lr: Rate | None = Field(None, description="Its learning rate; `optim.lr` by default.")

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
