"""The tables as text: table.md, table.tex, classes.md, sweep.md, scatter.md, and what a terminal shows."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from antishortcut.errors import printable
from antishortcut.fileio import atomic_write
from antishortcut.report.collect import Found
from antishortcut.report.figures import Drawn
from antishortcut.report.model_cost import size_table
from antishortcut.report.notes import informed
from antishortcut.report.paper_comparison import HEAD, beside, told
from antishortcut.report.scatter import PICKS
from antishortcut.report.segmentation_figures import class_tables
from antishortcut.report.table import HEADLINE, Differences, Table, arrow, legend, opening, parts, words

TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "*": "{*}", "±": r"$\pm$", "−": "$-$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "…": r"\dots{}", "`": r"\`{}",
}  # fmt: skip
LATIN = re.compile(r"[^\x20-\x7e\xa1-\xff]")  # what a plain LaTeX cannot set
BORDER = 3  # characters beside the text of a column at a terminal
LINES = 24  # of differences at a terminal; of more, only those of the headline


class Shown(NamedTuple):
    """A table and the lines that explain it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[str]


def _results(table: Table, bold: bool = False) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the first table; the best of a column is bold or has its mark."""
    marks = {name: table.marks(name) for name in table.columns}
    rows = []
    for method in table.cells:
        row = [method, str(table.seeds[method])]
        for name in table.columns:
            text, mark = " ".join(table.texts(method, name)).strip(), marks[name][method]
            cell = f"**{text}** {mark.against}" if bold and mark.best else f"{text} {mark.against if bold else mark}"
            row.append(cell.rstrip())
        rows.append(row)
    return ["method", "seeds", *(f"{name} {arrow(name)}".strip() for name in table.columns)], rows


def _more(found: Found, table: Table, brief: bool = False) -> Iterator[Shown]:
    """Differences to the baseline; the paper's pairs beside print; size and latency."""
    differences, sides = Differences.of(table), beside(found, table)
    if differences.each:
        title, rows = f"difference to {differences.references}, seed by seed", differences.texts()
        if brief and len(rows) > LINES:
            title, rows = f"{title} (all in table.md)", [row for row in rows if row[1] == HEADLINE]
        yield Shown(title, differences.head(), rows, differences.told())
    for number, side in enumerate(sides, start=1):
        last = number == len(sides) and any(each.lines for each in sides)
        below = side.footnotes() + [told(sides)] * last
        yield Shown(f"beside the printed numbers: {side.title}", HEAD, side.texts(), below)
    sizes = size_table(found)
    if sizes and (sizes.machines or not brief):
        yield Shown("size and latency", sizes.head(), sizes.texts(), [sizes.told()])


def _notes(found: Found, table: Table) -> list[str]:
    """Below the first table: random directions, where images come from, whether the teacher was ahead of labels."""
    notes = [
        f"{name}: a random direction has {table.random[name]:.3f}." for name in table.columns if name in table.random
    ]
    sets = dict.fromkeys(parts(name)[0] for name in table.columns)
    return [*notes, *(f"{name}: {table.source(name)} images." for name in sets if table.source(name)), *informed(found)]


def terminal_tables(found: Found, table: Table, width: int | None = None) -> Iterator[Shown]:
    """For a terminal; `width` is its own where it is not given."""
    if width is None:
        from rich.console import Console

        width = Console().width
    evaluated = [] if table.primary_metric == "accuracy" else [f"last, best: {table.primary_metric}."]
    marks = legend(bool(table.differences), len(set(table.suites.values())))
    *first, last = fit(*_results(table), width)
    yield from (Shown(str(found.folder), *grid, []) for grid in first)
    yield Shown(
        str(found.folder), *last, [*table.told, *evaluated, marks, *_notes(found, table)] if table.cells else []
    )
    yield from _more(found, table, brief=True)


def fit(head: list[str], rows: list[list[str]], width: int) -> list[tuple[list[str], list[list[str]]]]:
    """A score per line and a method per column if that is narrow enough; else a method per line, in several tables."""
    columns = [list(column) for column in zip(head, *rows, strict=True)]
    if not rows or 1 + sum(_wide(line) + BORDER for line in (head, *rows)) <= width:
        return [(columns[0], columns[1:])]
    tables: list[list[list[str]]] = []
    left = 0
    for column in columns[1:]:
        if not tables or _wide(column) + BORDER > left:
            tables.append([columns[0]])
            left = width - 1 - _wide(columns[0]) - BORDER
        left -= _wide(column) + BORDER
        title = "\n".join(textwrap.wrap(column[0], _wide(column), break_long_words=False))
        tables[-1].append([title, *column[1:]])
    return [(lines[0], lines[1:]) for each in tables for lines in [[list(line) for line in zip(*each, strict=True)]]]


def _wide(column: Sequence[str]) -> int:
    """Characters a column needs: a cell in one line, its title in a line per word if it must be."""
    return max(len(text) for text in (*column[0].split(), *column[1:], " "))


