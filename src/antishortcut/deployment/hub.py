"""Load a student as a plain torch module, from a run folder, an export or the Hugging Face Hub; push exports there."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from antishortcut.config.recipe import ModelSettings
from antishortcut.config.schema import SIDE
from antishortcut.data.datasets import MOST_CLASSES
from antishortcut.deployment.verify import RECORD, ExportModule, bare, open_run
from antishortcut.errors import UserError, first_line
from antishortcut.fileio import expanded
from antishortcut.models import Network, reuse_classifier
from antishortcut.models.downloads import from_hub
from antishortcut.models.reused_classifier import ClassifierSettings
from antishortcut.models.weights import load_checked, read_weights
from antishortcut.run_dir import RunDir, damaged, instead, read_json
from antishortcut.teachers.trajectory import build_model

WEIGHTS = "model.safetensors"
REMOTE = "hf://"  # before the owner and name of a model on the Hub
LOADED = ("hub-folder", "safetensors", "timm")  # the formats that `load` reads


class LoadedModel(ExportModule):
    """Raw images (B, 3, H, W), RGB in [0, 1] → logits (B, C); of segmentation maps (B, C, h, w)."""

    def __init__(self, network: Network, classes: Sequence[str], image_size: int, shorter_side: int) -> None:
        super().__init__(network)
        self.shorter_side = shorter_side  # that an image file is brought to before the square is cut from its centre
        self.classes = tuple(classes)  # their names, in the order of the logits
        self.image_size = image_size  # side of the square images it was trained on


def load(source: str | Path, state: str = "final") -> LoadedModel:
    """A trained network in evaluation mode, from a run folder, an export or "hf://OWNER/NAME".

    state: of a teacher's run folder, a state it kept, like "15%".
    """
    remote = str(source).startswith(REMOTE)
    place = _download(str(source).removeprefix(REMOTE)) if remote else expanded(source)
    if (place / "run.json").exists():
        network, names, classes, *sides = _from_run(RunDir(place), state)
    elif (place / RECORD).exists() and state == "final":
        network, names, classes, *sides = _from_export(place)
    else:
        missing = f"{source} is neither a run folder (run.json) nor an export ({RECORD}) with a state {state}"
        raise UserError(missing + instead(place))
    return LoadedModel(network, names or list(map(str, range(classes))), *sides).requires_grad_(True).eval()


def _from_run(folder: RunDir, state: str) -> tuple[Network, Sequence[str], int, int, int]:
    if not folder.finished:
        raise UserError(f"{folder.path} is not finished; run its command again to resume it")
    opened = open_run(folder, None, state)
    return opened.network, opened.names, opened.classes, opened.side, opened.shorter_side


def _from_export(place: Path) -> tuple[Network, Sequence[str], int, int, int]:
    path = place / RECORD
    record = read_json(path)
    try:
        form, names = record["format"], tuple(map(str, record["names"] or ()))
        classes, side, classifier = int(record["classes"]), int(record["image_size"]), record["teachers_classifier"]
        shorter = int(record.get("shorter_side") or side)
        if not (
            0 <= classes <= MOST_CLASSES and 1 <= side <= SIDE and 1 <= shorter <= SIDE and len(names) in (0, classes)
        ):
            raise ValueError
        options = {**record["options"], "mean": record["mean"], "std": record["std"]}  # as that timm had them
        model = ModelSettings(name=record["model"], **options).without_weights()
        settings = None if classifier is None else ClassifierSettings.from_json(classifier)
    except (KeyError, TypeError, ValueError, OverflowError) as error:  # pydantic's among them
        raise damaged(path, type(error).__name__) from None
    if form not in LOADED:
        raise UserError(f"{place} holds the format {form}, which its own library reads, not load()")
    network = build_model(model, classes, side)
    if settings is not None:
        network = reuse_classifier(network, classes, settings)
    load_checked(bare(network), read_weights(place / WEIGHTS), place / WEIGHTS)
    return network, names, classes, side, shorter


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    advice = "check the name, the network and your login"
    with _hub_errors(f"cannot download {name} from the Hub", advice), from_hub(f"{name} from the Hub", advice):
        return Path(snapshot_download(name, allow_patterns=[RECORD, WEIGHTS]))


def check_push(name: str, form: str) -> None:
    """Raise, before anything is written, if the Hub would refuse the name."""
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    if form != "hub-folder":
        raise UserError("--push is for --to hub-folder, the layout that the Hub knows")
    with _hub_errors(f"--push {name}", "name it OWNER/NAME"):
        validate_repo_id(name)


def upload(place: Path, name: str) -> str:
    """Upload an exported folder to a model repository, a new one as a private one. Returns its address."""
    from huggingface_hub import HfApi

    retry = f"the export is in {place}: log in (hf auth login), then hf upload {name} {place}"
    with _hub_errors(f"cannot push to {name}", retry), warnings.catch_warnings(action="ignore"):
        api: Any = HfApi(library_name="antishortcut")
        repository = api.create_repo(name, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository.repo_id, folder_path=place, commit_message="Export by antishortcut")
        return str(repository)


@contextmanager
def _hub_errors(what: str, remedy: str) -> Iterator[None]:
    """Turn whatever goes wrong with the Hub, its names or the network into one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} ({first_line(error).strip()[:300]}); {remedy}") from error
