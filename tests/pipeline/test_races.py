"""Eight processes at one store: none overwrites another, and those that come second are told so."""

import json
import subprocess
import sys
from pathlib import Path

from small_store import part_file, small_store

from postprior import Store

PROCESSES = 8

RACE = """
import json, os, sys
import torch
from postprior import Store
from postprior.errors import BusyError, RacedError, UnfinishedError
torch.set_num_threads(1)
folder, wait = sys.argv[1], sys.argv[2] == "wait"
# What is imported at first use is imported before the race, which all the processes start at once.
first = Store.create(folder + "/first", "mlp", arguments={"in_features": 3, "num_outputs": 2}, epochs=1)
first.absorb(folder + "/part-99.npz")
reading, writing = os.pipe()
ready, go = os.pipe()
children = []
for number in range(8):
    pid = os.fork()
    if pid == 0:
        os.read(ready, 1)
        try:
            said = Store.open(folder + "/store").absorb(f"{folder}/part-{number}.npz", wait=wait).belief
        except (BusyError, RacedError, UnfinishedError) as error:
            said = type(error).__name__ + ": " + str(error)
        os.write(writing, (json.dumps([number, said]) + "\\n").encode())
        os._exit(0)
    children.append(pid)
os.write(go, b"........")
os.close(writing)
statuses = [os.waitpid(pid, 0)[1] for pid in children]
print(json.dumps([statuses, [json.loads(line) for line in os.fdopen(reading).read().splitlines()]]))
"""


def race(folder: Path, wait: str) -> tuple[Store, dict[int, str]]:
    store = small_store(folder)
    for seed in (*range(PROCESSES), 99):
        part_file(folder, seed)
    asked = [sys.executable, "-W", "ignore", "-c", RACE, str(folder), wait]
    ended = subprocess.run(asked, capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    statuses, said = json.loads(ended.stdout)
    assert statuses == [0] * PROCESSES
    assert store.verify() == []
    return store, dict(said)


def test_all_who_wait_are_served_one_after_another(tmp_path: Path) -> None:
    store, said = race(tmp_path, "wait")
    assert sorted(record["id"] for record in store.parts()) == [f"part-{number}" for number in range(PROCESSES)]
    learned = [entry.belief for entry in store.log() if entry.event == "absorb"]
    assert sorted(learned) == sorted(said.values())
    manifests = [store.show(id) for id in learned if id]
    assert [manifest["parent"] for manifest in manifests] == [*learned[1:], store.archive.resolve("head~8")]


def test_who_does_not_wait_is_told_who_is_there(tmp_path: Path) -> None:
    store, said = race(tmp_path, "leave")
    served = {number: text for number, text in said.items() if len(text) == 64}
    assert 1 <= len(served) < PROCESSES
    assert {record["id"] for record in store.parts()} == {f"part-{number}" for number in served}
    for number in said.keys() - served.keys():
        assert said[number].startswith("BusyError: ")
        assert str(tmp_path / "store") in said[number]
        assert "wait" in said[number]
