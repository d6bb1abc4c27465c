"""Whether reduced precision costs accuracy: students learnt in float32 and in bfloat16, paired by seed.

`python benchmarks/precision.py [--recipe desk] [--methods kd,asd] [--seeds 1,2,3] [--runs DIR]` distils every student
twice from one teacher: all in float32, and the student under bfloat16's autocast beside a teacher that answers
in bfloat16. Prints what each scores on the set that judges, and the difference with its interval beside the seeds' own
spread. Finished students are not learnt again; without bfloat16 instructions the second ones take three times as long.
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from antishortcut.config.recipe import Execution, load_recipe
from antishortcut.hardware import processor
from antishortcut.report.stats import paired, summary
from antishortcut.run_dir import RunDir
from antishortcut.training.pipeline import Session, distill

WAYS = {
    "float32": {"precision": "32-true", "teacher_precision": "float32"},
    "bfloat16": {"precision": "bf16-mixed", "teacher_precision": "bfloat16"},
}


def learn(name: str, way: str, methods: list[str], seeds: list[int], session: Session) -> dict[str, list[float]]:
    """Scores by method, in the order of the seeds; all ways share the teacher, which was learnt in float32."""
    session.execution = session.execution.model_copy(update=WAYS[way])
    recipe, suite = load_recipe(name), f"{name}-{way}"
    runs = {
        method: [distill(recipe, session, method=method, seed=seed, suite=suite) for seed in seeds]
        for method in methods
    }
    return {
        name: [RunDir(run.folder(session.runs)).primary_metric()[1] for run in built] for name, built in runs.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="desk")
    parser.add_argument("--methods", default="kd,asd")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--threads", type=int, default=2)
    requested = parser.parse_args()
    methods, seeds = requested.methods.split(","), [int(seed) for seed in requested.seeds.split(",")]
    session = Session(
        requested.runs, requested.data_root, False, Execution(accelerator="cpu", threads=requested.threads)
    )
    result = {way: learn(requested.recipe, way, methods, seeds, session) for way in WAYS}
    scores: dict[str, Any] = {}
    for method in methods:
        pairs = [result[way][method] for way in WAYS]
        scores[method] = {way: asdict(summary(result[way][method])) for way in WAYS}
        scores[method]["bfloat16 - float32"] = asdict(paired(pairs[1], pairs[0]))
    machine = {"machine": processor(), "torch": str(torch.__version__)}
    print(json.dumps({"recipe": requested.recipe, "seeds": seeds, "scores": scores} | machine, indent=1))


if __name__ == "__main__":
    main()
