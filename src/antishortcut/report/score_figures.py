"""Figures of scores: differences, test sets, shape or texture, groups, an attack, corruptions, and the training."""

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import altair as alt

from antishortcut.report import charts
from antishortcut.report.charts import BAR, ONE, Figure, Panel, Rows, add_lines, base, mean_texts, means, tooltips
from antishortcut.report.collect import BASELINE, Collected, StudentRun
from antishortcut.report.reader import CORRUPTIONS, PROBES, SEVERITIES
from antishortcut.report.reference_rows import chance_value
from antishortcut.report.table import CORRUPTION_KINDS, ResultTable, better, heading, split_column, words

PROBED = {  # the kind of a probe → in words, with its strength
    "whole": "as they are",
    "shuffle": "{0} × {0} patches shuffled",
    "blur": "blurred by {0} %",
    "edges": "outlines after a blur of {0} %",
    "grey": "{0} % of the colour gone",
    "hue": "colours turned by {0}°",
    "centre": "the central {0} % alone",
    "surround": "the outer {0} % alone",
}
TEACHERS = {"final": "diamond", "early": "triangle-up"}
MOST_GROUPS = 24  # groups of images drawn; the worst when there are more


def column_title(table: ResultTable, column: str) -> str:
    group, score = split_column(column)
    return score if group == "training" else f"{table.titled(group)}, {words(score)}"


def difference_figure(table: ResultTable) -> Figure:
    """Paired differences with their intervals: of every set its first score."""
    methods, panels = table.runs.methods, []
    firsts = {split_column(column)[0]: column for column in reversed(table.compared())}
    for index, column in enumerate(reversed(firsts.values())):
        values = {one.method: one.value for one in table.differences if one.column == column}
        rows: Rows = [
            {"method": method, "difference": value.difference, "pairs": value.count}
            | ({} if value.low is None else {"low": value.low, "high": value.high})
            for method, value in values.items()
        ]
        start = base(f"difference{index}").encode(
            y=alt.Y("method:N", sort=methods, title=None), color=charts.method_colour(methods).legend(None)
        )
        wide = any("low" in row for row in rows)
        tips = tooltips("method:N", **dict.fromkeys(("difference", "low", "high")[: 3 if wide else 1], "+.3f"))
        across = alt.X("difference:Q", title=None, axis=alt.Axis(tickCount=5, format="+~g", grid=True))
        whisker = start.mark_rule(strokeWidth=3, opacity=0.55).encode(x=alt.X("low:Q", title=None), x2=alt.X2("high"))
        dot = start.mark_point(size=90, filled=True, opacity=1).encode(x=across, tooltip=tips)
        layers = (charts.upright(0.0), *([whisker] if wide else []), dot)
        title = f"{column_title(table, column)}: {'right' if better(column) > 0 else 'left'} is better"
        text = ", ".join(f"{row['method']} {row['difference']:+.3f}" for row in rows)
        height = BAR * len(table.pairs)
        panels.append(Panel(title, height, layers, {f"difference{index}": rows} | ONE, alt=text))
    note = (
        f"Mean difference to {BASELINE} seed by seed, and its 95 % interval where there are two pairs or more; of "
        "every set its first score. The grey line is no difference."
    )
    return Figure("differences", f"Difference to {BASELINE}, drawn", note, panels)


def bar_panels(runs: Collected, name: str, titles: Mapping[str, str], score: str) -> list[Panel]:
    """A panel of bars for each column that exists, with its title."""
    panels: list[Panel] = []
    for column, title in titles.items():
        rows: Rows = [
            {"method": s.method, "seed": str(s.run.seed), "value": s.values[column]}
            for s in runs.students
            if column in s.values
        ]
        if rows:
            panels.append(charts.bar_panel(title, runs.methods, f"{name}{len(panels)}", rows, score))
    return panels


