"""Settings of the paper's methods where nothing else is said, for reading runs without torch; a test compares."""

from __future__ import annotations

from antishortcut.run import Value

_KD: dict[str, Value] = {"kd": 1.0, "kd_temperature": 4.0, "task_weight": 1.0}  # beside a method that is added to KD

DEFAULTS: dict[str, dict[str, Value]] = {
    "ce": {"task_weight": 1.0},
    "kd": {"weight": 1.0, "temperature": 4.0, "task_weight": 1.0},
    "fitnets+kd": {"weight": 100.0, "hint": 2, "relu": True, **_KD},
    "at+kd": {"weight": 1000.0, **_KD},
    "dkd": {"alpha": 1.0, "beta": 8.0, "temperature": 4.0, "warmup": 20.0, "task_weight": 1.0},
    "crd+kd": {
        "weight": 0.8, "negatives": 16384, "temperature": 0.07, "momentum": 0.5, "width": 128, "memory": "bank",
        **_KD,
    },
    "ckptkd": {"weight": 0.5, "temperature": 5.0, "task_weight": 0.5},
    "asd": {
        "tc": 0.8, "ss": 1.0, "temperature": 0.07, "margin": 0.1, "directions": 4, "queue": 4096, "warmup": 20.0,
        "temporal": True, "subspace": "batch", "select": "displaced", "momentum": 0.99, "refresh": 50, **_KD,
    },
    "afdcd": {
        "kd": 0.5, "fd": 1e-06, "ctr": 0.04, "kd_temperature": 1.0, "mask_ratio": 0.75, "groups": 16, "patch": 4,
        "pool": 4, "temperature": 0.07, "stage": -1, "task_weight": 1.0,
    },
    "ufd": {
        "kd": 0.5, "kd_temperature": 1.0, "spatial_dc": 0.004, "spatial_ac": 0.0012, "channel_dc": 0.001,
        "channel_ac": 0.002, "published_channel": False, "stage": -1, "task_weight": 1.0,
    },
}  # fmt: skip
