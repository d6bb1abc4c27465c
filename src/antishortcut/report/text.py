"""The report in words: table.md, table.tex, classes.md, sweep.md, scatter.md, what a terminal shows, and --json."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from antishortcut.errors import printable
from antishortcut.fileio import atomic_write
from antishortcut.report import paper_comparison
from antishortcut.report.collect import BASELINE
from antishortcut.report.model_cost import size_table
from antishortcut.report.notes import differences, teacher_notes
from antishortcut.report.page import Figures
from antishortcut.report.published import beside_published
from antishortcut.report.reference_rows import reference_rows
from antishortcut.report.scatter import PICKS
from antishortcut.report.segmentation_figures import class_tables
from antishortcut.report.table import (
    HEADLINE,
    Difference,
    ResultTable,
    arrow,
    by_set,
    column_name,
    heading,
    split_column,
    words,
)

TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "|": r"\textbar{}", '"': "''", "[": "{[}", "*": "{*}", "±": r"$\pm$", "−": "$-$",
    "↑": r"$\uparrow$", "↓": r"$\downarrow$", "–": "--", "…": r"\dots{}", "`": r"\`{}",
}  # fmt: skip
LATIN = re.compile(r"[^\x20-\x7e\xa1-\xff]")  # what a plain LaTeX cannot set
SIZES = "size and latency"
BORDER = 3  # characters beside the text of a column at a terminal
MEANS = {  # evaluation → its columns in words
    "hard": "hard_accuracy is on those that T_early gets wrong, balanced_accuracy the mean of it and of the others",
    "probes": "needs_colour is the share of correct answers lost in grey; texture_share and surround_share are above "
    "0.5 if it relies on texture and background",
    "mechanism": "cos_final and cos_early are its embeddings' cosine to T_final's and T_early's, projection their "
    "length along the directions that moved most",
}
LINES = 24  # of differences at a terminal; of more, only those of the headline


class TextTable(NamedTuple):
    """A table and the lines that explain it."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[str]


def _results(table: ResultTable, bold: bool = False) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the first table; the best of a column is bold or has its mark."""
    columns = []
    for name in table.columns:
        cells = []
        for method, mark in table.marks(name).items():
            text = " ".join(table.texts(method, name)).strip()
            cell = f"**{text}** {mark.against}" if bold and mark.best else f"{text} {mark.against if bold else mark}"
            cells.append(cell.rstrip())
        columns.append(cells)
    head = ["method", "seeds", *(f"{column_name(name)} {arrow(name)}".strip() for name in table.columns)]
    seeds = [str(table.seeds[method]) for method in table.cells]
    rows = [list(row) for row in zip(table.cells, seeds, *columns, strict=True)]
    for row in reference_rows(table):
        cells = [row.text(name) for name in table.columns]
        if set(cells) - {"–"}:
            rows.append([row.name, str(row.count or "–"), *cells])
    return head, rows


def _more(table: ResultTable, brief: bool = False) -> Iterator[TextTable]:
    """Differences to the baseline; the paper's pairs beside print; published numbers; size and latency."""
    comparisons = paper_comparison.compare_with_paper(table)
    if table.differences:
        title, rows = f"difference to {BASELINE}, seed by seed", [one.texts() for one in table.differences]
        head: Sequence[str] = Difference.HEAD
        below = [Difference.NOTE]
        if all(one.value.count == 1 for one in table.differences):  # of one seed there is no interval
            head, rows, below = head[:3], [row[:3] for row in rows], []
        if brief and len(rows) > LINES:
            title, rows = f"{title} (all in table.md)", [row for row in rows if row[1] == HEADLINE]
        yield TextTable(title, head, rows, below)
    for each in comparisons:
        last = each is comparisons[-1] and any(one.rows for one in comparisons)
        below = each.footnotes() + [paper_comparison.EXPLANATION] * last
        yield TextTable(f"beside the printed numbers: {each.title}", paper_comparison.HEAD, each.texts(), below)
    if published := beside_published(table):
        yield TextTable("beside published numbers", *published)
    sizes = size_table(table.runs)
    if sizes and (sizes.machines or not brief):
        yield TextTable(SIZES, sizes.head(), sizes.texts(), [sizes.explanation()])


def _notes(table: ResultTable) -> list[str]:
    """Below the first table: random directions, where images come from, what differs, whether the teacher was ahead."""
    random = [f"{n}: a random direction has {table.random[n]:.3f}." for n in table.columns if n in table.random]
    sets = dict.fromkeys(split_column(name)[0] for name in table.columns)
    last = " / ".join(dict.fromkeys(f"last, {student.eval_split} set" for student in table.runs.students))
    titles = {"training": last}
    sources = [f"{titles.get(name, name)}: {table.sources[name]} images." for name in sets if table.sources.get(name)]
    means = [f"{name}: {MEANS[name]}." for name in dict.fromkeys(each.split(" ")[0] for each in sets) if name in MEANS]
    return [*random, *sources, *means, *differences(table.runs), *teacher_notes(table.runs)]