def leaning_figures(table: ResultTable) -> list[Figure]:
    """What students lean on."""
    own = [*_sets(table), _decisions(table), _probes(table.runs), _groups(table.runs), _attack(table.runs)]
    return [*own, _corruption_kinds(table), _severities(table.runs), _each_corruption(table.runs)]


def _sets(table: ResultTable) -> list[Figure]:
    """mIoU, where there are masks, and accuracy of each set; without any, the score of the training."""

    def figure(name: str, score: str, titles: Mapping[str, str]) -> Figure:
        note = "Bars: mean over seeds; dots: single seeds, or a line of ± one standard deviation when they are many."
        return Figure(name, f"{heading(score)} by test set", note, bar_panels(table.runs, "scores", titles, score))

    columns = {score: [name for name in table.every if name.endswith(f" {score}")] for score in ("miou", "accuracy")}
    figures = []
    for score, names in columns.items():
        titles = {name: table.titled(split_column(name)[0]) for name in names}
        label = "pixel accuracy" if columns["miou"] and score == "accuracy" else words(score)
        figures += [figure("scores" if score == "accuracy" else f"scores-{score}", label, titles)] if titles else []
    return figures or [figure("scores", table.primary_metric, {"last": eval_splits(table.runs.students)})]


def _decisions(table: ResultTable) -> Figure:
    """Images whose shape is of one class and whose texture of another: which one decides."""
    methods, panels = table.runs.methods, list[Panel]()
    order = "indexof(['shape', 'texture', 'neither'], datum['decided by'])"
    axis = alt.Axis(values=[0, 0.25, 0.5, 0.75, 1], format=".0%")
    for group in dict.fromkeys(split_column(name)[0] for name in table.every):
        rows: Rows = []
        for method, cells in table.cells.items():
            shares = {cue: cells[f"{group} by_{cue}"].mean for cue in charts.CUES if f"{group} by_{cue}" in cells}
            if len(shares) == 2:
                shares["neither"] = max(0.0, 1 - sum(shares.values()))
                rows += [{"method": method, "decided by": cue, "share": round(x, 5)} for cue, x in shares.items()]
        if rows:
            title = f"share of {'pixels' if f'{group} miou' in table.every else 'images'}"
            name = f"decisions{len(panels)}"
            chart = base(name).mark_bar(size=17).transform_calculate(order=order).encode(
                y=alt.Y("method:N", sort=methods, title=None),
                x=alt.X("share:Q", stack="zero", title=title, scale=alt.Scale(domain=[0, 1]), axis=axis),
                color=charts.colour(charts.CUES, "decided by"),
                order=alt.Order("order:Q"),
                tooltip=tooltips("method:N", "decided by:N", share=".3f"),
            )  # fmt: skip
            text = ", ".join(f"{row['method']} by {row['decided by']} {row['share']:.2f}" for row in rows)
            panels.append(Panel(table.titled(group), BAR * len(methods), (chart,), {name: rows}, alt=text))
    note = (
        "Images, or pixels of masks, whose shape belongs to one class and whose texture to another: the share that was "
        "called by its shape, by its texture, and by neither; mean over seeds."
    )
    return Figure("decisions", "Shape or texture", note, panels, charts.CUES)


def _probes(runs: Collected) -> Figure:
    """Accuracy with one kind of evidence taken away, and answers that stay, right or wrong."""
    chance = next((value for s in runs.students if (value := chance_value(s, f"{PROBES} accuracy"))), None)
    panels = _probe_panel(runs, "accuracy", "probes", lambda s: s.probes, chance)
    panels += _probe_panel(runs, "answers as on the whole image", "unchanged", lambda s: s.unchanged, None)
    note = (
        "Accuracy on the same test images with one kind of evidence taken away, and the share of answers that stay, "
        "right or wrong; mean over seeds: dots are methods, ◇ is T_final, △ T_early, the dashed line chance. Three "
        "numbers in the tables sum it up, all of the images that a network gets right as they are. Needs colour: the "
        "share it loses in grey. Texture share: what it keeps where shape goes (shuffled) beside what it keeps where "
        "texture goes (blurred, outlines); above 0.5 it lives on texture. Surround share: what it keeps by the outer "
        "part alone beside the centre alone. Any network loses something on odd images: read each number against the "
        "teacher’s."
    )
    return Figure("probes", "With evidence taken away", note, panels, wide=len(panels) == 1)


