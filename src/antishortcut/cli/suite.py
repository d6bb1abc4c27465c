"""asd suite list, show, run, status: many runs at once."""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from antishortcut.cli import options
from antishortcut.cli.options import JsonOption, RunsOption, SetOption, execution_of, print_json, table, tell
from antishortcut.errors import UserError, printable, suggest
from antishortcut.experiments import launcher
from antishortcut.experiments.jobs import Job, Suite
from antishortcut.experiments.launcher import Engine, LocalEngine, RayEngine
from antishortcut.experiments.paper import OTHER_HOURS, RUN_HOURS, reported_hours
from antishortcut.experiments.suites import describe_suites, open_suite
from antishortcut.experiments.worker import Place
from antishortcut.progress import console

if TYPE_CHECKING:
    from antishortcut.experiments.cost import Cost

app = typer.Typer(no_args_is_help=True, help="Many runs that answer a question together.")
NameArg = Annotated[str, Argument(help="asd suite list.", autocompletion=options.suites)]
OnlyOption = Annotated[list[str] | None, Option(help="Names of runs to keep, * for any, may be repeated.")]
SeedsOption = Annotated[str | None, Option(help="Seeds to keep, like 1,2,3.")]
ScaleOption = Annotated[str, Option(help="Of the paper's tables: paper, or desk, cut down for two cores.")]
ENGINES = ("local", "ray")
STATES = ("finished", "not scored", "begun", "waiting", "another")  # another: the folder holds another run


@app.command("list")
def list_(scale: ScaleOption = "paper", as_json: JsonOption = False) -> None:
    """Suites and how many students each trains."""
    options.print_rows("suites", describe_suites(scale), as_json)


