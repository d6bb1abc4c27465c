"""How a network is trained, and how that is computed: settings of the optimiser and of the execution. No torch."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Beta = Annotated[float, Field(ge=0, lt=1)]
YOUNGER = ("betas", "decay", "ema", "mixup", "cutmix")  # settings that came later: at their defaults not in the hash
LOGS = ("tensorboard", "wandb")  # where the numbers of a training can go besides its folder


class Settings(BaseModel):
    """Frozen; unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


Positive = Annotated[float, Field(gt=0)]
BUILT = ("stem", "embedding", "stages", "mean", "std", "size")  # how a network is built


class ModelSettings(Settings):
    name: str
    stem: Literal["cifar", "imagenet"] = "cifar"
    embedding: str | None = None  # module path of the embedding, found by probing when not given
    stages: tuple[str, ...] | None = Field(None, min_length=1)  # module paths of the feature maps, likewise
    mean: tuple[float, float, float] | None = None  # of the images it wants to see, in [0, 1]; its own when not given
    std: tuple[Positive, Positive, Positive] | None = None
    size: int | None = Field(None, ge=8)  # side that images are brought to, where it takes only one
    pretrained: bool = False  # weights from the hub of timm or torchvision
    weights: str | None = None  # weights from a file
    digest: str | None = None  # sha256 of that file, filled in when a run is made: content counts, not the path

    @property
    def given(self) -> dict[str, Any]:
        """What is said of how the network is built, besides its name."""
        return {key: value for key in BUILT if (value := getattr(self, key)) != type(self).model_fields[key].default}


class OptimSettings(Settings):
    name: Literal["sgd", "adamw"] = "sgd"
    rate: float = Field(0.05, gt=0)
    momentum: float = Field(0.9, ge=0, lt=1)
    nesterov: bool = False
    betas: tuple[Beta, Beta] = (0.9, 0.999)  # of AdamW
    weight_decay: float = Field(5e-4, ge=0)
    decay: Literal["all", "weights"] = "all"  # weights: no decay of biases, norms, and what a network wants spared
    batch: int = Field(64, ge=1)  # images per optimiser step, over all devices
    accumulate: int = Field(1, ge=1)  # in how many parts a batch is computed
    schedule: Literal["cosine", "step", "poly", "constant"] = "cosine"
    milestones: tuple[float, ...] = ()  # for "step": epochs after which the rate falls to a tenth
    warmup: float = Field(0.0, ge=0)  # epochs of linear warm-up
    clip: float = Field(0.0, ge=0)  # largest gradient norm, 0 for none
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    mixup: float = Field(0.0, ge=0)  # α of the Beta distribution of shares, 0 for none; with cutmix one of the two
    cutmix: float = Field(0.0, ge=0)
    ema: float = Field(0.0, ge=0, lt=1)  # decay of a running mean of the weights, which is then the student; 0 for none

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.accumulate > self.batch:
            raise ValueError(f"accumulate ({self.accumulate}) is larger than batch ({self.batch})")
        return self

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with others of their batch."""
        return self.mixup > 0 or self.cutmix > 0

    def science(self) -> dict[str, Any]:
        """What the hash of a run covers: runs older than a setting keep theirs."""
        plain = type(self)()
        known = {name for name in YOUNGER if getattr(self, name) == getattr(plain, name)}
        return self.model_dump(mode="json", exclude=known)


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
    parts: Annotated[int, Field(ge=1)] | Literal["auto"] = 1  # of each of optim.accumulate's; auto: as memory demands
    memory: float = Field(0.0, ge=0)  # GB that a process may take for parts = "auto"; 0: what is free
    log: tuple[str, ...] = ("tensorboard",)  # of LOGS; may be another when a run goes on

    @field_validator("log")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in LOGS:
                raise ValueError(f"no log {name!r}; there are {', '.join(LOGS)}")
        return tuple(dict.fromkeys(names))