def _probe_panel(
    runs: Collected,
    title: str,
    key: str,
    shares: Callable[[StudentRun], Mapping[str, Mapping[str, float]]],
    chance: float | None,
) -> list[Panel]:
    """Methods as dots, their teachers as marks, chance as a line; nothing where nothing was measured."""

    def rows(role: str, named: bool) -> Rows:
        each = ((s, probe, value) for s in runs.students for probe, value in shares(s).get(role, {}).items())
        points: Rows = [{"probe": _probe(probe), "value": value} | ({"method": s.method} if named else {})
                        for s, probe, value in each]  # fmt: skip
        return means(points)

    own = rows("own", named=True)
    order = list(dict.fromkeys(row["probe"] for row in own))
    layers: charts.Layers = (charts.dots(runs.methods, key, "probe", order, title),)
    data = {key: own} | ONE
    for role, shape in TEACHERS.items():
        if taught := rows(role, named=False):
            name = f"{key}_{role}"
            mark = base(name).mark_point(shape=shape, size=90, stroke=charts.GREY, strokeWidth=2, opacity=1)
            tips = tooltips("probe:N", value=".3f")
            layers += (mark.encode(y=alt.Y("probe:N", sort=order), x=alt.X("value:Q"), tooltip=tips),)
            data[name] = taught
    layers = (charts.upright(chance), *layers) if chance is not None else layers
    text = "; ".join(f"{row['method']}, {row['probe']}: {row['value']:.2f}" for row in own)
    return [Panel(title, 20 * len(order) + 20, layers, data, alt=text)] if own else []


def _probe(name: str) -> str:
    """grey-50 in words."""
    kind, _, strength = name.partition("-")
    return PROBED.get(kind, name).format(strength)


def _groups(runs: Collected) -> Figure:
    rows = means([{"method": s.method, "group": key, "value": x} for s in runs.students for key, x in s.groups.items()])
    lowest: dict[str, float] = {}
    for row in rows:
        lowest[row["group"]] = min(row["value"], lowest.get(row["group"], 1.0))
    order = sorted(lowest, key=lambda group: (lowest[group], group))[:MOST_GROUPS]
    rows = [row for row in rows if row["group"] in order]
    few = "" if len(lowest) <= MOST_GROUPS else f" The {MOST_GROUPS} worst of {len(lowest)} groups."
    note = (
        "Accuracy on images of one class that share a second fact, the worst group first; mean over seeds. In "
        f"brackets: how many images there are, and few images say little.{few}"
    )
    worst = {row["method"]: row for row in sorted(rows, key=lambda row: -row["value"])}
    text = "Worst group: " + ", ".join(f"{m} {row['value']:.3f} on {row['group']}" for m, row in worst.items())
    layer = charts.dots(runs.methods, "groups", "group", order, "accuracy")
    panel = Panel("groups", 20 * len(order) + 20, (layer,), {"groups": rows}, alt=text)
    return Figure("groups", "Groups of images", note, [panel] if rows else [], wide=True)


def _attack(runs: Collected) -> Figure:
    points: Rows = []
    for s in runs.students:
        for name, value in s.values.items():
            if match := re.fullmatch(r"attack (?:clean|([0-9.]{1,8})/255)", name):
                points.append({"method": s.method, "radius": float(match[1] or 0), "value": value})
    rows = means(sorted(points, key=lambda row: float(row["radius"])))
    note = (
        "Accuracy when every pixel may be moved by up to radius/255 against the model (projected gradient descent), "
        "mean over seeds. The method does not aim at this: it shows where its claim ends."
    )
    panel = add_lines(Panel("attack", 200, (), {"attack": rows}), runs.methods, "radius", "accuracy", zero=True)
    return Figure("attack", "Under attack", note, [panel] if rows else [], wide=True)