@app.command()
def show(
    name: NameArg,
    set_: SetOption = None,
    only: OnlyOption = None,
    seeds: SeedsOption = None,
    scale: ScaleOption = "paper",
    measure: Annotated[bool, Option("--measure", help="Measure steps here, and estimate the hours.")] = False,
    runs: RunsOption = Path("runs"),
    device: options.DeviceOption = "auto",
    precision: options.PrecisionOption = "auto",
    threads: options.ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """The runs of a suite, what the paper says they cost, and what they would cost here.

    With --json a list of the runs; with --measure too, an object: runs, paper (its A100-hours), cost (here).
    """
    if not measure and (device, precision, threads) != ("auto", "auto", 0):
        raise UserError("--device, --precision and --threads do nothing without --measure")
    suite = _open(name, set_, only, seeds, scale)
    paper, cost = reported_hours(suite), None
    if measure:
        from antishortcut.experiments.benchmark import Stopwatch
        from antishortcut.experiments.cost import measured_cost

        tell("measuring steps …", file=sys.stderr)
        clock = Stopwatch(execution_of(device=device, precision=precision, threads=threads))
        cost = measured_cost(suite.jobs, runs, clock)
    if as_json:
        from antishortcut.methods import method_options

        jobs = [
            job.model_dump(mode="json")
            | {"resolved": method_options(job.method, job.recipe.methods.get(job.method, {}) | job.options)}
            for job in suite.jobs
        ]
        hours = paper and {"a100_hours": paper[0], "left_out": paper[1]}
        print_json({"runs": jobs, "paper": hours, "cost": cost.as_json()} if cost else jobs)
        return
    for folder in dict.fromkeys(job.suite for job in suite.jobs):
        jobs_here = [job for job in suite.jobs if job.suite == folder]
        recipe, count = jobs_here[0].recipe, Counter(job.name for job in jobs_here)
        title = f"{recipe.teacher.name} → {recipe.student.name}, {recipe.length} on {recipe.data.name}"
        first = {key: next(job for job in jobs_here if job.name == key) for key in count}
        rows = [(key, job.method, _settings(job), _early(job), count[key]) for key, job in first.items()]
        table(f"{folder}: {title}", ("name", "method", "settings", "T_early", "seeds"), rows)
    tell(f"{len(suite.jobs)} students")
    if paper:
        left_out = f"; {paper[1]} runs that it gives no hours for are left out" if paper[1] else ""
        tell(
            f"{round(paper[0], 1):,g} A100-hours as the paper counts ({RUN_HOURS:g} h a CIFAR-100 run, {OTHER_HOURS:g} "
            f"for nine runs of P11–P13; teachers and evaluation not counted{left_out})"
        )
    if cost:
        _show_cost(cost)
    else:
        tell("add --measure for the hours on this machine")


@app.command()
@options.with_execution("nodes")
def run(
    name: NameArg,
    set_: SetOption = None,
    only: OnlyOption = None,
    seeds: SeedsOption = None,
    scale: ScaleOption = "paper",
    engine: Annotated[str, Option(help="local processes, or ray, a cluster.")] = "local",
    jobs: Annotated[int | None, Option(min=1, help="Runs at a time [default: 1; on a cluster as many as fit].")] = None,
    address: Annotated[str | None, Option(help="HOST:PORT of the Ray cluster's head [default: auto].")] = None,
    cards: Annotated[float | None, Option(min=0, help="GPUs of a run on the cluster [default: --devices].")] = None,
    at: options.AtOption = None,
    runs: RunsOption = Path("runs"),
    data_root: options.RootOption = None,
    download: options.DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: options.Flags,
) -> None:
    """Run a suite. Finished runs are skipped, so the same command resumes after an interruption."""
    if engine not in ENGINES:
        raise UserError(f"--engine {engine!r}{suggest(engine, ENGINES)}")
    if engine != "ray" and (address is not None or cards is not None):
        raise UserError("--address and --cards do nothing without --engine ray")
    suite = _open(name, set_, only, seeds, scale)
    if execution["cache_teachers"] is None:
        execution["cache_teachers"] = False if suite.timed else "auto"
    place = Place(runs, data_root, options.image_folders(at or ()), execution_of(**execution), download)
    todo = [job.model_copy(update={"on": tuple(dict.fromkeys((*job.on, *place.at)))}) for job in suite.jobs]
    launcher.check_images(todo, place)
    screen = console()
    where = _engine(engine, place, jobs, address, cards)
    outcome = launcher.run_jobs(todo, place, where, lambda text: screen.print(printable(text), markup=False))
    if as_json:
        print_json({"done": outcome.done, "failed": outcome.failed, "runs": len(suite.jobs)})
    if outcome.stopped:
        print("asd: stopped; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(outcome.stopped)
    if outcome.failed:
        title, error = next(iter(outcome.failed.items()))
        raise UserError(f"{len(outcome.failed)} of {len(suite.jobs)} runs failed; {title}: {error}")
    if not as_json:
        folders = dict.fromkeys(str(runs / job.suite) for job in suite.jobs)
        tell(f"{outcome.done} students are there; next: {' && '.join(f'asd report {folder}' for folder in folders)}")


def _engine(name: str, place: Place, jobs: int | None, address: str | None, gpus: float | None) -> Engine:
    return RayEngine(place, address or "auto", jobs, gpus) if name == "ray" else LocalEngine(place, jobs or 1)


@app.command()
def status(
    name: NameArg,
    set_: SetOption = None,
    only: OnlyOption = None,
    seeds: SeedsOption = None,
    scale: ScaleOption = "paper",
    runs: RunsOption = Path("runs"),
    as_json: JsonOption = False,
) -> None:
    """How many runs of a suite are finished."""
    jobs = _open(name, set_, only, seeds, scale).jobs
    states = {job.title: launcher.state(job, runs) for job in jobs}
    finished = [job for job in jobs if states[job.title] == "finished"]
    states |= {job.title: "not scored" for job in finished if not launcher.scored(job, runs)}
    if as_json:
        print_json(states)
        return
    groups: dict[tuple[str, str], Counter[str]] = {}
    for job in jobs:
        groups.setdefault((job.suite, job.name), Counter())[states[job.title]] += 1
    table(name, ("suite", "name", *STATES), [(*key, *(count[s] for s in STATES)) for key, count in groups.items()])
    trained = sum(text in ("finished", "not scored") for text in states.values())
    tell(f"{trained} of {len(jobs)} students are trained")


def _settings(job: Job) -> str:
    batch = job.recipe.optim.batch
    own = {"batch": batch} if job.recipe.teacher.batch not in (None, batch) else {}  # of the student alone
    return " ".join(f"{key}={value}" for key, value in {**job.options, **own}.items())


def _early(job: Job) -> str:
    """The state it learns from, if it is not the recipe's."""
    if job.other is None:
        own = job.recipe.teacher.early
        return job.early or (own if own in ("rewind", "weak") else "")
    return f"{job.early} of {'another seed' if job.other.name == job.recipe.teacher.name else job.other.name}"


def _open(name: str, set_: list[str] | None, only: list[str] | None, seeds: str | None, scale: str) -> Suite:
    numbers = options.split_names(seeds or "")
    if seeds is not None and not (numbers and all(re.fullmatch(r"\d{1,10}", number) for number in numbers)):
        raise UserError(f"--seeds {seeds!r}: write numbers with commas, like 1,2,3")
    return open_suite(name, set_ or (), only or (), [int(number) for number in numbers], scale)


def _show_cost(cost: Cost) -> None:
    columns = ("", "students", "their hours", "teachers", "their hours")
    table(f"estimated hours on {cost.machine}", columns, [tuple(vars(row).values()) for row in cost.rows])
    tell(f"estimated {cost.hours:,.2f} h for the runs that are not finished, one after the other")
    tell("evaluation is not counted, nor is reading image files")
    for title, why in cost.left_out[:1]:
        tell(f"left out: {title}{f' and {n} more' if (n := len(cost.left_out) - 1) else ''}: {why}")
