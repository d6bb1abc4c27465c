"""The training loop: one run, from settings to weights. It knows no method and no task by name.

Everything random is a function of (seed, step): data order and augmentation of (seed, epoch, index), dropout and the
draws inside methods of (seed, step). So a checkpoint is weights, optimizer, the sums of the log, and a counter, and a
run that is killed at any moment resumes to the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from antishortcut.config.recipe import Execution, Recipe, Run, Value
from antishortcut.data import Loader, to_device
from antishortcut.data.splits import limited
from antishortcut.data.transforms import with_strong_view
from antishortcut.distributed import (
    all_gather_int,
    broadcast_from_rank0,
    gather,
    rank_local_buffers,
    report_lost_peers,
    single_process,
)
from antishortcut.errors import UserError, first_line, plural
from antishortcut.hardware import versions
from antishortcut.methods import build_method, check_unlabelled
from antishortcut.models import Network, feature_shapes
from antishortcut.models.external import code_of
from antishortcut.models.reused_classifier import reused
from antishortcut.models.user_models import check_single_image
from antishortcut.models.weights import load_checked
from antishortcut.progress import ProgressBar
from antishortcut.run_dir import RunDir
from antishortcut.tasks import build_task, check_networks, method_sizes
from antishortcut.teachers.inference import TeacherOutputs
from antishortcut.teachers.trajectory import (
    Teachers,
    Trajectory,
    build_model,
    build_saved,
    check_code,
    save_weights,
    snapshot_steps,
)
from antishortcut.training.checkpoint import Checkpoints, is_finished, require_disk
from antishortcut.training.fabric import resolve_execution
from antishortcut.training.loggers import Loggers, LossMeter, check_finite_weights, check_loggers
from antishortcut.training.microbatch import OutOfMemory, find_micro_batches, oom_errors
from antishortcut.training.mixup import check_mixup, mix_batch, split_microbatches
from antishortcut.training.optim import WeightAverage, build_optimizer, lr_at
from antishortcut.training.signals import Stopped, stop_signals
from antishortcut.training.step import EMPTY_STEP, DistillationStep, FabricStep, OpaqueBatch
from antishortcut.types import (
    AnySet,
    BalancesGroups,
    Batch,
    DataSplits,
    Features,
    Finishes,
    HasNote,
    InitialPhase,
    Method,
    Prepares,
    Projects,
    ReusesClassifier,
    ScoredByTeacher,
    Shape,
    StrongView,
    Task,
)

SAVE_FLAG = 1_000  # above the number of any signal
SNAPSHOT_IMAGES = 1_000  # images that score a snapshot inside an epoch; at its end the whole split does


def train(
    run: Run, runs: Path, data: DataSplits, fabric: Fabric, execution: Execution, quiet: bool = False
) -> dict[str, Any]:
    """Train a run, resume it, or return the result it already has."""
    run_dir = RunDir(run.folder(runs))
    with run_dir.locked() if fabric.is_global_zero else nullcontext(), report_lost_peers():
        before = run_dir.entries()
        resumed = (run_dir.path / "run.json").exists()
        if resumed:
            run_dir.check(run)
        if is_finished(run_dir):
            return run_dir.result()
        try:
            check_loggers(execution.log)
            trainer = Trainer(run, runs, data, fabric, resolve_execution(execution), resumed)
            if fabric.is_global_zero:
                run_dir.begin(run, trainer.resolved_execution(), versions(), trainer.code, trainer.classifier)
            fabric.barrier()
            trainer.fit(quiet)
        except UserError as error:
            unusable = not resumed and (isinstance(error, OutOfMemory) or not (run_dir.path / "run.json").exists())
            if unusable and fabric.is_global_zero and not run_dir.checkpoints:
                run_dir.remove_since(before)  # a run that cannot be trained leaves nothing behind
            raise
        return run_dir.result()


def build_objective(
    settings: Recipe | Run,
    method: str,
    options: Mapping[str, Value],
    data: DataSplits,
    student: Network,
    shapes: Mapping[str, Shape],
) -> tuple[Task, nn.Module]:
    """The task and the method, unless they do not fit the data, the networks or each other."""
    task = build_task(data, label_smoothing=settings.optim.label_smoothing, **settings.task.model_dump())
    sizes = method_sizes(task, data, feature_shapes(student, data.image_size), shapes)
    check_networks(task, data, sizes)
    check_unlabelled(method, options, data, sizes, settings.optim.mixes)
    module = build_method(method, sizes, options)
    check_mixup(settings.optim, task, cast(Method, module), method)
    if isinstance(module, Finishes):
        try:
            module.check_finish(student, data)
        except ValueError as error:
            raise UserError(f"method {method!r}: {error}") from None
    length, unit = settings.iterations or settings.epochs, "iteration" if settings.iterations else "epoch"
    if isinstance(module, InitialPhase) and module.init >= length:
        problem = f"init is {module.init:g}, which leaves nothing of a training of {plural(length, unit)}"
        raise UserError(f"method {method!r}: {problem}; shorten it: --set method.init={length / 8:g}")
    return task, module


def deployed(method: nn.Module, student: Network, teacher: nn.Module | None, image_size: int) -> Network:
    """What is trained, evaluated and saved: the student, or, if the method wants it, with its teacher's classifier."""
    head = getattr(teacher, "head", None)
    if (
        not isinstance(method, ReusesClassifier) or head is None or reused(student) is not None
    ):  # one that rewinds has it
        return student
    network = cast(Network, method.deployed(student, head))
    try:
        feature_shapes(network, image_size)
    except Exception as error:  # of a network of your own, which may want its own number of classes
        raise UserError(f"the student does not run without its own classifier: {first_line(error)}") from error
    return network


