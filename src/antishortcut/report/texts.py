"""The tables as text for other documents: table.md and table.tex, classes.md, sweep.md and scatter.md."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from antishortcut.errors import printable
from antishortcut.folder import replacing
from antishortcut.report.classes import ClassTable
from antishortcut.report.collect import Found
from antishortcut.report.columns import arrow, parts, words
from antishortcut.report.differences import Differences
from antishortcut.report.informed import informed
from antishortcut.report.marks import legend
from antishortcut.report.printed import HEAD, Beside, beside, told
from antishortcut.report.scatter import PICKS, Scatter
from antishortcut.report.sizes import size_table
from antishortcut.report.sweep import Sweep
from antishortcut.report.table import Table

TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "*": "{*}", "±": r"$\pm$", "−": "$-$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "…": r"\dots{}", "`": r"\`{}",
}  # fmt: skip
LATIN = re.compile(r"[^\x20-\x7e\xa1-\xff]")  # what a plain LaTeX cannot set


def write_markdown(found: Found, table: Table, path: Path) -> None:
    """The tables as Markdown, the best of a column in bold."""
    sides = beside(found, table)
    lines = [f"# {plain(found.folder.resolve().name)}", ""]
    lines += [
        line for side in sides for label in side.labels for line in (f"**{plain(side.suite)}: {plain(label)}.**", "")
    ]
    if table.cells:
        lines += _results(table)
    else:
        lines += ["No finished student yet."]
    for name in table.columns:
        if name in table.random:
            lines += [f"{plain(name)}: a random direction has {table.random[name]:.3f}."]
    sets = dict.fromkeys(parts(name)[0] for name in table.columns)
    lines += [f"{plain(name)}: {plain(table.source(name))} images." for name in sets if table.source(name)]
    lines += ["", *(plain(line) for line in informed(found))]
    differences = Differences.of(table)
    if differences.each:
        lines += ["", f"## Difference to {differences.references}, seed by seed", ""]
        lines += [*grid(differences.head(), differences.texts()), *differences.told()]
    lines += _printed(sides)
    if sizes := size_table(found):
        lines += ["", "## Size and latency", "", *grid(sizes.head(), sizes.texts()), plain(sizes.told())]
    states = [(p.path, p.state) for p in found.progress]
    states += [(each.run, each.state) for each in (*found.aside, *found.notes)]
    if states:
        lines += ["", "## Not in the table", "", *(f"- {plain(run)}: {plain(state)}" for run, state in states)]
    _write(path, lines)


def _results(table: Table) -> list[str]:
    head = ["method", "seeds", *(f"{name} {arrow(name)}".strip() for name in table.columns)]
    marks = {name: table.marks(name) for name in table.columns}
    rows = []
    for method in table.cells:
        texts = {name: " ".join(table.texts(method, name)).strip() for name in table.columns}
        bold = {name: f"**{text}**" if marks[name][method].best else text for name, text in texts.items()}
        cells = [f"{text} {marks[name][method].against}".rstrip() for name, text in bold.items()]
        rows.append([method, str(table.seeds[method]), *cells])
    said = legend(bool(table.differences), len(set(table.suites.values())), best="**bold**", sure=r"\*")
    what = "" if table.headline == "accuracy" else f"{table.headline} "
    told = f"Mean ± standard deviation over seeds (ddof 1); last: {what}after the last epoch; {said}"
    return [*grid(head, rows), told]


def _printed(sides: list[Beside]) -> list[str]:
    """A table for each suite of the paper's."""
    lines: list[str] = []
    for side in sides:
        lines += ["", f"## Beside the printed numbers: {plain(side.title)}", ""]
        lines += [line for label in side.labels for line in (f"**{plain(label)}.**", "")]
        lines += grid(list(HEAD), side.texts()) if side.lines else []
        lines += [line for note in side.footnotes() for line in (note, "")]
    return [*lines, told(sides)] if any(side.lines for side in sides) else lines


def write_classes(tables: list[ClassTable], path: Path) -> None:
    """The tables of classes as Markdown, the best of a line in bold."""
    lines = ["# IoU of every class", ""]
    for table in tables:
        lines += [f"## {plain(table.title)}", "", *grid(["class", *table.methods], table.texts())]
        lines += [table.told("**bold**"), ""]
    _write(path, lines)


