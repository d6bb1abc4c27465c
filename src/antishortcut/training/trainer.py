"""One training, from settings to weights. It knows no method and no task by name.

It can stop after any step and go on from there: data order and augmentation are functions of (seed, epoch, index), the
noise inside networks and methods of (seed, step), so the state is weights, optimiser, sums of the log, and a counter.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from antishortcut.config.recipe import Execution, Run
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.distributed import all_gather_int, broadcast_from_rank0, gather, rank_local_buffers, report_lost_peers
from antishortcut.errors import UserError
from antishortcut.hardware import versions
from antishortcut.methods import build_method
from antishortcut.models import feature_shapes
from antishortcut.models.user_models import check_single_image
from antishortcut.models.weights import load_checked
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task, check_networks, method_sizes
from antishortcut.teachers.inference import TeacherOutputs
from antishortcut.teachers.trajectory import Teachers, Trajectory, build_model, save_weights, snapshot_steps
from antishortcut.training.checkpoint import (
    clear_checkpoints,
    drop_later_checkpoints,
    is_finished,
    load_checkpoint,
    refuse_unsound,
    require_disk,
    restore_optimizer,
    save_checkpoint,
    saved_step,
    try_save_checkpoint,
)
from antishortcut.training.fabric import resolve_execution
from antishortcut.training.loggers import Loggers, check_loggers
from antishortcut.training.microbatch import OutOfMemory, find_micro_batches, oom_errors
from antishortcut.training.mixup import check_mixup, mix_batch, split_microbatches
from antishortcut.training.optim import WeightAverage, build_optimizer, lr_at
from antishortcut.training.signals import Stopped, stop_signals
from antishortcut.training.step import (
    EMPTY_STEP,
    DistillationStep,
    FabricStep,
    LossMeter,
    OpaqueBatch,
    check_finite_weights,
)
from antishortcut.types import Batch, DataSplits, Features, Method, Prepares

SAVES = 1_000  # above the numbers of signals: what a process says that saves
PART = 1_000  # images that judge a state kept inside an epoch; at its end the whole set does


def train(
    run: Run, runs: Path, sets: DataSplits, fabric: Fabric, execution: Execution, quiet: bool = False
) -> dict[str, Any]:
    """Carry out a run, or go on with it, or return the result it already has."""
    folder = RunDir(run.folder(runs))
    with folder.locked() if fabric.is_global_zero else nullcontext(), report_lost_peers():
        begun = (folder.path / "run.json").exists()
        if begun:
            folder.check(run)
        if not is_finished(folder):
            try:
                check_loggers(execution.log)
                training = Trainer(run, folder, runs, sets, fabric, resolve_execution(execution), begun)
            except UserError:
                if not begun and fabric.is_global_zero:
                    shutil.rmtree(folder.path)  # what cannot be trained leaves nothing behind
                raise
            if fabric.is_global_zero:
                folder.begin(run, training.how(), versions())
            fabric.barrier()
            try:
                training.fit(quiet)
            except OutOfMemory:
                if fabric.is_global_zero and not any((folder.path / "resume").glob("*.pt")):
                    shutil.rmtree(folder.path)  # nothing is lost, and it may begin again with other --micro-batches
                raise
        return folder.result()


class Trainer:
    """The parts of one training, and how far it has come."""

    def __init__(
        self,
        run: Run,
        folder: RunDir,
        runs: Path,
        sets: DataSplits,
        fabric: Fabric,
        execution: Execution,
        begun: bool = False,
    ) -> None:
        self.run, self.folder, self.fabric, self.execution, self.sets = run, folder, fabric, execution, sets
        self.writes = fabric.is_global_zero
        side, classes = sets.image_size, len(sets.classes)
        self.teachers = Teachers(run, runs, classes, side)
        torch.manual_seed(run.seed)  # first weights depend on the seed alone: all methods start from the same student
        afresh = {"weights": None, "pretrained": False} if run.kind == "rewind" else {}  # its teacher's are put in
        self.student = build_model(run.model.model_copy(update=afresh), classes, side)
        if not any(weight.requires_grad for weight in self.student.parameters()):
            raise UserError(f"{run.model.name} has no weights that learn; let some of them have requires_grad = True")
        if run.kind == "rewind":
            load_checked(self.student, self.teachers.weights("final"), runs / "teachers" / str(run.teacher))
        self.task = build_task(sets, label_smoothing=run.optim.label_smoothing, **run.task.model_dump())
        sizes = method_sizes(sets, feature_shapes(self.student, side), self.teachers.shapes)
        self.method = build_method(run.method, sizes, run.options)
        check_mixup(run.optim, self.task, cast(Method, self.method), run.method)
        check_networks(sets, sizes)  # afterwards: teachers are built when first looked at, which draws random numbers
        self.loader = self._loader("train")
        self.per_epoch = len(self.loader)
        if not self.per_epoch:
            raise UserError(f"{len(sets.train)} images cannot be shared by {fabric.world_size} processes; use fewer")
        self.total = run.iterations or run.epochs * self.per_epoch
        self.unit = 1 if run.iterations else self.per_epoch  # steps in whatever time is counted in
        self.answers = TeacherOutputs(run, self.teachers, cast(Method, self.method), self.task, fabric, execution)
        self.step: nn.Module = DistillationStep(self.student, self.method, self.task)
        self.parts, self.news = self._settle_parts()
        joint = fabric.world_size if fabric.device.type == "cuda" else 1  # processes that share batch statistics
        if self.loader.fewest * joint // self.parts < 2:
            check_single_image(self.student, run.model.name, sets)
        self.answers.prepare(sets, self.loader, self.total, begun, self.parts)
        self.average = WeightAverage(self.student, run.optim.ema) if run.optim.ema else None
        if execution.compile:
            self.student.compile(dynamic=False)  # a graph for each shape: the same ones whenever a run goes on
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.step = nn.SyncBatchNorm.convert_sync_batchnorm(self.step)  # type: ignore[no-untyped-call]
        self.module, self.optimizer = fabric.setup(FabricStep(self.step), build_optimizer(run.optim, self.step))
        self.final: nn.Module = self.student  # what is kept, scored and saved
        if self.average is not None:
            self.final = self.average.network.to(fabric.device)
        self.trajectory = Trajectory(folder)
        self.due = {} if not run.keep else snapshot_steps(run.keep, self.unit, self.total)
        self.eval_split = "val" if sets.val is not None else next(iter(sets.tests))  # which set says "best"
        self.done, self.meter, self.seconds = 0, LossMeter(), 0.0
        self.last, self.best, self.raw = dict[str, Any](), dict[str, Any](), dict[str, Any]()

    def _settle_parts(self) -> tuple[int, str]:
        """In how many parts a batch is computed."""
        pieces, why = self.execution.micro_batches, ""
        if pieces == "auto":
            batch, features = next(self.loader.epoch(0)), partial(self.answers.features, view=0)
            device = self.fabric.device
            pieces, why = find_micro_batches(self.step, batch, features, self.fabric.autocast, self.run.optim, device)
            self.execution = self.execution.model_copy(update={"micro_batches": pieces})
        return self.run.optim.accumulate * pieces, why

    def how(self) -> dict[str, Any]:
        """The execution settings with nothing left open, for run.json."""
        result = {"accelerator": self.fabric.device.type, "threads": torch.get_num_threads()}
        return self.execution.model_dump() | result | {"workers": self.loader.workers} | self.answers.how()

    def fit(self, quiet: bool) -> None:
        self._restore()
        self.started = saved = time.monotonic()
        log_every = max(self.per_epoch // 10, 1)
        with (
            ProgressBar(f"{self.run.name} s{self.run.seed}", self.total, quiet or not self.writes) as watch,
            stop_signals() as stop,
            oom_errors(self._advice),
            Loggers(self.execution.log * self.writes, self.run, self.folder.path, self.done, watch.say) as self.logs,
        ):
            watch.begin(self.done)
            if self.news:
                watch.say(self.news)
            self.answers.begin(watch.say)
            if self.done == 0 and 0 in self.due:  # the untrained state
                self._evaluate()
            while self.done < self.total:
                epoch, first = divmod(self.done, self.per_epoch)
                for batch in to_device(self.loader.epoch(epoch, start=first), self.fabric.device):
                    rate = self._step(batch)
                    if self.done % log_every == 0 or self.done % self.per_epoch == 0:
                        self.meter.check(self.done, self._kept)
                        means = self.meter.means()
                        self._log({"lr": rate, "loss": sum(means.values()), "terms": means}, means | {"lr": rate})
                        watch.update(self.done, means)
                    if self._ends or self.done in self.due:
                        self._evaluate()
                    number, due = self._all(stop.number, time.monotonic() - saved >= self.execution.save_every)
                    if number:
                        with require_disk(self.folder):
                            self._save()
                        self.fabric.barrier()  # whoever ends before the state is there has Fabric end the others
                        raise Stopped(number, self.done)
                    if due and self.done < self.total:
                        self._save(watch.say)
                        saved = time.monotonic()
                    if self.done == self.total:
                        break
            watch.say(
                f"{self.eval_split} {self.task.primary_metric} {self.last[self.task.primary_metric]:.3f}, {self._seconds():.0f} s"
            )
        self._finish()

    def _step(self, batch: Batch) -> float:
        """Forward, backward, update. Returns the rate it was done with."""
        torch.manual_seed(self.run.seed * 1_000_003 + self.done + 1)
        rate = lr_at(self.run.optim, self.done, self.unit, self.total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.module.train()
        terms: dict[str, Tensor] = {}
        pieces = split_microbatches(mix_batch(batch, self.run.optim, self.run.seed, self.done), self.parts)
        rows, void = sum(all_gather_int(len(batch.index))), 0
        for number, part in enumerate(pieces):
            targets = self.answers.features(part, self.loader.view(self.done // self.per_epoch))
            weight = sum(all_gather_int(len(part.index))) / rows
            with self.fabric.no_backward_sync(self.module, enabled=number < len(pieces) - 1):
                result = self.module(OpaqueBatch(part, targets, self.done / self.unit))
                self.fabric.backward(weight * torch.stack(list(result.values())).sum())
            void += EMPTY_STEP in result
            terms = {name: terms.get(name, 0) + weight * value.detach() for name, value in result.items()}
        self.meter.add(terms)
        if self.fabric.device.type == "cpu":  # elsewhere looking costs a synchronisation: done when logging or saving
            self.meter.check(self.done + 1, self._kept, targets)
        if self.run.optim.clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.run.optim.clip)
        if void < len(pieces):  # where nothing is learned, nothing is forgotten either
            self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.student, self.done)
        self.done += 1
        return rate

    def _evaluate(self) -> None:
        """Score the student, remember last and best, and keep the state when it is due."""
        check_finite_weights(self.step, self.done, self._kept)
        within, epoch = not self._ends, self.done / self.per_epoch
        scores = self._score(self.final, PART if within else None)
        if not within:
            self.last = scores
            row: dict[str, Any] = {
                "set": self.eval_split,
                "scores": self.last,
                "primary_metric": self.task.primary_metric,
            }
            numbers = {f"{self.eval_split}/{k}": v for k, v in self.last.items()}
            if self.average is not None:
                self.raw = self._score(self.student)
                row["raw"] = self.raw
                numbers |= {f"{self.eval_split}/raw/{k}": v for k, v in self.raw.items()}
            self._log(row, numbers)
            if self.last[self.task.primary_metric] > self.best.get(self.task.primary_metric, -math.inf):
                self.best = self.last | {"epoch": _plain(epoch)}
        if self.done in self.due and self.writes:
            at = self.done / self.per_epoch
            with require_disk(self.folder):
                self.trajectory.keep(self.due[self.done], self.done, at, self.total, scores, self.final)

    @property
    def _ends(self) -> bool:
        """Whether an epoch ends with the step just done, or all of training."""
        return self.done % self.per_epoch == 0 or self.done == self.total

    @torch.no_grad()
    def _score(self, network: nn.Module, limit: int | None = None) -> dict[str, float]:
        """Scores on the judging set or a part of it; every image counts once, whatever the number of processes."""
        network.eval()
        broadcast_from_rank0(
            network.buffers()
        )  # batch statistics are each process's own, and the first one's are saved
        loader = self._loader(self.eval_split, limit)
        batches = to_device(loader.epoch(0), self.fabric.device)
        with torch.compiler.set_stance("force_eager"):
            counts = [self.task.counts(network(batch.image), batch.label) for batch in batches]
        total = gather(torch.stack(counts).sum(dim=0)[None]).sum(dim=0)
        return self.task.scores(total) | {"images": len(loader.images)}

    def _loader(self, name: str, limit: int | None = None) -> Loader:
        training = name == "train"
        images = self.sets.train if training else (self.sets.val if name == "val" else None) or self.sets.tests[name]
        return Loader(
            limited(images, limit, 0),
            batch=self.run.optim.batch if training else self.task.eval_batch_size,
            seed=self.run.seed,
            image_size=self.sets.image_size,
            augment=self.run.data.augment if training else "none",
            shuffle=training,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
            workers=self.execution.workers,
            augmentation_cycle=self.run.data.augmentation_cycle if training else None,
        )

    def _restore(self) -> None:
        """Go to the step the run was stopped at; a method that wants a look at the data gets it at the very start."""
        states, run = self.folder.path / "resume", self.run.hash
        result = load_checkpoint(states, run)
        if result is not None:
            self.done, state = result
            try:
                refuse_unsound(state, self.done, self.total)
                before, rest = self.fabric.global_rank - 1, state.get("others", [])  # older states have none
                own = rest[before] if 0 <= before < len(rest) else {}
                self.step.load_state_dict(state["model"] | own)
                restore_optimizer(self.optimizer, state["optimizer"])
                self.meter, self.seconds = LossMeter(state["meter"]), state["seconds"]
                self.last, self.best, self.raw = state["last"], state["best"], state.get("raw", {})
                if self.average is not None:
                    self.average.network.load_state_dict(state["average"])
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                where = self.folder.path
                raise UserError(f"{where / 'resume'}: the saved state is of another run; remove {where}") from error
        elif isinstance(self.method, Prepares):
            settings = dict[str, Any](image_size=self.sets.image_size, augment="none", shuffle=False, seed=0)
            plain = Loader(self.sets.train, batch=self.task.eval_batch_size, workers=self.execution.workers, **settings)
            self.method.prepare(self._rows(batch) for batch in plain.epoch(0))
        if self.writes:
            drop_later_checkpoints(states, self.done)
            self.folder.cut(self.done if result else -1)  # what was logged of the untrained state comes again

    def _rows(self, batch: Batch) -> Mapping[str, Features]:
        """What the teachers say of a batch, as rows."""
        here = Batch(*(tensor.to(self.fabric.device) for tensor in (batch.image, batch.label, batch.index)))
        roles = self.answers.roles
        outputs = self.teachers.features(roles, here.image)
        return self.task.samples(outputs[roles[0]], outputs, here)[1]

    def _save(self, say: Callable[[str], None] | None = None) -> None:
        """A disk that fails is told to `say`, or else raised. All processes come here in the same step."""
        rest = rank_local_buffers(self.step)
        if self.writes:
            self.meter.check(self.done, self._kept)
            check_finite_weights(self.step, self.done, self._kept)
            state = {
                "model": self.step.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "meter": self.meter.sums,
            }
            more = {"last": self.last, "best": self.best, "raw": self.raw, "seconds": self._seconds()}
            more |= {"run": self.run.hash, "step": self.done, "others": rest}
            if self.average is not None:
                more["average"] = self.average.network.state_dict()
            if say is None:
                save_checkpoint(self.folder.path / "resume", self.done, state | more)
            else:
                try_save_checkpoint(self.folder, self.done, state | more, say)

    def _kept(self) -> str:
        return saved_step(self.folder)

    def _advice(self) -> str:
        begun = any((self.folder.path / "resume").glob("*.pt"))
        other = (
            "begin anew under another --name with --micro-batches auto"
            if begun
            else "give the same command --micro-batches auto"
        )
        return f"out of memory in step {self.done + 1}; {self._kept()}; find more memory, or {other}"

    def _finish(self) -> None:
        """What stays: weights, result; the resume state goes."""
        if self.writes:
            with require_disk(self.folder):
                self._conclude()
            clear_checkpoints(self.folder.path / "resume")
        self.fabric.barrier()

    def _conclude(self) -> None:
        if self.run.kind == "distill":
            save_weights(self.folder.student, self.final)
            if self.method.state_dict():
                save_weights(self.folder.method, self.method)
        size = sum(p.numel() for p in self.student.parameters())
        scores = {
            "set": self.eval_split,
            "primary_metric": self.task.primary_metric,
            "last": self.last | {"epoch": _plain(self.total / self.per_epoch)},
            "best": self.best,
        } | ({"raw": self.raw} if self.average is not None else {})
        self.folder.finish(scores | {"steps": self.total, "parameters": size, "seconds": round(self._seconds(), 3)})

    def _log(self, row: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        if self.writes:
            self.folder.log({"step": self.done, "epoch": self.done / self.per_epoch} | dict(row))
            self.logs.add(numbers, self.done)

    def _all(self, number: int, due: bool) -> tuple[int, bool]:
        """The signal any process was sent, so that all stop after the same step, and whether the first one saves."""
        text = all_gather_int(number + SAVES * due)
        return max(each % SAVES for each in text), text[0] >= SAVES

    def _seconds(self) -> float:
        return self.seconds + time.monotonic() - self.started


def _plain(epoch: float) -> float | int:
    return int(epoch) if epoch == int(epoch) else round(epoch, 3)
