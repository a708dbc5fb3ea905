# Everything a newcomer needs. Each target sets up what it uses; PYTHON picks the interpreter the environment is made with.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: setup demo test lint bench clean

setup: $(READY)

# The lock file pins every package, torch first: a looser requirement would fetch builds for hardware that may not be here.
$(READY): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==$$(sed -n 's/^torch==//p' requirements.lock)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $@

demo: setup
	$(BIN)/postprior demo --out demo

# Each core takes whole files, as tests of one file share what is slow to make.
test: setup lint
	$(BIN)/pytest -n auto --dist loadfile

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

# The peers live in an environment of their own, which sees ours: nothing there can choose another torch for us.
build/peers/.ready: benchmarks/peers.txt $(READY)
	$(PYTHON) -m venv build/peers
	echo "import site; site.addsitedir('$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')')" \
		> "$$(build/peers/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/ours.pth"
	build/peers/bin/pip install --quiet --disable-pip-version-check --no-deps -r benchmarks/peers.txt
	touch $@

bench: build/peers/.ready
	$(BIN)/python benchmarks/import_time.py
	build/peers/bin/python benchmarks/speed.py --out results/speed-cpu.json
	$(BIN)/python benchmarks/scaling.py --out results/scaling-cpu.json
	$(BIN)/python benchmarks/store.py --out results/store-cpu.json

clean:
	rm -rf $(VENV) demo
