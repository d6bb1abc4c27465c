"""The picture of the README, light and dark, from the demo's runs: `python scripts/draw_story.py runs/demo`.

Test images with what T_early, T_final and two students answer, and where they look. They are chosen to show the
difference, and the picture says so and of how many: the sentence below it is the evidence. Needs chromium, playwright.
"""

import shutil
import sys
from pathlib import Path
from typing import Literal

from jinja2 import Environment
from playwright.sync_api import sync_playwright

from antishortcut.data.datasets import open_sets
from antishortcut.report.collect import collect
from antishortcut.report.first_screen import ImageCard, image_cards
from antishortcut.report.reader import Notes
from antishortcut.report.summary import Overview, overviews, sentences
from antishortcut.report.table import ResultTable

OUT = Path(__file__).resolve().parent.parent / "docs" / "images"
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
ROWS = 2
SHOWN = {  # network → what it is
    "T_early": "the teacher, early in training",
    "T_final": "the teacher, trained",
    "kd": "its student, plain distillation",
    "contrast+hint": "its student, away from T_early",
}
PAGE = """<!doctype html><meta charset="utf-8"><meta name="color-scheme" content="light dark"><style>
:root { --paper: #fff; --ink: #1c2126; --quiet: #5b6670; --right: #0a7d4f; --wrong: #c0392b; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #0d1117; --ink: #e4e8eb; --quiet: #9aa5ae; --right: #4cc38a; --wrong: #ff8a7a; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 15px/1.35 system-ui, sans-serif; }
main { width: 860px; padding: 14px 18px 12px; }
.row { display: grid; grid-template-columns: repeat(5, 1fr); gap: 10px 14px; align-items: start; }
.head { font-size: 12.5px; color: var(--quiet); } .head b { display: block; font-size: 15px; color: var(--ink); }
.cell { position: relative; } .cell img { display: block; width: 100%; border-radius: 5px; image-rendering: pixelated; }
.cell img + img { position: absolute; top: 0; image-rendering: auto; }
.said { margin: 3px 0 9px; font-weight: 600; } .right { color: var(--right); } .wrong { color: var(--wrong); }
p { margin: 2px 0 0; font-size: 14px; }
</style><main><div class="row"><div class="head"><b>test image</b>the letter is the class</div>
{% for name, words in shown.items() %}<div class="head"><b>{{ name }}</b>{{ words }}</div>{% endfor %}
{% for card in cards %}
<div class="cell"><img src="{{ card.picture.uri }}">
<div class="said">{{ card.label }}, with {{ textures[card.name] }}’s texture</div></div>
{% for each in card.answers if each.network in shown %}<div class="cell"><img src="{{ card.picture.uri }}">
<img src="{{ each.heat }}"><div class="said {{ "right" if each.right else "wrong" }}">
{{ "✓" if each.right else "✗" }} {{ each.answer }}</div></div>{% endfor %}{% endfor %}
</div><p>{{ sentence }} One seed.</p><p class="head">{{ chosen }}</p></main>"""


def telling(card: ImageCard) -> int:
    """How many of the four answer so that the difference is seen: T_early and kd wrong, the others right."""
    right = {each.network: each.right for each in card.answers}
    wanted = {"T_early": False, "T_final": True, "kd": False, "contrast+hint": True}
    return sum(right.get(name) == value for name, value in wanted.items())


def textures(one: Overview) -> dict[str, str]:
    """The class whose texture an ordinary test image has, by its name on the page."""
    data = one.first.run.data
    sets = open_sets(data.name, None, seed=data.seed, options=data.options)
    known = sets.tests[one.ordinary.name].cues["texture"]
    return {str(at): sets.classes[texture] for at, texture in enumerate(known.tolist())}


def main() -> None:
    runs = collect(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
    one = overviews(ResultTable(runs))[0]
    every = image_cards(one, Notes())
    fit = sum(telling(card) == len(SHOWN) for card in every)
    chosen = (
        f"{ROWS} of the {len(every)} images on the report’s page, chosen because T_early and kd err and the others do "
        f"not ({fit} of {len(every)} are so). Bright: where the network looks, by Grad-CAM, coarse at 32 pixels."
    )
    cards = sorted(every, key=telling, reverse=True)[:ROWS]
    template = Environment(autoescape=True).from_string(PAGE)
    words = {"sentence": sentences(runs)[0], "chosen": chosen, "textures": textures(one)}
    page = template.render(shown=SHOWN, cards=cards, **words)
    with sync_playwright() as engine:
        path = shutil.which("chromium") or shutil.which("google-chrome")
        browser = engine.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        for scheme in SCHEMES:
            tab = browser.new_context(color_scheme=scheme, device_scale_factor=1.5).new_page()
            tab.set_content(page)
            tab.locator("main").screenshot(path=OUT / f"story-{scheme}.png")
        browser.close()


if __name__ == "__main__":
    main()