@dataclass(frozen=True)
class Report:
    """The runs in a table, and their figures."""

    table: ResultTable
    drawn: Figures

    @property
    def sentences(self) -> list[str]:
        """What the numbers say, as on the page's first screen."""
        return self.drawn.first.sentences if self.drawn.first else []

    def tables(self, columns: str | None, width: int | None = None) -> Iterator[TextTable]:
        """For a terminal, by default the current one: means and marks, differences, the paper, size and latency."""
        table = self.table.select(columns)
        metric = [] if table.primary_metric == "accuracy" else [f"last, best: {table.primary_metric}."]
        notes = [*table.suite_labels, *metric, table.legend(), *_notes(table)] if table.cells else []
        width = width or Console().width
        *first, last = fit(*_results(table), width)
        title = str(table.runs.folder)
        yield from (TextTable(title, head, rows, []) for head, rows in first)
        yield TextTable(title, *last, notes)
        for more in _more(table, brief=True):
            head, rows = list(more.head), [list(row) for row in more.rows]
            too_wide = more.title == SIZES and len(folded(head, rows, width)) > 1
            parts = fit(head, rows, width) if too_wide else []
            yield from [TextTable(SIZES, *part, []) for part in parts[:-1]]
            yield more._replace(head=parts[-1][0], rows=parts[-1][1]) if parts else more

    def summary(self, columns: str | None) -> dict[str, Any]:
        """For --json: `sentences`, `notes`, `rows` (one per method), `differences`, `printed` (in the paper), `runs` …

        Where there are any: `sweep`, `scatter`, `classes` (the IoU of each), `sizes` (parameters, latencies).
        """
        table, runs, sizes = self.table.select(columns), self.table.runs, size_table(self.table.runs)
        unfinished = [(each.path, each.state) for each in runs.progress]
        unfinished += [(each.run, each.state) for each in runs.aside]
        more: dict[str, Any] = {"classes": [each.flat() for each in class_tables(runs)]}
        more |= {"sizes": [row.flat() for row in sizes.rows]} if sizes else {}
        for key, drawn in (("sweep", self.drawn.sweep), ("scatter", self.drawn.scatter)):
            more[key] = drawn[0][0].flat() if drawn else None
        return {key: value for key, value in more.items() if value} | {
            "sentences": self.sentences,
            "notes": differences(runs),
            "rows": table.rows(),
            "references": [{"row": row.name} | row.values for row in reference_rows(table)],
            "differences": [one.flat() for one in table.differences],
            "printed": [each.flat() for each in paper_comparison.compare_with_paper(table)],
            "page": str(runs.folder / "report.html"),
            "runs": len(runs.students),
            "unfinished": [{"run": run, "state": state} for run, state in unfinished],
            "skipped": [{"file": note.run, "why": note.state} for note in (*runs.notes, *self.drawn.notes)],
        }


def fit(head: list[str], rows: list[list[str]], width: int) -> list[tuple[list[str], list[list[str]]]]:
    """A score per line and a method per column, or the other way round where that takes fewer tables."""
    return min(_split([head, *rows], width), folded(head, rows, width), key=len)


def folded(head: list[str], rows: list[list[str]], width: int) -> list[tuple[list[str], list[list[str]]]]:
    """Tables with a method per line that are narrow enough."""
    return _split([[title.replace(" ", "\n"), *cells] for title, *cells in zip(head, *rows, strict=True)], width)


def _split(columns: list[list[str]], width: int) -> list[tuple[list[str], list[list[str]]]]:
    """Head and rows of tables that are narrow enough, each with the first column."""
    wide = [max(len(line) for cell in column for line in cell.split("\n")) + BORDER for column in columns]
    tables, left = [[columns[0]]], width - 1 - wide[0]
    for column, needs in zip(columns[1:], wide[1:], strict=True):
        if needs > left and len(tables[-1]) > 1:
            tables.append([columns[0]])
            left = width - 1 - wide[0]
        tables[-1].append(column)
        left -= needs
    return [(head, rows) for table in tables for head, *rows in [[list(line) for line in zip(*table, strict=True)]]]


# --- files ---