# --- corruptions: by kind, by severity, one by one ---


def _corruption_kinds(table: ResultTable) -> Figure:
    titles = {f"{CORRUPTIONS} mce": "all fifteen ↓"}
    titles |= {f"{CORRUPTIONS} {kind}": f"{kind} ↓" for kind in CORRUPTION_KINDS}
    note = (
        "Share of wrong answers at the strongest severity, less is better; that of all fifteen is what the paper calls "
        "mCE. Bars: mean over seeds; dots: single seeds. "
        "Texture stands for what changes local statistics: contrast, elastic transform, pixelate, JPEG."
    )
    title = f"Error on {table.titled(CORRUPTIONS, 'corrupted images')}, by kind"
    return Figure("corruptions", title, note, bar_panels(table.runs, "kinds", titles, "error"))


def _severities(runs: Collected) -> Figure:
    """Mean error over the corruptions of a kind, severity by severity; 0 is the clean set."""
    every = list(dict.fromkeys(corruption for s in runs.students for corruption in s.errors))
    kinds = {"all": every} | {kind: [c for c in members if c in every] for kind, members in CORRUPTION_KINDS.items()}
    panels: list[Panel] = []
    for kind, members in kinds.items():
        points: Rows = []
        for s in runs.students:
            errors = [s.errors[c] for c in members if c in s.errors]
            if len(errors) == len(members) > 0:
                if (clean := s.values.get(f"{CORRUPTIONS} clean_error")) is not None:
                    points.append({"method": s.method, "severity": 0, "value": clean})
                points += [
                    {"method": s.method, "severity": severity, "value": fmean(each)}
                    for severity, each in enumerate(zip(*errors, strict=True), start=1)
                ]
        if rows := means(points):
            text = f"At severity {SEVERITIES}: {mean_texts([row for row in rows if row['severity'] == SEVERITIES])}"
            panel = Panel(kind, 180, (), {f"severity{len(panels)}": rows}, alt=text)
            panels.append(add_lines(panel, runs.methods, "severity", "error", zero=True))
    note = "Mean error over the corruptions of a kind as they get stronger, mean over seeds; 0 is the clean set."
    return Figure("severities", "Error as corruptions get stronger", note, panels)


def _each_corruption(runs: Collected) -> Figure:
    """Severity 5, corruption by corruption; against the baseline seed by seed where it is there."""
    base_errors = {(s.run.suite, s.run.seed): s.errors for s in runs.students if s.run.name == BASELINE and s.errors}
    rivals = [s for s in runs.students if s.run.name != BASELINE and s.errors]
    paired = [s for s in rivals if (s.run.suite, s.run.seed) in base_errors]
    points: Rows = []
    for s in paired or runs.students:
        reference = base_errors[s.run.suite, s.run.seed] if paired else dict.fromkeys(s.errors, (0.0,))
        points += [
            {"method": s.method, "corruption": name.replace("_", " "), "value": errors[-1] - reference[name][-1]}
            for name, errors in s.errors.items()
            if name in reference
        ]
    rows = means(points)
    order = [c.replace("_", " ") for members in CORRUPTION_KINDS.values() for c in members]
    title = f"difference of the error to {BASELINE}" if paired else "error"
    dots = charts.dots(runs.methods, "each", "corruption", order, title)
    layers = (charts.upright(0.0), dots) if paired else (dots,)
    note = "At severity 5, mean over seeds; ordered by kind: texture, noise, blur, weather. " + (
        f"Left of the line is less error than {BASELINE}." if paired else "Less is better."
    )
    height = 20 * len({row["corruption"] for row in rows}) + 20
    panel = Panel("severity 5", height, layers, {"each": rows} | ONE, alt="The table below it has the numbers.")
    return Figure("each-corruption", "Corruption by corruption", note, [panel] if rows else [], wide=True)


