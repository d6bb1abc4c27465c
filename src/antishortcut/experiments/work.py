"""One job of a suite carried out: its teachers, its student, its scores. Whatever is there already is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from antishortcut.config.recipe import Recipe
from antishortcut.evaluation import Bench, evaluate
from antishortcut.experiments.suites_suites import Job
from antishortcut.progress import first_process
from antishortcut.run_dir import Folder
from antishortcut.training.pipeline import Workshop, distill, teach


@dataclass(frozen=True)
class Worker:
    """Where a job's evaluations find their images, beside what training needs."""

    shop: Workshop
    at: dict[str, Path]

    def teach(self, recipe: Recipe) -> dict[str, Any]:
        return self._result(Folder(teach(recipe, self.shop).folder(self.shop.runs)))

    def learn(self, job: Job) -> dict[str, Any]:
        *_, source = [teach(recipe, self.shop) for recipe in job.teachers]
        early = job.early if job.early is None or job.other is None else f"{source.hash}/{job.early}"
        run = distill(
            job.recipe,
            self.shop,
            method=job.method,
            options=job.options,
            seed=job.seed,
            suite=job.suite,
            name=job.name,
            early=early,
        )
        folder = Folder(run.folder(self.shop.runs))
        if first_process():  # where several share a run, one of them scores it
            evaluate(folder, self._bench(job), job.on, device=self.device)
        return self._result(folder)

    @property
    def device(self) -> str:
        """Where students are scored: where they are trained, as far as that is known beforehand."""
        wanted = self.shop.execution.accelerator
        return wanted if wanted != "auto" else "cuda" if torch.cuda.is_available() else "cpu"

    def _bench(self, job: Job) -> Bench:
        sets, shop = self.shop.sets(job.recipe.data), self.shop
        bench = Bench(sets, shop.runs, at=self.at, limit=job.images)
        return bench if shop.root is None else replace(bench, root=shop.root)

    def _result(self, folder: Folder) -> dict[str, Any]:
        result, (name, value) = folder.result(), folder.headline()
        score = f"{result.get('set', '?')} {name} {value:.3f}"
        return {"run": str(folder.path), "score": score, "seconds": result.get("seconds", 0.0)}
