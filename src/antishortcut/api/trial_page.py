"""The page of `asd try`: gradio's components around api.trial. It listens on this machine alone and asks no other."""

from __future__ import annotations

import base64
import os
import tempfile
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported

import gradio as gr

from antishortcut.api.trial import (
    PROBES,
    UNCHANGED,
    WHERE,
    Trial,
    TrialImage,
    answers,
    changed,
    disagreements,
    dropped_image,
    image_of,
    picture,
    save_case,
)
from antishortcut.data.corruptions.constants import CORRUPTIONS, SEVERITIES, SMALLEST
from antishortcut.errors import UserError, plural

HOST = "127.0.0.1"
NOWHERE = "nothing"
FONT = ("system-ui", "sans-serif")  # gradio's own choice is fetched from another host
CSS = """
.gradio-container { padding-block: .5rem !important; overflow: clip !important; }
.gradio-container h1 { margin: 0; font-size: 1.35rem; }
.gradio-container :is(.or, .max_value, .min_value) { color: var(--body-text-color-subdued); }
#drop .icon-wrap { display: none; }
.side { gap: .6rem; }
.side > * { flex-grow: 0 !important; }
#answers { position: sticky; top: 0; z-index: 40; padding: 0 0 .5rem; background: var(--body-background-fill); }
.said { margin: 0; padding: .4rem 0; font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(160px, 1fr)); gap: .75rem; }
.cards article { min-width: 0; max-width: 240px; padding: .6rem; border: 1px solid var(--border-color-primary);
  border-radius: 8px; background: var(--background-fill-primary); }
.cards h2 { margin: 0 0 .4rem; font-size: .95rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.cards img { display: block; width: 100%; aspect-ratio: 1; border-radius: 4px; image-rendering: pixelated; }
.cards ol { margin: .5rem 0 0; padding: 0; list-style: none; }
.cards li { display: grid; grid-template-columns: minmax(0, 1fr) 3.1rem; gap: 0 .4rem; margin: .2rem 0; padding: 0;
  font-size: .85rem; line-height: 1.35; }
.cards li span { overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.cards li span + span { text-align: right; font-variant-numeric: tabular-nums; }
.cards li i { grid-column: 1 / 3; height: 5px; border-radius: 3px;
  background: linear-gradient(to right, #0b63a5 var(--share), var(--border-color-primary) 0); }
.cards li:first-child { font-weight: 650; }
.cards p { margin: .5rem 0 0; font-size: .85rem; overflow-wrap: anywhere; }
@media (max-width: 700px) {
  .side { display: contents; }
  .cards { display: flex; gap: .5rem; overflow-x: auto; }
  .cards article { flex: 0 0 132px; padding: .4rem; }
}
"""


def html(trial: Trial, image: TrialImage, settings: dict[str, Any], where: str) -> str:
    """What every network says of an image, in cards; all text is escaped."""
    pixels = changed(image, settings)
    results = answers(trial, pixels, "" if where == NOWHERE else where)
    source = "An image of yours" if image.of is None else f"{image.of}, image {image.index + 1:,}"
    facts = [source] + ([f"its class is {image.label}"] if image.label else [])
    facts += ["shown as it is stored: training does not turn images by EXIF either"] if image.turned else []
    first = {one.top[0][0] for one in results}
    verdict = f"All answer {next(iter(first))}." if len(first) == 1 else f"They give {len(first)} different answers."
    cards = [_card("The image", _img(picture(pixels), "The image as the networks see it"), f"<p>{_lines(facts)}</p>")]
    for one in results:
        rows = "".join(
            f'<li><span title="{escape(name)}">{"✓ " if name == image.label else ""}{escape(name)}</span>'
            f'<span>{share:.0%}</span><i style="--share: {share:.1%}"></i></li>'
            for name, share in one.top
        )
        what = "The image" if one.heat is None else "The image, bright where it looks"
        below = f"<ol>{rows}</ol>"
        if one.heat is not None and not one.heat.any():
            below += "<p>An empty map: nothing it sees speaks for this answer.</p>"
        cards.append(_card(one.network, _img(picture(pixels, one.heat), f"{one.network}: {what}"), below))
    region = '<div class="cards" role="region" aria-label="Answers of every network" tabindex="0">'
    return f'<p class="said" role="status">{escape(verdict)}</p>{region}{"".join(cards)}</div>'


def _card(title: str, image: str, below: str) -> str:
    return f'<article><h2 title="{escape(title)}">{escape(title)}</h2>{image}{below}</article>'


def _img(data: bytes, alt: str) -> str:
    return f'<img src="data:image/png;base64,{base64.b64encode(data).decode()}" alt="{escape(alt)}">'


def _lines(texts: list[str]) -> str:
    return "<br>".join(map(escape, texts))


