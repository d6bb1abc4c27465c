"""asd suite list, show, run, status: many runs at once."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from antishortcut.cli import options as complete
from antishortcut.cli.options import (
    AtOption,
    DeviceOption,
    DownloadOption,
    Flags,
    JsonOption,
    PrecisionOption,
    RootOption,
    RunsOption,
    SetOption,
    ThreadsOption,
    execution_of,
    places_of,
    print_json,
    table,
    tell,
    with_execution,
)
from antishortcut.errors import UserError, printable, suggest

if TYPE_CHECKING:
    from antishortcut.experiments.launcher import Engine, Place
    from antishortcut.experiments.suites import Job, Suite

app = typer.Typer(no_args_is_help=True, help="Many runs that answer a question together.")
NameArg = Annotated[str, typer.Argument(help="asd suite list.", autocompletion=complete.suites)]
OnlyOption = Annotated[list[str] | None, typer.Option(help="Names of runs to keep, * for any, may be repeated.")]
SeedsOption = Annotated[str | None, typer.Option(help="Seeds to keep, like 1,2,3.")]
ENGINES = ("local", "ray")
# not scored: trained, but some scores are not there; another: the folder holds another run
STATES = ("finished", "not scored", "begun", "waiting", "another")
ScaleOption = Annotated[str, typer.Option(help="Of the paper's tables: paper, or desk, cut down for two cores.")]


@app.command("list")
def list_(scale: ScaleOption = "paper", as_json: JsonOption = False) -> None:
    """Suites and how many students each trains."""
    from antishortcut.experiments.suites import describe

    rows = describe(scale)
    if as_json:
        print_json(rows)
        return
    table("suites", list(rows[0]), [tuple(row.values()) for row in rows])


@app.command()
def show(
    name: NameArg,
    set_: SetOption = None,
    only: OnlyOption = None,
    seeds: SeedsOption = None,
    scale: ScaleOption = "paper",
    measure: Annotated[bool, typer.Option("--measure", help="Measure steps here, and estimate the hours.")] = False,
    runs: RunsOption = Path("runs"),
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
    threads: ThreadsOption = 0,
    as_json: JsonOption = False,
) -> None:
    """The runs of a suite, what the paper says they cost, and what they would cost here.

    With --json a list of the runs; with --measure too, an object: runs, paper (its A100-hours), cost (here).
    """
    from antishortcut.experiments.paper import reported_hours

    if not measure:
        inputs = {"--device": device != "auto", "--precision": precision != "auto", "--threads": threads != 0}
        _idle("--measure", inputs)
    opened = _open(name, set_, only, seeds, scale)
    jobs, paper, here = opened.jobs, reported_hours(opened), None
    if measure:
        here = measure_suite(opened, runs, execution_of(device=device, precision=precision, threads=threads))
    if as_json:
        from antishortcut.methods import method_options

        listed = [
            job.model_dump(mode="json") | {"resolved": method_options(job.method, _settings(job))} for job in jobs
        ]
        print_json({"runs": listed, "paper": paper and paper.as_json(), "cost": here.as_json()} if here else listed)
        return
    for suite in dict.fromkeys(job.suite for job in jobs):
        own = [job for job in jobs if job.suite == suite]
        recipe, names = own[0].recipe, [job.name for job in own]
        pair = f"{recipe.teacher.name} → {recipe.student.name}, {recipe.length} on {recipe.data.name}"
        first = {job.name: job for job in reversed(own)}
        rows = [
            (name, first[name].method, _options(first[name]), _early(first[name]), names.count(name))
            for name in dict.fromkeys(names)
        ]
        table(f"{suite}: {pair}", ("name", "method", "settings", "T_early", "seeds"), rows)
    tell(f"{len(jobs)} students")
    if paper:
        tell(paper)
    if here:
        print_cost(here)
    else:
        tell(f"hours on this machine: asd suite show {name}{f' --scale {scale}' * (scale != 'paper')} --measure")


@app.command()
@with_execution("nodes")
def run(
    name: NameArg,
    set_: SetOption = None,
    only: OnlyOption = None,
    seeds: SeedsOption = None,
    scale: ScaleOption = "paper",
    engine: Annotated[str, typer.Option(help="Where: local processes, or ray, a cluster.")] = "local",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; 1 unless said, on a cluster as many as fit.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster: HOST:PORT of its head, auto unless said.")
    ] = None,
    cards: Annotated[
        float | None,
        typer.Option(min=0, help="GPUs of a run on the cluster, 0.5 for two runs on one; --devices unless said."),
    ] = None,
    at: AtOption = None,
    runs: RunsOption = Path("runs"),
    data_root: RootOption = None,
    download: DownloadOption = False,
    as_json: JsonOption = False,
    *,
    execution: Flags,
) -> None:
    """Carry a suite out; what is finished is skipped, so the same command goes on after an interruption."""
    from antishortcut.experiments.launcher import Place, carry_out, check_images
    from antishortcut.progress import console

    if engine not in ENGINES:
        raise UserError(f"--engine {engine!r}{suggest(engine, ENGINES)}")
    if engine != "ray":
        _idle("--engine ray", {"--address": address is not None, "--cards": cards is not None})
    suite = _open(name, set_, only, seeds, scale)
    if execution["cache_teachers"] is None:
        execution["cache_teachers"] = False if suite.timed else "auto"
    place = Place(runs, data_root, places_of(at or ()), execution_of(**execution), download)
    todo = [job.model_copy(update={"on": tuple(dict.fromkeys((*job.on, *place.at)))}) for job in suite.jobs]
    check_images(todo, place)
    screen = console()
    where = _cluster(place, address or "auto", jobs, cards) if engine == "ray" else _processes(place, jobs or 1)
    outcome = carry_out(todo, place, where, lambda text: screen.print(printable(text), markup=False))
    if as_json:
        print_json({"done": outcome.done, "failed": outcome.failed, "runs": len(suite.jobs)})
    if outcome.stopped:
        print("asd: stopped; the same command goes on from there", file=sys.stderr)
        raise typer.Exit(outcome.code)
    if outcome.failed:
        first = next(iter(outcome.failed.items()))
        raise UserError(f"{len(outcome.failed)} of {len(suite.jobs)} runs failed; {first[0]}: {first[1]}")
    if not as_json:
        folders = dict.fromkeys(str(runs / job.suite) for job in suite.jobs)
        tell(f"{outcome.done} students are there; next: {' && '.join(f'asd report {folder}' for folder in folders)}")


def _processes(place: Place, jobs: int) -> Engine:
    from antishortcut.experiments.local import Processes

    return Processes(place, jobs)


def _cluster(place: Place, address: str, jobs: int | None, cards: float | None) -> Engine:
    from antishortcut.experiments.ray_engine import Cluster

    return Cluster(place, address, jobs, cards)


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
    """How far a suite has come."""
    from antishortcut.experiments.launcher import scored, state

    jobs = _open(name, set_, only, seeds, scale).jobs
    states = {job.title: state(job, runs) for job in jobs}
    states |= {job.title: "not scored" for job in jobs if states[job.title] == "finished" and not scored(job, runs)}
    if as_json:
        print_json(states)
        return
    groups: dict[tuple[str, str], dict[str, int]] = {}
    for job in jobs:
        count = groups.setdefault((job.suite, job.name), dict.fromkeys(STATES, 0))
        count[states[job.title]] += 1
    rows = [(*key, *count.values()) for key, count in groups.items()]
    table(name, ("suite", "name", *STATES), rows)
    trained = sum(result in ("finished", "not scored") for result in states.values())
    tell(f"{trained} of {len(jobs)} students are trained")


def _settings(job: Job) -> dict[str, Any]:
    return job.recipe.methods.get(job.method, {}) | job.options


def _options(job: Job) -> str:
    batch = job.recipe.optim.batch
    own = {"batch": batch} if job.recipe.teacher.batch not in (None, batch) else {}  # of the student alone
    return " ".join(f"{key}={value}" for key, value in {**job.options, **own}.items())


def _early(job: Job) -> str:
    """The state it learns from, where it is not the recipe's."""
    if job.other is None:
        return job.early or ("rewind" if job.recipe.teacher.early == "rewind" else "")
    return f"{job.early} of {'another seed' if job.other.name == job.recipe.teacher.name else job.other.name}"


