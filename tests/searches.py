"""Searches so small that a test can afford them, and trainings that take no time."""

import json
from dataclasses import replace

import optuna

import tiny
from metavib.training import config
from metavib.tune import Choices, Interval, Search
from metavib.tune import search as searching
from metavib.tune import study as studies

BASE = tiny.sinusoid(train__lr=1e-3, train__validate_every=2)
SPACE = {"train.lr": Choices((1e-4, 1e-3, 1e-2)), "train.beta": Interval(1e-3, 1.0)}


def a_search(folder, **changes) -> Search:
    return replace(Search(config=BASE, space=SPACE, folder=folder, study="a", trials=3, seed=0), **changes)


def stored(search: Search) -> list[optuna.trial.FrozenTrial]:
    with studies.still():
        return optuna.load_study(study_name=search.study, storage=studies.storage(search.url)).get_trials()


def faked(monkeypatch, curve, *, ended=lambda config: None) -> list[config.Config]:
    """Trainings that take no time, `curve(config, step)` in the place of the validation; returns those that ran."""
    run: list[config.Config] = []

    def fake(config, folder, *, resume, quiet, watch):
        run.append(config)
        folder.mkdir(parents=True, exist_ok=True)
        for step in range(2, config.train.steps + 1, 2):
            line = {"step": step, "validation": {"accuracy": curve(config, step), "score": curve(config, step)}}
            with open(folder / "metrics.jsonl", "a") as file:
                file.write(json.dumps(line) + "\n")
            watch(step, line["validation"]["score"])
        ended(config)

    monkeypatch.setattr(searching.training, "train", fake)
    return run