def build(trial: Trial) -> gr.Blocks:
    """The components and what they do. Every event waits for the one before it: networks are not shared by threads."""
    first = next(iter(trial.sets))
    page: gr.Blocks
    with gr.Blocks(title=f"asd try: {trial.title}", analytics_enabled=False, fill_width=True) as page:
        image = gr.State(image_of(trial, first, 0))
        gr.HTML(f"<h1>{escape(trial.title)}</h1>")
        with gr.Row(equal_height=True):  # so that the answers stay in view beside all sliders
            with gr.Column(scale=3, min_width=320, elem_classes="side"):
                with gr.Row():
                    of = gr.Dropdown(list(trial.sets), value=first, label="Test images", min_width=140)
                    where = gr.Radio([*WHERE, NOWHERE], value=next(iter(WHERE)), label="Show where they look", scale=3)
                with gr.Row():
                    before = gr.Button("◀ Previous", size="md", min_width=100)
                    after = gr.Button("Next ▶", size="md", min_width=100)
                    differ = gr.Button("Show me images where they disagree", variant="primary", size="md", scale=3)
                    save = gr.Button("Save this case", size="md", min_width=130)
                note = gr.HTML(elem_id="note")
                shown = gr.HTML(elem_id="answers")
            with gr.Column(scale=1, min_width=260, elem_classes="side"):
                file = gr.File(label="Or drop an image of yours", file_types=["image"], height=125, elem_id="drop")
                sliders = [
                    gr.Slider(probe.low, probe.high, probe.off, step=1, label=probe.label) for probe in PROBES.values()
                ]
                large = trial.image_size >= SMALLEST
                names = [("none", ""), *((name.replace("_", " "), name) for name in CORRUPTIONS if large)]
                corruption = gr.Dropdown(names, value="", label="Corruption")
                severity = gr.Slider(*(SEVERITIES[0], SEVERITIES[-1], UNCHANGED["severity"]), step=1, label="Severity")
                reset = gr.Button("Undo all changes", size="md")
        changes: list[Any] = [*sliders, corruption, severity]

        def show(image: TrialImage, where: str, *values: Any) -> str:
            return html(trial, image, dict(zip(UNCHANGED, values, strict=True)), where)

        def step(by: int) -> Callable[[TrialImage, str], TrialImage]:
            return lambda image, of: image_of(trial, of, image.index + by if image.of == of else 0)

        def next_different(image: TrialImage, of: str) -> tuple[TrialImage, str]:
            places = disagreements(trial, of)
            if not places:
                return image, f"They agree on every image of {escape(of)} that was looked at."
            at = places.index(image.index) + 1 if image.of == of and image.index in places else 0
            message = (
                f"{plural(len(places), 'image')} of {escape(of)} with different answers; number {at % len(places) + 1}"
            )
            return image_of(trial, of, places[at % len(places)]), message

        def keep(image: TrialImage, *values: Any) -> str:
            return f"Saved: {escape(str(save_case(trial, image, dict(zip(UNCHANGED, values, strict=True)))))}"

        def shows_errors(function: Callable[..., Any]) -> Callable[..., Any]:
            """What a person did wrong is a line on the page."""

            def call(*values: Any) -> Any:
                try:
                    return function(*values)
                except (UserError, OSError) as error:
                    raise gr.Error(escape(str(error)), print_exception=False) from None

            return call

        same: dict[str, Any] = {"concurrency_id": "networks", "concurrency_limit": 1, "api_visibility": "private"}
        look: dict[str, Any] = {"fn": shows_errors(show), "inputs": [image, where, *changes], "outputs": shown} | same
        undo: dict[str, Any] = {"fn": lambda: list(UNCHANGED.values()), "outputs": changes} | same
        page.load(**look)
        for component in (where, *changes):
            component.input(**look, trigger_mode="always_last", show_progress="hidden")
        reset.click(**undo).then(**look)
        for button, by in ((before, -1), (after, 1)):
            button.click(shows_errors(step(by)), [image, of], image, **same).then(**look)
        of.input(shows_errors(step(0)), [image, of], image, **same).then(**look)
        differ.click(shows_errors(next_different), [image, of], [image, note], **same).success(**undo).then(**look)
        empty = {"fn": lambda: None, "outputs": file} | same  # ready for the next image
        dropped = file.upload(shows_errors(lambda path: dropped_image(trial, Path(path))), file, image, **same)
        dropped.success(**look).then(**empty)
        dropped.failure(**empty)
        save.click(shows_errors(keep), [image, *changes], note, **same)
    return page


def serve(trial: Trial, port: int | None, tell: Callable[[str], None]) -> None:
    """Until it is interrupted. Images that are dropped on the page are kept no longer than that."""
    os.environ["no_proxy"] = ",".join(filter(None, [os.environ.get("no_proxy"), HOST]))  # gradio asks itself once
    with tempfile.TemporaryDirectory() as uploads:
        os.environ["GRADIO_TEMP_DIR"] = uploads
        page = build(trial)
        theme = gr.themes.Default(primary_hue="blue", neutral_hue="slate", font=FONT, font_mono=("monospace",)).set(
            body_text_color_subdued="*neutral_600", button_primary_background_fill="*primary_700",
            button_primary_background_fill_hover="*primary_800", button_primary_background_fill_dark="*primary_700",
            slider_color="*primary_700",
        )  # fmt: skip
        alone: dict[str, Any] = {"server_name": HOST, "share": False, "ssr_mode": False, "enable_monitoring": False}
        try:
            _, url, _ = page.launch(
                server_port=port, prevent_thread_lock=True, quiet=True, footer_links=[], theme=theme, css=CSS, **alone
            )
        except OSError as error:
            raise UserError(f"--port {port or ''}: {error}") from None
        tell(f"{url} (Ctrl-C ends it)")
        page.block_thread()