def write_markdown(found: Found, table: Table, path: Path) -> None:
    """The tables as Markdown, the best of a column in bold."""
    lines = [f"# {plain(found.folder.resolve().name)}", ""]
    lines += [line for label in table.told for line in (f"**{plain(label)}**", "")]
    if table.cells:
        marks = legend(bool(table.differences), len(set(table.suites.values())), best="**bold**", sure=r"\*")
        score = "" if table.primary_metric == "accuracy" else f"{table.primary_metric} "
        lines += grid(*_results(table, bold=True))
        lines += [f"Mean ± standard deviation over seeds (ddof 1); last: {score}after the last epoch; {marks}"]
        lines += [plain(note) for note in _notes(found, table)]
    else:
        lines += ["No finished student yet."]
    for shown in _more(found, table):
        lines += ["", f"## {plain(opening(shown.title))}", "", *(grid(shown.head, shown.rows) if shown.rows else [])]
        lines += [line for note in shown.below for line in (plain(note), "")]
    states = [(p.path, p.state) for p in found.progress]
    states += [(each.run, each.state) for each in (*found.aside, *found.notes)]
    if states:
        lines += ["", "## Not in the table", "", *(f"- {plain(run)}: {plain(state)}" for run, state in states)]
    _write(path, lines)


def write_texts(found: Found, table: Table, drawn: Drawn) -> None:
    """All files of text into the reported folder."""
    folder = found.folder
    write_markdown(found, table, folder / "table.md")
    write_latex(table, folder / "table.tex")
    if classes := class_tables(found):
        lines = ["# IoU of every class", ""]
        for each in classes:
            lines += [f"## {plain(each.title)}", "", *grid(["class", *each.methods], each.texts())]
            lines += [each.told("**bold**"), ""]
        _write(folder / "classes.md", lines)
    for sweep, _ in drawn.sweep:
        lines = [f"# How scores depend on {plain(sweep.key)}", "", *grid(sweep.head(), sweep.texts()), sweep.told()]
        _write(folder / "sweep.md", lines)
    for scatter, _ in drawn.scatter:
        lines = [f"# Choosing by {plain(scatter.x)}: does it find the best {plain(scatter.y)}?", ""]
        lines += [*grid(["", "value", "over"], scatter.numbers()), plain(scatter.told()), ""]
        if scatter.choices:
            lines += ["## The choice in each suite and seed", "", *grid(PICKS, scatter.picks())]
        _write(folder / "scatter.md", lines)


def _write(path: Path, lines: list[str]) -> None:
    with atomic_write(path) as file:
        file.write(("\n".join(lines).rstrip() + "\n").encode(errors="replace"))


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
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
        source = (
            table.primary_metric if group == "training" and table.primary_metric != "accuracy" else table.source(group)
        )
        heads.append(rf"\multicolumn{{{count}}}{{c}}{{{tex(f'{group} ({source})' if source else group)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + count - 1}}}")
        at += count
    names = ["method", "seeds", *(f"{words(parts(name)[1])} {arrow(name)}".strip() for name in table.columns)]
    note = rf"\multicolumn{{{2 + len(table.columns)}}}{{p{{0.9\linewidth}}}}"
    lines = [
        r"% Made by asd report. Needs \usepackage{booktabs} and, before TeX Live 2018, \usepackage[utf8]{inputenc}.",
        *(f"% {label}" for label in table.told),
        rf"\begin{{tabular}}{{l{'r' * (1 + len(table.columns))}}}",
        r"\toprule",
        *([" & ".join(heads) + r" \\", " ".join(rules)] if table.columns else []),
        " & ".join(tex(name) for name in names) + r" \\",
        r"\midrule",
        *(" & ".join(_latex_row(table, method)) + r" \\" for method in table.cells),
        *([r"\midrule"] if table.told else []),
        *(rf"{note}{{\footnotesize {tex(label)}}} \\" for label in table.told),
        r"\bottomrule",
        r"\end{tabular}",
        *(
            f"% {name}: a random direction has {table.random[name]:.3f}"
            for name in table.columns
            if name in table.random
        ),
    ]
    _write(path, [" ".join(line.split()) if line.startswith("%") else line for line in lines])


def _latex_row(table: Table, method: str) -> list[str]:
    cells = [tex(method), str(table.seeds[method])]
    for name in table.columns:
        mean, spread = (tex(text) for text in table.texts(method, name))
        bold = rf"\textbf{{{mean}}}" if method in table.best(name) else mean
        cells.append(bold + (rf" {{\scriptsize {spread}}}" if spread else ""))
    return cells


def tex(text: str) -> str:
    """Text from outside that LaTeX sets as it stands: nothing in it is a command."""
    return "".join(TEX.get(letter) or LATIN.sub("?", letter) for letter in " ".join(text.split()))
