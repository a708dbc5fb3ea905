"""Whatever moment a process dies at, the store keeps its laws; the harness itself is in killing.py."""

import json
import subprocess
import sys
from pathlib import Path


def test_twenty_kills_lose_nothing_and_end_at_the_same_bytes(tmp_path: Path) -> None:
    # In a process of its own: it forks, which a process with threads of other tests should not.
    harness, figures = Path(__file__).with_name("killing.py"), tmp_path / "kills.json"
    asked = [sys.executable, str(harness), "--kills", "20", "--seed", "1", "--out", str(figures)]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(figures.read_text())
    assert sum(found["kills"].values()) >= 20
    assert found["resumed"] > 0
    assert found["beliefs_equal_to_the_byte"] >= 5
