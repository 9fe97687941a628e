"""Tables of task and target alone: what is learned is how groups differ, a model of random intercepts."""

import json

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
from scipy.optimize import minimize
from scipy.special import comb, expit

import serving
from metavib import FewShotClassifier, FewShotRegressor, Learner
from metavib.data.schema import read_rows
from metavib.data.table import in_memory
from metavib.serve.server import resolve
from program import done, refused

GROUPS, ROWS = 60, 6


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    shop, level = np.repeat(np.arange(GROUPS), ROWS), 2 * rng.normal(size=GROUPS)
    sold = (50 + 3 * level[shop] + 4 * rng.normal(size=len(shop))).round(2)
    return pd.DataFrame({"shop": shop, "sold": sold, "late": rng.random(len(shop)) < expit(level)[shop]})


@pytest.fixture(scope="module")
def regressor(table):
    return FewShotRegressor(random_state=0).fit(table[[]], table.sold, tasks=table.shop)


def test_means_are_shrunk_as_a_mixed_model_shrinks_them(table, regressor):
    """statsmodels: random intercepts by restricted maximum likelihood, and the closed form of a new group's mean."""
    mixed = sm.MixedLM(table.sold, np.ones(len(table)), groups=table.shop).fit(reml=True)
    mean, between, within = mixed.fe_params.iloc[0], float(mixed.cov_re.iloc[0, 0]), mixed.scale
    for n in (0, 1, 3, 10):
        shrunk = n * between / (n * between + within)
        found, sd = regressor.adapt(np.zeros((n, 0)), np.full(n, 60.0)).predict(np.zeros((2, 0)), return_std=True)
        np.testing.assert_allclose(found, mean + shrunk * (60 - mean), rtol=2e-3)
        np.testing.assert_allclose(sd, np.sqrt(within + (1 - shrunk) * between), rtol=0.1)


def test_shares_are_those_of_random_intercepts_on_the_logits(table):
    """The oracle maximises the likelihood of groups' counts, by a sum over a fine grid of intercepts."""
    counts = table.groupby("shop").late.sum().to_numpy()
    z = np.linspace(-6, 6, 401)
    density = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()

    def chance(yes, n, mean, sd):
        p = expit(mean + sd * z)
        return (comb(n, yes)[..., None] * p ** yes[..., None] * (1 - p) ** (n - yes[..., None])) @ density

    best = minimize(lambda t: -np.log(chance(counts, ROWS, t[0], np.exp(t[1]))).sum(), [0.0, 0.0]).x
    classifier = FewShotClassifier(random_state=0).fit(table[[]], table.late, tasks=table.shop)
    for n in (0, 1, 3, 6):
        grid = expit(best[0] + np.exp(best[1]) * z)
        weight = density * grid**n  # after n times yes
        found = classifier.adapt(np.zeros((n, 0)), np.ones(n, dtype=bool)).predict_proba(np.zeros((1, 0)))[0, 1]
        assert found == pytest.approx(weight @ grid / weight.sum(), abs=0.03)
    assert classifier.score(table[[]], table.late, tasks=table.shop) > 0.7


