"""The paper's runs at two sizes: as printed, and cut down to what two cores can do.

Desk scale keeps the pairing (seeds, one teacher for all rows of a pair, the same images for all), the batch, the rate,
the share of training at which T_early is taken, which widths are equal, and that a student is smaller than its teacher.
It cuts images, epochs and networks; what counts epochs (warm-up, rewinding) shrinks with them. Its runs lie in folders
that say so: runs/P2-desk.
"""

from __future__ import annotations

from antishortcut.config.recipe import Recipe, Value
from antishortcut.errors import UserError, near
from antishortcut.experiments.jobs import Job, Suite

SCALES = ("paper", "desk")
MARK = "-desk"
EPOCHS, ITERATIONS, IMAGES = 12, 1_200, 12_000
SIDES = {"cifar100": None, "ade20k": 128}  # None: as they are; all others become 32
WARMED = {"asd": 20.0, "dkd": 20.0}  # methods whose `warmup` counts epochs, and its default; a test compares

# what stands in for a network: narrower or shallower, of its family where there is one, equal in width to the others of
# its pairs exactly where the paper's are, and with fewer parameters than its teachers' stand-ins
STAND_INS = {
    "resnet34": "resnet14",
    "resnet18": "resnet8",
    "wrn-40-2": "wrn-28-2",
    "wrn-16-2": "wrn-10-2",
    "wrn-40-1": "wrn-10-1",
    "resnet32x4": "resnet14x4",
    "resnet8x4": "resnet8x4",  # there is no narrower one of its width
    "vgg13": "cnn-96-128",
    "vgg8": "cnn-48-128",
    "shufflenet-v1": "shufflenet-v1",  # there is no narrower one
    "shufflenet-v2": "shufflenet-v2-x0.5",
    "mobilenet-v2": "mobilenet-v2",  # half width already
    "timm:resnet50": "cnn-64-256",
    "timm:resnet18": "cnn-16-128",
    "timm:mobilenetv2_100": "mobilenet-v2",
    "timm:deit_tiny_patch16_224": "timm:test_vit",
    "deeplabv3-resnet101": "dense-32",
    "deeplabv3-resnet18": "dense-8",
    "deeplabv3-mobilenetv2": "dense-6",
}


def scaled(suite: Suite, scale: str) -> Suite:
    """A suite of the paper at a scale."""
    if scale not in SCALES:
        raise UserError(f"--scale {scale!r}{near(scale, SCALES)}")
    if scale == "paper":
        return suite
    made: dict[int, Recipe] = {}  # jobs share their recipes
    jobs = tuple(desk(job, made.setdefault(id(job.recipe), desk_recipe(job.recipe))) for job in suite.jobs)
    return Suite(suite.name, f"at desk scale, not the paper's size: {suite.what}", jobs, suite.timed)


def desk(job: Job, recipe: Recipe | None = None) -> Job:
    """A job of the paper, cut down."""
    share = _share(job.recipe)
    options: dict[str, Value] = dict(job.options)
    if job.method in WARMED:
        known = {"warmup": WARMED[job.method], **job.recipe.methods.get(job.method, {}), **options}
        options["warmup"] = round(float(known["warmup"]) * share, 6)
    own = recipe or desk_recipe(job.recipe)
    return job.model_copy(update={"suite": job.suite + MARK, "recipe": own, "options": options})


def desk_recipe(recipe: Recipe) -> Recipe:
    """A recipe, cut down; states named by an epoch move with the length of training."""
    share = _share(recipe)
    teacher = recipe.teacher
    side = SIDES.get(recipe.data.name, 32)
    length = {"iterations": ITERATIONS} if recipe.iterations else {"epochs": EPOCHS}
    own = {
        "pretrained": False,
        "name": STAND_INS[teacher.name],
        "keep": tuple(_moved(state, share) for state in teacher.keep),
        "rewind_epochs": max(round(teacher.rewind_epochs * share), 1),
    }
    return recipe.model_copy(
        update={
            "title": f"{recipe.title}, at desk scale",
            "data": recipe.data.model_copy(update={"train_limit": IMAGES} | ({"image_size": side} if side else {})),
            "teacher": teacher.model_copy(update=own),
            "student": recipe.student.model_copy(update={"name": STAND_INS[recipe.student.name], "pretrained": False}),
        }
        | length
    )


def _share(recipe: Recipe) -> float:
    """Of the paper's training."""
    return ITERATIONS / recipe.iterations if recipe.iterations else EPOCHS / recipe.epochs


def _moved(state: float | str, share: float) -> float | str:
    word, _, epoch = str(state).partition(":")
    return f"{word}:{float(epoch) * share:g}" if epoch else state