def _build_student(run: Run, teachers: Teachers) -> Network:
    """The student before its first step; one that rewinds starts from its teacher's weights."""
    rewinds = run.kind == "rewind"
    if rewinds:
        student = build_saved(teachers.state("final")[0], teachers.classes, teachers.image_size)
    else:
        student = build_model(run.model, teachers.classes, teachers.image_size)
    if not any(weight.requires_grad for weight in student.parameters()):
        raise UserError(f"{run.model.name} has no trainable weights; set requires_grad = True on some of them")
    if rewinds:
        load_checked(student, teachers.weights("final"), teachers.runs / "teachers" / str(run.teacher))
    return student


class Trainer:
    """Everything one training needs, and how far it has come."""

    def __init__(
        self, run: Run, runs: Path, data: DataSplits, fabric: Fabric, execution: Execution, resumed: bool
    ) -> None:
        self.run, self.data, self.fabric, self.execution = run, data, fabric, execution
        self.run_dir = run_dir = RunDir(run.folder(runs))
        teachers = Teachers(run, runs, len(data.classes), data.image_size)
        shapes = teachers.shapes  # loads the teachers, before seeding: building them draws random numbers
        torch.manual_seed(run.seed)  # the same first student for every method
        self.student = _build_student(run, teachers)
        self.code = code_of(run.model.name, *(teachers.state(role)[0].read()[0].model.name for role in run.roles))
        if resumed and not execution.force:
            check_code(run_dir, self.code)
        self.task, self.method = build_objective(run, run.method, run.options, data, self.student, shapes)
        teacher = teachers.network("final") if "final" in run.roles else None
        self.student = deployed(self.method, self.student, teacher, data.image_size)

        self.loader = self._loader("train")
        self.steps_per_epoch = len(self.loader)
        if not self.steps_per_epoch:
            raise UserError(f"{len(data.train)} images cannot be split over {fabric.world_size} processes; use fewer")
        self.total_steps = run.iterations or run.epochs * self.steps_per_epoch
        self.unit = 1 if run.iterations else self.steps_per_epoch  # steps per unit of the schedule

        self.teachers = TeacherOutputs(run, teachers, cast(Method, self.method), self.task, fabric, execution)
        self.step: nn.Module = DistillationStep(self.student, self.method, self.task)
        self.micro_batches, self.message = self._find_micro_batches()
        statistics = fabric.world_size if fabric.device.type == "cuda" else 1  # processes that share batch statistics
        if self.loader.fewest * statistics // self.micro_batches < 2:
            check_single_image(self.student, run.model.name, data)
        self.teachers.prepare(data, self.loader, self.total_steps, resumed, self.micro_batches)
        self.average = WeightAverage(self.student, run.optim.ema) if run.optim.ema else None
        if execution.compile:
            self.student.compile(dynamic=False)  # one graph per shape, so a resumed run compiles the same ones
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            self.step = nn.SyncBatchNorm.convert_sync_batchnorm(self.step)  # type: ignore[no-untyped-call]
        self.module, self.optimizer = fabric.setup(FabricStep(self.step), build_optimizer(run.optim, self.step))
        # what is evaluated and saved
        self.final: nn.Module = self.student if self.average is None else self.average.network.to(fabric.device)
        self.trajectory, self.checkpoints = Trajectory(run_dir), Checkpoints(run_dir, run.hash)
        self.snapshot_steps = snapshot_steps(run.keep, self.unit, self.total_steps) if run.keep else {}
        self.eval_split = data.eval_split
        self.done = 0  # steps
        self.meter, self.seconds = LossMeter(), 0.0
        # "last" and "best"; with averaged weights these are their scores, and "raw" are the student's own
        self.scores: dict[str, dict[str, Any]] = {"last": {}, "best": {}}

    def fit(self, quiet: bool) -> None:
        """Train from where the run stands to its end."""
        self._restore()
        self.started = saved = time.monotonic()
        log_every = max(self.steps_per_epoch // 10, 1)
        is_rank0 = self.fabric.is_global_zero
        with (
            ProgressBar(self.run.title, self.total_steps, quiet or not is_rank0, self.run.optim.batch) as progress,
            stop_signals() as stop,
            oom_errors(self._out_of_memory),
            Loggers(self.execution.log * is_rank0, self.run, self.run_dir.path, self.done, progress.say) as loggers,
        ):
            self.loggers = loggers
            progress.begin(self.done)
            if self.done:
                progress.say(f"resuming from step {self.done} of {self.total_steps}")
            self.teachers.begin(progress.say)
            for message in (self.message, self.method.note if isinstance(self.method, HasNote) else ""):
                if message:
                    progress.say(message)
            if self.done == 0 and 0 in self.snapshot_steps:  # the untrained network
                self._evaluate()
            while self.done < self.total_steps:
                epoch, start = divmod(self.done, self.steps_per_epoch)
                for batch in to_device(self.loader.epoch(epoch, start=start), self.fabric.device):
                    lr = self._train_step(batch)
                    if self.done % log_every == 0 or self.done % self.steps_per_epoch == 0:
                        self.meter.check_finite(self.done, self.checkpoints)
                        losses = self.meter.means()
                        self._log({"lr": lr, "loss": sum(losses.values()), "terms": losses}, losses | {"lr": lr})
                        progress.update(self.done, losses)
                    if self.done == self.total_steps and isinstance(self.method, Finishes):
                        self._finish_student(self.method, progress.say)
                    if self._ends_epoch or self.done in self.snapshot_steps:
                        self._evaluate()
                    signal, save = self._agree(stop.number, time.monotonic() - saved >= self.execution.save_every)
                    if signal:
                        with require_disk(self.run_dir):
                            self._save()
                        self.fabric.barrier()  # a process that ends before the checkpoint is written ends the others
                        raise Stopped(signal, self.done)
                    if save and self.done < self.total_steps:
                        self._save(progress.say)
                        saved = time.monotonic()
                    if self.done == self.total_steps:
                        break
            metric = self.task.primary_metric
            progress.say(f"{self.eval_split} {metric} {self.scores['last'][metric]:.3f}, {self._elapsed():.0f} s")
        if is_rank0:
            self._finish()
        self.fabric.barrier()

    def _train_step(self, batch: Batch) -> float:
        """Forward, backward and optimizer step on one batch. Returns its learning rate."""
        torch.manual_seed(self.run.seed * 1_000_003 + self.done + 1)
        lr = lr_at(self.run.optim, self.done, self.unit, self.total_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.module.train()
        sums: dict[str, Tensor] = {}
        batch = mix_batch(batch, self.run.optim, self.run.seed, self.done)
        micro_batches = split_microbatches(batch, self.micro_batches)
        total, empty, epoch = sum(all_gather_int(len(batch.index))), 0, self.done // self.steps_per_epoch
        for number, micro in enumerate(micro_batches, start=1):
            weight = sum(all_gather_int(len(micro.index))) / total
            if isinstance(self.method, StrongView):
                micro = with_strong_view(micro, self.run.seed, epoch)
            targets = self.teachers(micro, epoch)
            with self.fabric.no_backward_sync(self.module, enabled=number < len(micro_batches)):
                losses = self.module(OpaqueBatch(micro, targets, self.done / self.unit))
                self.fabric.backward(weight * torch.stack(list(losses.values())).sum())
            empty += EMPTY_STEP in losses
            for name, value in losses.items():
                sums[name] = sums.get(name, 0) + weight * value.detach()
        self.meter.add(sums)
        if self.fabric.device.type == "cpu":  # on a GPU reading a loss waits for it: checked when logging or saving
            self.meter.check_finite(self.done + 1, self.checkpoints, targets)
        if self.run.optim.clip:
            self.fabric.clip_gradients(self.module, self.optimizer, max_norm=self.run.optim.clip)
        if empty < len(micro_batches):  # a step without a labelled pixel must not decay the weights either
            self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.student, self.done)
        self.done += 1
        return lr

    def _finish_student(self, method: Finishes, say: Callable[[str], None]) -> None:
        """Let the method change what is evaluated and saved; a checkpoint of the last step is written afterwards."""
        check_finite_weights(self.step, self.done, self.checkpoints)
        self.final.eval()
        broadcast_from_rank0(self.final.buffers())
        if self.fabric.is_global_zero:
            with single_process(), torch.compiler.set_stance("force_eager"):
                say(method.finish(self.final, self.data, self._embeddings, self.run.seed))
        broadcast_from_rank0(self.final.parameters())

    @torch.no_grad()
    def _embeddings(self, images: AnySet) -> Tensor:
        """Of every image of a set, on the CPU, computed by this process. (N, D)"""
        batches = to_device(self._whole_set(images).epoch(0), self.fabric.device)
        return torch.cat([self.final(batch.image).embedding.float().cpu() for batch in batches])

    def _evaluate(self) -> None:
        """Score the student, update last and best at the end of an epoch, and save a snapshot if one is scheduled."""
        check_finite_weights(self.step, self.done, self.checkpoints)
        scores = self._scores(self.final, None if self._ends_epoch else SNAPSHOT_IMAGES)
        if self._ends_epoch:
            metric = self.task.primary_metric
            row: dict[str, Any] = {"set": self.eval_split, "scores": scores, "primary_metric": metric}
            numbers = {f"{self.eval_split}/{name}": value for name, value in scores.items()}
            if self.average is not None:
                row["raw"] = self.scores["raw"] = self._scores(self.student)
                numbers |= {f"{self.eval_split}/raw/{name}": value for name, value in row["raw"].items()}
            self._log(row, numbers)
            epoch = self.done / self.steps_per_epoch
            self.scores["last"] = scores | {"epoch": int(epoch) if epoch.is_integer() else round(epoch, 3)}
            if scores[metric] > self.scores["best"].get(metric, -math.inf):
                self.scores["best"] = self.scores["last"]
        if self.done in self.snapshot_steps and self.fabric.is_global_zero:
            labels, epoch = self.snapshot_steps[self.done], self.done / self.steps_per_epoch
            with require_disk(self.run_dir):
                self.trajectory.keep(labels, self.done, epoch, self.total_steps, scores, self.final)

    @torch.no_grad()
    def _scores(self, network: nn.Module, limit: int | None = None) -> dict[str, float]:
        """Scores on the evaluation split or a part of it; every image counts once, whatever the number of processes."""
        network.eval()
        broadcast_from_rank0(network.buffers())  # batch statistics differ by process, and those of rank 0 are saved
        loader = self._loader(self.eval_split, limit)
        with torch.compiler.set_stance("force_eager"):
            batches = to_device(loader.epoch(0), self.fabric.device)
            counts = [self._counts(network, batch) for batch in batches]
        total = gather(torch.stack(counts).sum(dim=0)[None]).sum(dim=0)
        return self.task.scores(total) | {"images": len(loader.images)}

    def _counts(self, network: nn.Module, batch: Batch) -> Tensor:
        """Of an evaluation batch, by its labels or, without any, by the teacher that the student learns from."""
        outputs: Features = network(batch.image)
        if not isinstance(self.task, ScoredByTeacher):
            return self.task.counts(outputs, batch.label)
        if isinstance(self.method, Projects):
            outputs = replace(outputs, embedding=self.method.eval().project(outputs.embedding.float()))
        return self.task.agreement(outputs, self.teachers.first(batch.image))

    def _loader(self, split: str, limit: int | None = None) -> Loader:
        training = split == "train"
        return Loader(
            limited(self.data.split(split), limit, 0),
            batch=self.run.optim.batch if training else self.task.eval_batch_size,
            seed=self.run.seed,
            image_size=self.data.image_size,
            augment=self.run.data.augment if training else "none",
            shuffle=training,
            rank=self.fabric.global_rank,
            world=self.fabric.world_size,
            workers=self.execution.workers,
            augmentation_cycle=self.run.data.augmentation_cycle if training else None,
            balanced_groups=self.method.balanced_groups
            if training and isinstance(self.method, BalancesGroups)
            else None,
        )

    def _whole_set(self, images: AnySet) -> Loader:
        """All images, unaugmented and in order, in every process."""
        workers = self.execution.workers
        return Loader.in_order(images, self.task.eval_batch_size, self.data.image_size, workers=workers)

    def _restore(self) -> None:
        """Go to the step of the newest checkpoint. Without one, run `method.prepare` over the training set."""
        state = self.checkpoints.load()
        if state is not None:
            try:
                local = [{}, *state["rank_buffers"]]  # buffers in which a rank differs from rank 0
                rank = self.fabric.global_rank
                self.step.load_state_dict(state["model"] | (local[rank] if rank < len(local) else {}))
                self.optimizer.load_state_dict(state["optimizer"])
                self.done, self.meter, self.seconds = state["step"], LossMeter(state["meter"]), state["seconds"]
                self.scores = state["scores"]
                if self.average is not None:
                    self.average.network.load_state_dict(state["average"])
            except (KeyError, ValueError, RuntimeError) as error:
                where = self.run_dir.path
                raise UserError(f"{where}/resume: of another version; remove {where} to start again") from error
        elif isinstance(self.method, Prepares):
            batches = to_device(self._whole_set(self.data.train).epoch(0), self.fabric.device)
            # computed as they are read
            both = ((self.teachers.compute(batch.image, self.teachers.taps), batch) for batch in batches)
            samples = (self.task.samples(next(iter(outputs.values())), outputs, batch) for outputs, batch in both)
            self.method.prepare(teachers for _, teachers, _ in samples)
        if self.fabric.is_global_zero:
            self.checkpoints.drop_after(self.done)
            self.run_dir.cut(-1 if state is None else self.done)

    def _save(self, say: Callable[[str], None] | None = None) -> None:
        """Write a checkpoint. With `say`, a failed write is printed and training continues. All ranks call it."""
        rank_buffers = rank_local_buffers(self.step)
        if not self.fabric.is_global_zero:
            return
        self.meter.check_finite(self.done, self.checkpoints)
        check_finite_weights(self.step, self.done, self.checkpoints)
        state = {
            "step": self.done,
            "model": self.step.state_dict(),
            "rank_buffers": rank_buffers,
            "optimizer": self.optimizer.state_dict(),
            "meter": self.meter.sums,
            "seconds": self._elapsed(),
            "scores": self.scores,
        }
        if self.average is not None:
            state["average"] = self.average.network.state_dict()
        self.checkpoints.save(state, say)

    def _finish(self) -> None:
        """Write weights and result, then delete the checkpoints."""
        with require_disk(self.run_dir):
            if self.run.kind == "distill":
                save_weights(self.run_dir.student, self.final)
                if self.method.state_dict():
                    save_weights(self.run_dir.method, self.method)
            result = {"set": self.eval_split, "primary_metric": self.task.primary_metric} | self.scores
            size = sum(parameter.numel() for parameter in self.student.parameters())
            cost = {"steps": self.total_steps, "parameters": size, "seconds": round(self._elapsed(), 3)}
            self.run_dir.finish(result | cost | {"classes": list(self.data.classes)})
        self.checkpoints.clear()

    @property
    def classifier(self) -> dict[str, Any] | None:
        """How the student leads to its teacher's classifier, for run.json."""
        settings = reused(self.student)
        return None if settings is None else asdict(settings)

    def resolved_execution(self) -> dict[str, Any]:
        """The execution settings with nothing left open, for run.json."""
        here = {"accelerator": self.fabric.device.type, "threads": torch.get_num_threads()}
        return self.execution.model_dump() | here | {"workers": self.loader.workers} | self.teachers.resolved()

    def _find_micro_batches(self) -> tuple[int, str]:
        """Into how many micro-batches a batch is split, and a line to print about it."""
        count, message = self.execution.micro_batches, ""
        if count == "auto":
            batch, device = next(self.loader.epoch(0)), self.fabric.device
            optim, autocast = self.run.optim, self.fabric.autocast
            count, message = find_micro_batches(self.step, batch, self.teachers, autocast, optim, device)
            self.execution = self.execution.model_copy(update={"micro_batches": count})
        return self.run.optim.accumulate * count, message

    def _log(self, row: Mapping[str, Any], numbers: Mapping[str, float]) -> None:
        if self.fabric.is_global_zero:
            self.run_dir.log({"step": self.done, "epoch": self.done / self.steps_per_epoch} | dict(row))
            self.loggers.add(numbers, self.done)

    def _agree(self, signal: int, save: bool) -> tuple[int, bool]:
        """The signal that any rank received, so that all stop after the same step, and whether rank 0 wants to save."""
        numbers = all_gather_int(signal + SAVE_FLAG * save)
        return max(number % SAVE_FLAG for number in numbers), numbers[0] >= SAVE_FLAG

    def _out_of_memory(self) -> str:
        retry = "run the same command with --micro-batches auto"
        if self.run_dir.checkpoints:
            retry = "start again under another --name with --micro-batches auto"
        return f"out of memory in step {self.done + 1}; {self.checkpoints}; use more memory, or {retry}"

    @property
    def _ends_epoch(self) -> bool:
        return self.done % self.steps_per_epoch == 0 or self.done == self.total_steps

    def _elapsed(self) -> float:
        return self.seconds + time.monotonic() - self.started