def test_estimators_do_all_they_do_with_inputs(table, regressor, tmp_path):
    known, ids = table[[]][:12], table.shop[:12]
    many = regressor.adapt(known, table.sold[:12], tasks=ids)
    one = regressor.adapt(known[:6], table.sold[:6])
    np.testing.assert_allclose(many.predict(known, tasks=ids)[:6], one.predict(known[:6]))
    np.testing.assert_allclose(
        regressor.adapt(known[:2], table.sold[:2]).partial_fit(known[:4], table.sold[2:6]).predict(known),
        one.predict(known),
    )
    assert regressor.score(table[[]], table.sold, tasks=table.shop) > 0.4
    many.save(tmp_path / "e.safetensors")
    again = FewShotRegressor.load(tmp_path / "e.safetensors")
    np.testing.assert_array_equal(again.predict(known, tasks=ids), many.predict(known, tasks=ids))
    both = FewShotRegressor(random_state=0).fit(table[[]], table[["sold", "shop"]].astype(float), tasks=table.shop)
    np.testing.assert_array_equal(both.predict(known)[:, 0], regressor.predict(known))
    network = FewShotRegressor(backbone="mlp")
    for refuses in (
        lambda: FewShotRegressor().fit(table[[]], table.sold),
        lambda: network.fit(table[[]], table.sold, tasks=table.shop),
        lambda: FewShotClassifier().fit(table[[]], table.shop),
    ):
        with pytest.raises(ValueError, match=r"0 feature\(s\) \(shape=\(360, 0\)\).*How tasks differ is learned"):
            refuses()
    with pytest.raises(ValueError, match="1 features, but FewShotRegressor is expecting 0"):
        regressor.predict(np.zeros((3, 1)))


def test_tables_without_columns_know_how_many_rows_they_have(table, tmp_path):
    for data in (table[[]][:3], [{}, {}, {}], in_memory(table).only(()).select(np.arange(3)), np.zeros((3, 0))):
        assert len(data if isinstance(data, np.ndarray) else in_memory(data)) == 3
    table[["shop", "sold"]].to_csv(tmp_path / "t.csv", index=False)
    assert read_rows(tmp_path / "t.csv", target="sold", task="shop").x.shape == (360, 0)


@pytest.mark.parametrize(("target", "ending"), [("sold", "csv"), ("late", "csv"), ("sold", "parquet")])
def test_the_command_line_and_the_service_take_such_tables(table, target, ending, tmp_path):
    write = "to_csv" if ending == "csv" else "to_parquet"
    path, new, asked = (tmp_path / f"{name}.{ending}" for name in ("all", "new", "query"))
    getattr(table[["shop", target]], write)(path, index=False)
    getattr(table[["shop", target]][:20], write)(new, index=False)
    getattr(table[["shop"]][:20], write)(asked, index=False)
    run = tmp_path / "run"
    columns = ["--task", "shop", "--target", target, "--out", run]
    assert "and a network needs some" in refused("train", "table", path, *columns, "--method", "gp-vib")
    done("train", "table", path, *columns, "--quiet", "--set", "test.tasks=20")
    assert f"'{target}' from no inputs" in done("show", run)
    tested = json.loads(done("evaluate", run, "--shots", "3", "--json"))
    assert tested["rows"][0]["shots"] == 3
    done("adapt", run, "--support", new, "--task", "shop", "--out", tmp_path / "t")
    found = json.loads(done("predict", tmp_path / "t", "--query", asked, "--json"))
    learner = Learner.from_run(run)
    expected = learner.adapt_many(table[:20]).predict(table[["shop"]][:20]).rows(0.95)
    assert [{k: row[k] for k in expected[0]} for row in found] == expected
    drawn = done("plot", run, "--out", tmp_path / "figures").split()
    assert len(drawn) == (2 if target == "sold" else 1)
    if ending == "parquet":
        return
    (engine,) = resolve(f"shops={run}", pixels=1)
    with serving.serving([engine], f"{tmp_path}/tasks.db") as service:
        points = [{target: value} for value in table[target][:3].tolist()]
        made = service.http.post("/v1/tasks", json={"model": "shops", "name": "a", "points": {"rows": points}})
        assert made.json()["points"] == 3, made.text
        answer = service.http.post("/v1/tasks/a/predict", json={"inputs": {"rows": [{}, {}]}})
        assert len(answer.json()["predictions"]) == 2, answer.text
        value = learner.adapt(table[:3]).predict(np.zeros((1, 0))).rows(0.95)[0]
        first = answer.json()["predictions"][0]
        assert first.get("mean", first.get("label")) == pytest.approx(value.get("mean", value.get("class")))
        assert service.http.get("/openapi.json").status_code == 200
