"""A piece of work as an engine's process does it: what comes back survives any way between processes."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from antishortcut.errors import UserError, first_line, of_disk, one_line
from antishortcut.folder import InUse
from antishortcut.launch.place import Done, Kind, Place
from antishortcut.signals import Stopped

if TYPE_CHECKING:
    from antishortcut.launch.several import Several
    from antishortcut.work import Worker


def open_worker(place: Place) -> Worker:
    """Torch is imported here, in the process that needs it."""
    from antishortcut.work import Worker
    from antishortcut.workflow import Workshop

    shop = Workshop(place.runs, place.root, place.download, place.execution, quiet=True, reuse=True)
    return Worker(shop, place.at)


def carried_out(worker: Worker | Several, kind: Kind, of: Any) -> Done:
    return worker.teach(of) if kind == "teach" else worker.learn(of)


def told(work: Callable[[], Done]) -> Done:
    """What came of it, as plain values: an exception may not survive the way between processes."""
    try:
        return work()
    except (Stopped, KeyboardInterrupt):
        return {"stopped": True}
    except InUse as error:
        return {"error": str(error), "busy": str(error.path)}
    except UserError as error:
        return {"error": str(error)}
    except OSError as error:  # a full disk, a folder that may not be written
        return {"error": of_disk(error)}
    except Exception as error:
        if _is_shortage(error):
            what = f"memory is short ({first_line(error)}); take a smaller batch, fewer --jobs or a larger machine"
            return {"error": one_line(what)}
        traceback.print_exc()  # a mistake of ours: where it happened must not be lost
        return {"error": f"{type(error).__name__}: {error}"}


def _is_shortage(error: BaseException) -> bool:
    """What `memory` says of it, which came with the trainer: imported here it would bring torch to those without."""
    signs = sys.modules.get("antishortcut.memory")
    return isinstance(error, MemoryError) or (signs is not None and bool(signs.is_shortage(error)))