def corruption_table(runs: Collected) -> dict[str, dict[str, float]]:
    """Corruption → method → its mean error at severity 5."""
    known = [c for members in CORRUPTION_KINDS.values() for c in members]
    every = dict.fromkeys(corruption for s in runs.students for corruption in s.errors)
    table: dict[str, dict[str, float]] = {}
    for name in sorted(every, key=lambda name: known.index(name) if name in known else len(known)):
        for method, students in runs.groups.items():
            if values := [s.errors[name][-1] for s in students if name in s.errors]:
                table.setdefault(name, {})[method] = fmean(values)
    return table


# --- the training: its score over epochs, loss terms over time ---


def training_figures(runs: Collected) -> list[Figure]:
    metrics: dict[str, list[StudentRun]] = {}
    for student in runs.students:
        metrics.setdefault(student.primary_metric, []).append(student)
    return [*(_curves(students, score, runs.methods) for score, students in metrics.items()), _losses(runs)]


def eval_splits(students: Sequence[StudentRun]) -> str:
    return " / ".join(dict.fromkeys(student.eval_split for student in students))


def _curves(students: Sequence[StudentRun], score: str, methods: list[str]) -> Figure:
    seeds: Rows = [
        {"method": s.method, "seed": str(s.run.seed), "epoch": epoch, "value": float(f"{value:.5g}")}
        for s in students
        for epoch, value in s.curve
    ]
    data = {"mean": means([{key: row[key] for key in ("method", "epoch", "value")} for row in seeds])}
    label, split = words(score), eval_splits(students)
    if len(students) > charts.SINGLE:
        around = "the band is ± one standard deviation"
        band = {"low": "datum.value - datum.std", "high": "datum.value + datum.std"}
        area = base("mean").transform_calculate(**band).mark_area(opacity=0.15)
        behind = area.encode(x=alt.X("epoch:Q"), y=alt.Y("low:Q"), y2=alt.Y2("high"))
    else:
        around, data["seeds"] = "thin: single seeds", seeds
        thin = charts.axes("seeds", "epoch", label).mark_line(strokeWidth=1, strokeOpacity=0.5)
        behind = thin.encode(detail=alt.Detail("seed:N"))
    layers = (behind.encode(color=charts.method_colour(methods)),)
    panel = add_lines(Panel(f"{split} set", 300, layers, data, alt=_ends(data["mean"])), methods, "epoch", label)
    note = f"Bold: mean over seeds; {around}. Point at a line for its numbers."
    name = score if score in ("accuracy", "miou") else "score"  # of its files
    title = f"{heading(label)} on the {split} set during training"
    return Figure(name, title, note, [panel] if seeds else [], wide=True)


def _losses(runs: Collected) -> Figure:
    terms: dict[str, Rows] = {}
    for s in runs.students:
        for epoch, term, value in s.terms:
            terms.setdefault(term, []).append({"method": s.method, "epoch": epoch, "value": value})
    panels = []
    for number, (term, points) in enumerate(terms.items()):
        rows = means(points)
        panel = Panel(term, 160, (), {f"term{number}": rows}, alt=_ends(rows))
        panels.append(add_lines(panel, runs.methods, "epoch", "loss"))
    note = (
        "The weighted terms that are summed, mean over seeds and over the steps since the point before; of runs "
        "with very many logged steps, over an even part of them. A method shows where it has the term."
    )
    return Figure("losses", "Loss terms over time", note, panels)


def _ends(rows: Rows) -> str:
    """Where each line ends, in words; the rows of a method are sorted by epoch."""
    last = {row["method"]: row["value"] for row in rows}
    return "At the end: " + ", ".join(f"{method} {value:.3g}" for method, value in last.items())
