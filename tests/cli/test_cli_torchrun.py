"""`torchrun -m postprior absorb`: a real launcher starts the processes, and starts them anew when one dies."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.small_store import small_store

# The second process dies on its first attempt, in the middle of its second pass.
MORTAL = """
import os, signal
import torch

class Mortal(torch.utils.data.Dataset):
    looks = 0

    def __len__(self):
        return 40

    def __getitem__(self, i):
        self.looks += 1
        if self.looks == 50 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            open("died", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        g = torch.Generator().manual_seed(i)
        x = torch.randn(3, generator=g)
        return x, int(x.sum() > 0)
"""


@pytest.mark.parametrize("how", [[], ["--shard"]])
def test_a_killed_process_is_started_anew_and_one_outcome_is_told(how: list[str], tmp_path: Path) -> None:
    store = small_store(tmp_path, normalise="none")
    (tmp_path / "mortal.py").write_text(MORTAL)
    # Standalone, so that the launcher chooses a port of its own.
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    verb = ["postprior", "absorb", store.address, "mortal:Mortal", "--every", "0", "--timeout", "30", "--json", *how]
    command = [sys.executable, "-m", *launcher, "-m", *verb]
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ran = subprocess.run(command, check=False, capture_output=True, text=True, env=variables, cwd=tmp_path, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert (tmp_path / "died").exists()
    told = json.loads(ran.stdout)
    assert told["update"]["steps"] == 6
    assert told["aliases"]["head"] == told["belief"] == store.aliases["head"]
    assert [entry.event for entry in store.log()] == ["absorb", "init"]
    assert not store.verify()
    assert len(list(Path(store.address).glob("beliefs/*/belief-*-of-00002.safetensors"))) == (2 if how else 0)
