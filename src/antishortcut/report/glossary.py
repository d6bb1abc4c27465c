"""What the words of a page mean: each is a button where it first stands, and opens its explanation."""

import re

from markupsafe import Markup, escape

TERMS = {
    "T_early": "The teacher after a small part of its training: it knows the easy cues, and little else yet.",
    "T_final": "The teacher at the end of its training.",
    "teacher": "The trained network that students learn from.",
    "kd": "Plain knowledge distillation: the student learns the teacher’s probabilities. Others are compared with it.",
    "asd": "The paper’s method: towards T_final, away from T_early.",
    "contrast+hint": "Our method: T_early’s predictions are divided out of the targets, with hints from feature maps.",
    "contrast+tc": "Our method for scenes: T_early’s predictions are divided out of the targets.",
    "texture lies": "The texture is that of another class, so a network that answers by it is wrong.",
    "shortcut lies": "The shortcut points to another class, so a network that answers by it is wrong.",
    "conflict": "Test images whose shortcut points to another class: who answers by the shortcut is wrong.",
    "leans on texture": "Of right answers kept without shape or without texture, those without shape: 0.5 is even.",
    "needs colour": "The share of its right answers that it loses where images are grey.",
    "looks at the surround": "Of right answers kept by surround or centre alone, those by the surround: 0.5 is even.",
    "probes": "Test images with some evidence taken away, such as colour or shape, to see what an answer depends on.",
    "attribution": "Which parts of the image speak for the answer. It says where, not why.",
    "Grad-CAM": "A map of the parts that raise the score of the answer, from the last feature maps of the network.",
    "seed": "Number that starts the random draws. Trainings that differ in it alone show how much is luck.",
    "seeds": "Trainings that differ in their random draws alone: they show how much is luck.",
    "interval": "Where the true mean difference lies, in 95 of 100 experiments; if it includes zero, nothing is shown.",
    "chance": "What guessing would get right.",
    "mIoU": "Of each class, pixels rightly found ÷ pixels that are it or are called it; mean over classes.",
    "energy": "Share of the squared length of an image’s features.",
    "displaced": "Directions of the features along which images moved most between T_early and T_final.",
    "abandoned": "Directions along which features moved, and which T_final hardly uses.",
    "directions": "Combinations of features, found from how they differ between T_early and T_final.",
}
ANY = re.compile(rf"(?<![\w+])({'|'.join(map(re.escape, sorted(TERMS, key=len, reverse=True)))})(?![\w+])")


class Glossary:
    """Of one page: a filter that explains every term once, and keeps a number with its %."""

    def __init__(self) -> None:
        self.known: set[str] = set()

    def __call__(self, text: str) -> Markup:
        parts = ANY.split(text.replace(" %", "\u00a0%"))  # words and terms in turn
        return Markup("").join(self._term(part) if at % 2 else escape(part) for at, part in enumerate(parts))

    def _term(self, word: str) -> Markup:
        if word in self.known:
            return escape(word)
        self.known |= {word, word.removesuffix("s"), f"{word}s"}  # seed and seeds are one
        name = f"term{len(self.known)}"
        return Markup(
            '<button type="button" class="term" popovertarget="{}">{}</button>'
            '<span popover id="{}" class="meaning"><strong>{}</strong> {}</span>'
        ).format(name, word, name, word, TERMS[word])
