"""The paper's teacher–student pairs. Their settings are the shipped recipes'; here stands what a recipe does not say.

P1–P5 one family, P6–P10 two, on CIFAR-100; P11–P13 on ImageNet-100 and TinyImageNet; DeiT-Tiny; two for ADE20K.
"""

from __future__ import annotations

from dataclasses import dataclass

from antishortcut.config.recipe import Recipe, load_recipe

SEEDS = (1, 2, 3)  # "mean ± std over 3 seeds unless noted" (Sec. 5.1)
RUN_HOURS = 4.5  # A100-hours of one CIFAR-100 run of ASD (S-Sec. A.5)
CIFAR_HOURS, OTHER_HOURS, ALL_HOURS = 175.0, 75.0, 250.0  # of CIFAR-100, of the other two data sets, of the paper
LARGE_HOURS = OTHER_HOURS / 9  # P11–P13 over three seeds; the paper gives only their sum


@dataclass(frozen=True)
class Pair:
    name: str  # of the folder its runs lie in
    teacher: str  # as the paper writes them
    student: str
    data: str
    seeds: tuple[int, ...] = SEEDS
    devices: int = 1  # GPUs of a run (S-Sec. A.5)
    hours: float | None = RUN_HOURS  # A100-hours of a run, as the paper reports them; None where it does not

    def recipe(self) -> Recipe:
        """The shipped recipe of the same name: length, rate, batch, schedule, augmentation, states that are kept."""
        return load_recipe(self.name)

    def early_at(self) -> float:
        """T_early as an epoch, 36 of 240, 30 of 200, 15 of 100; of ADE20K as an iteration, 6,000 of 40,000."""
        recipe = self.recipe()
        return float(recipe.teacher.early.rstrip("%")) / 100 * (recipe.epochs or recipe.iterations)


C100, TINY, IN100, ADE = "CIFAR-100", "TinyImageNet", "ImageNet-100", "ADE20K"

PAIRS: dict[str, Pair] = {
    pair.name: pair
    for pair in (
        Pair("P1", "ResNet-34", "ResNet-18", C100),
        Pair("P2", "WRN-40-2", "WRN-16-2", C100),
        Pair("P3", "ResNet-32x4", "ResNet-8x4", C100),
        Pair("P4", "WRN-40-2", "WRN-40-1", C100),
        Pair("P5", "VGG-13", "VGG-8", C100),
        Pair("P6", "WRN-40-2", "ShuffleNet-V2", C100),
        Pair("P7", "WRN-40-2", "ShuffleNet-V1", C100),
        Pair("P8", "ResNet-32x4", "ShuffleNet-V1", C100),
        Pair("P9", "ResNet-32x4", "ShuffleNet-V2", C100),
        Pair("P10", "VGG-13", "MobileNet-V2", C100),
        Pair("P11", "ResNet-50", "MobileNet-V2", IN100, devices=4, hours=LARGE_HOURS),
        Pair("P12", "ResNet-34", "ResNet-18", TINY, hours=LARGE_HOURS),
        Pair("P13", "ResNet-50", "ResNet-18", IN100, devices=4, hours=LARGE_HOURS),
        Pair("deit-tiny", "ResNet-50", "DeiT-Tiny", IN100, devices=4, hours=None),
        Pair("ade20k-resnet18", "ResNet-101", "ResNet-18", ADE, hours=None),
        Pair("ade20k-mobilenetv2", "ResNet-101", "MobileNetV2", ADE, hours=None),
    )
}

SAME = ("P1", "P2", "P3", "P4", "P5")
CROSS = ("P6", "P7", "P8", "P9", "P10")
LARGER = ("P11", "P12", "P13")
DENSE = ("ade20k-resnet18", "ade20k-mobilenetv2")