def _open(name: str, set_: list[str] | None, only: list[str] | None, seeds: str | None, scale: str) -> Suite:
    from antishortcut.experiments.suites import open_suite

    try:
        numbers = [int(word) for word in (seeds or "").split(",") if word.strip()]
    except ValueError:
        numbers = []
    if seeds is not None and not numbers:
        raise UserError(f"--seeds {seeds!r}: write numbers with commas, like 1,2,3")
    return open_suite(name, set_ or (), only or (), numbers, scale)


def _idle(beside: str, given: dict[str, bool]) -> None:
    """Options that were given and would do nothing, for the one they stand beside was not."""
    if names := [name for name, text in given.items() if text]:
        raise UserError(f"{' and '.join(names)} without {beside} would do nothing; add {beside} or leave them out")


# --- How `asd suite show --measure` measures and prints what a suite costs here ---

if TYPE_CHECKING:
    from antishortcut.config.recipe import Execution
    from antishortcut.experiments.cost import Cost
    from antishortcut.experiments.suites import Suite


def measure_suite(suite: Suite, runs: Path, execution: Execution) -> Cost:
    from antishortcut.experiments.benchmark import Stopwatch
    from antishortcut.experiments.cost import measured_cost
    from antishortcut.progress import ProgressBar

    clock = Stopwatch(execution)
    with ProgressBar(f"measuring {suite.name}", 1) as watch:

        def progress(done: int, groups: int, problem: str) -> None:
            if done == 0:
                watch.total = groups
                watch.begin(0)
            if problem:
                watch.say(f"left out: {problem}")
            watch.update(done, {})

        return measured_cost(suite.jobs, runs, clock, progress)


def print_cost(cost: Cost) -> None:
    columns = ("", "students", "their hours", "teachers", "their hours")
    table(f"estimated hours on {cost.machine}", columns, [tuple(vars(row).values()) for row in cost.rows])
    tell(f"estimated {cost.hours:,.2f} h for the runs that are not finished, one after the other")
    tell("evaluation is not counted, nor is reading image files")
    for title, why in cost.left_out[:1]:
        tell(f"left out: {title}{f' and {n} more' if (n := len(cost.left_out) - 1) else ''}: {why}")