def write_texts(table: ResultTable, drawn: Figures) -> None:
    """All files of text into the reported folder."""
    folder = table.runs.folder
    write_markdown(table, folder / "table.md")
    write_latex(table, folder / "table.tex")
    if classes := class_tables(table.runs):
        lines = ["# IoU of every class", ""]
        for each in classes:
            lines += [f"## {plain(each.title)}", "", *grid(["class", *each.methods], each.texts())]
            lines += [each.explanation("**bold**"), ""]
        _write(folder / "classes.md", lines)
    for sweep, _ in drawn.sweep:
        lines = [f"# How scores depend on {plain(sweep.key)}", "", *grid(sweep.head(), sweep.texts())]
        _write(folder / "sweep.md", [*lines, sweep.explanation()])
    for scatter, _ in drawn.scatter:
        lines = [f"# Choosing by {plain(scatter.x)}: does it find the best {plain(scatter.y)}?", ""]
        lines += [*grid(["", "value", "over"], scatter.numbers()), plain(scatter.explanation()), ""]
        if scatter.choices:
            lines += ["## The choice in each suite and seed", "", *grid(PICKS, scatter.picks())]
        _write(folder / "scatter.md", lines)


def write_markdown(table: ResultTable, path: Path) -> None:
    """The tables as Markdown, the best of a column in bold."""
    runs = table.runs
    lines = [f"# {plain(runs.folder.resolve().name)}", ""]
    lines += [line for label in table.suite_labels for line in (f"**{plain(label)}**", "")]
    if table.cells:
        score = "" if table.primary_metric == "accuracy" else f"{table.primary_metric} "
        marks = table.legend(best="**bold**", sure=r"\*")
        lines += grid(*_results(table, bold=True))
        lines += [f"Mean ± standard deviation over seeds (ddof 1); last: {score}after the last epoch; {marks}"]
        lines += [plain(note) for note in _notes(table)]
    else:
        lines += ["No finished student yet."]
    for more in _more(table):
        lines += ["", f"## {plain(heading(more.title))}", "", *(grid(more.head, more.rows) if more.rows else [])]
        lines += [line for note in more.below for line in (plain(note), "")]
    states = [(each.path, each.state) for each in runs.progress]
    states += [(each.run, each.state) for each in (*runs.aside, *runs.notes)]
    if states:
        lines += ["", "## Not in the table", "", *(f"- {plain(run)}: {plain(state)}" for run, state in states)]
    _write(path, lines)


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


def write_latex(table: ResultTable, path: Path) -> None:
    """The first table for a paper: booktabs, columns under the set they belong to, the best in bold."""
    heads, rules, at = ["", ""], [], 3
    for group, columns in by_set(table.columns):
        metric = table.primary_metric if group == "training" and table.primary_metric != "accuracy" else ""
        title = f"{group} ({metric})" if metric else table.titled(group)
        heads.append(rf"\multicolumn{{{len(columns)}}}{{c}}{{{tex(title)}}}")
        rules.append(rf"\cmidrule(lr){{{at}-{at + len(columns) - 1}}}")
        at += len(columns)
    names = ["method", "seeds", *(f"{words(split_column(name)[1])} {arrow(name)}".strip() for name in table.columns)]
    best = {name: table.best(name) for name in table.columns}
    body = []
    for method in table.cells:
        cells = [tex(method), str(table.seeds[method])]
        for name in table.columns:
            mean, spread = (tex(text) for text in table.texts(method, name))
            bold = rf"\textbf{{{mean}}}" if method in best[name] else mean
            cells.append(bold + (rf" {{\scriptsize {spread}}}" if spread else ""))
        body.append(cells)
    below = [[row.name, str(row.count or "–"), *map(row.text, table.columns)] for row in reference_rows(table)]
    note = rf"\multicolumn{{{2 + len(table.columns)}}}{{p{{0.9\linewidth}}}}"
    lines = [
        r"% Made by asd report. Needs \usepackage{booktabs} and, before TeX Live 2018, \usepackage[utf8]{inputenc}.",
        *(f"% {label}" for label in table.suite_labels),
        rf"\begin{{tabular}}{{l{'r' * (1 + len(table.columns))}}}",
        r"\toprule",
        *([" & ".join(heads) + r" \\", " ".join(rules)] if table.columns else []),
        " & ".join(tex(name) for name in names) + r" \\",
        r"\midrule",
        *(" & ".join(cells) + r" \\" for cells in body),
        *([r"\midrule"] if below else []),
        *(" & ".join(map(tex, cells)) + r" \\" for cells in below),
        *([r"\midrule"] if table.suite_labels else []),
        *(rf"{note}{{\footnotesize {tex(label)}}} \\" for label in table.suite_labels),
        r"\bottomrule",
        r"\end{tabular}",
        *(f"% {n}: a random direction has {table.random[n]:.3f}" for n in table.columns if n in table.random),
    ]
    _write(path, [" ".join(line.split()) if line.startswith("%") else line for line in lines])


def tex(text: str) -> str:
    """Text from outside that LaTeX sets as it stands: nothing in it is a command."""
    return "".join(TEX.get(letter) or LATIN.sub("?", letter) for letter in " ".join(text.split()))