def write_sweep(sweep: Sweep, path: Path) -> None:
    """The table of a sweep as Markdown."""
    _write(path, [f"# How scores depend on {plain(sweep.key)}", "", *grid(sweep.head(), sweep.texts()), sweep.told()])


def write_scatter(scatter: Scatter, path: Path) -> None:
    """What a scatter comes to, as Markdown."""
    lines = [f"# Choosing by {plain(scatter.x)}: does it find the best {plain(scatter.y)}?", ""]
    lines += [*grid(["", "value", "over"], scatter.numbers()), plain(scatter.told()), ""]
    if scatter.choices:
        lines += ["## The choice in each suite and seed", "", *grid(list(PICKS), scatter.picks())]
    _write(path, lines)


def _write(path: Path, lines: list[str]) -> None:
    with replacing(path) as file:
        file.write(("\n".join(lines).rstrip() + "\n").encode(errors="replace"))


def grid(head: list[str], rows: list[list[str]]) -> list[str]:
    marks = ["---", *("---:" for _ in head[1:])]
    return ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in (head, marks, *rows)] + [""]


def plain(text: str) -> str:
    """Names from outside stay in their cell and start no markup: no element, link, picture or code."""
    text = printable(" ".join(text.split())).replace("&", "&amp;").replace("\\", "&#92;").replace("<", "&lt;")
    return text.replace("[", "&#91;").replace("`", "&#96;").replace("|", "\\|")


def write_latex(table: Table, path: Path) -> None:
    """The first table for a paper: booktabs, columns under the set they belong to, the best in bold."""
    heads, rules, at = ["", ""], [], 3
    for group, columns in groupby(table.columns, key=lambda name: parts(name)[0]):
        count = len(list(columns))
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(_set(table, group))}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
        at += count
    note = rf"\multicolumn{{{2 + len(table.columns)}}}{{p{{0.9\linewidth}}}}"
    names = ["method", "seeds", *(f"{words(parts(name)[1])} {arrow(name)}".strip() for name in table.columns)]
    lines = [
        r"% Made by asd report. Needs \usepackage{booktabs} and, before TeX Live 2018, \usepackage[utf8]{inputenc}.",
        *(f"% {' '.join(told.split())}" for told in table.told),
        rf"\begin{{tabular}}{{l{'r' * (1 + len(table.columns))}}}",
        r"\toprule",
        *([" & ".join(heads) + r" \\", " ".join(rules)] if table.columns else []),
        " & ".join(tex(name) for name in names) + r" \\",
        r"\midrule",
        *(" & ".join(_latex_row(table, method)) + r" \\" for method in table.cells),
        *([r"\midrule"] if table.told else []),
        *(rf"{note}{{\footnotesize {tex(told)}}} \\" for told in table.told),
        r"\bottomrule",
        r"\end{tabular}",
    ]
    random = {name: table.random[name] for name in table.columns if name in table.random}
    notes = [f"% {name}: a random direction has {value:.3f}" for name, value in random.items()]
    with replacing(path) as file:
        file.write(("\n".join([*lines, *(" ".join(note.split()) for note in notes)]) + "\n").encode(errors="replace"))


def _set(table: Table, group: str) -> str:
    source = table.headline if group == "training" and table.headline != "accuracy" else table.source(group)
    return f"{group} ({source})" if source else group


def _latex_row(table: Table, method: str) -> list[str]:
    cells = [tex(method), str(table.seeds[method])]
    for name in table.columns:
        mean, spread = (tex(text) for text in table.texts(method, name))
        bold = rf"\textbf{{{mean}}}" if method in table.best(name) else mean
        cells.append(bold + (rf" {{\scriptsize {spread}}}" if spread else ""))
    return cells


def tex(text: str) -> str:
    """Text from outside that LaTeX sets as it stands: nothing in it is a command."""
    plain = " ".join(text.split())
    return "".join(TEX.get(letter) or LATIN.sub("?", letter) for letter in plain)
