"""Memory does not grow with the number of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "diagnose.py"


def measured(*words: str) -> dict[str, float]:
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), *words],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    results: dict[str, float] = json.loads(result.stdout)
    return results


def test_a_stream_costs_its_moments_and_a_few_blocks() -> None:
    result = measured("60000", "256")  # 184 MB of features; three moments are 1.5 MB
    assert result["shortcut_mb"] - result["import_mb"] < 80, result


@pytest.mark.slow
def test_a_hundred_thousand_wide_rows_need_less_than_a_gigabyte() -> None:
    result = measured("100000", "2048")  # 2.5 GB of features
    assert result["shortcut_mb"] < 1000, result
    assert result["moments_mb"] - result["import_mb"] < 400, result
