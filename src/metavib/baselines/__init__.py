r"""The methods the paper compares with, under the same protocol and, where they are one, as instances of the bound.

Each file holds a method whole: its posterior, its encoder, and a constructor that puts them into one
`metavib.model.Model`.

| method           | Z                      | encoder                         | objective                |
| ---------------- | ---------------------- | ------------------------------- | ------------------------ |
| ProtoNet         | prototypes             | Dirac at the class means        | vib, beta = 0            |
| MatchingNet      | the support in context | Dirac                           | vib, beta = 0            |
| RelationNet      | mean maps              | Dirac                           | vib, beta = 0            |
| Feature Transfer | weights of a head      | Dirac, learned; then fitted     | vib, beta = 0, `AllWay`  |
| Baseline++       | the same, cosine       | Dirac, learned; then fitted     | vib, beta = 0, `AllWay`  |
| nearest centroids | directions of means   | Dirac                           | vib, beta = 0            |
| logistic regression | weights of a head   | Dirac at the fitted weights     | vib, beta = 0            |
| DKT              | a function a class     | GP posterior                    | evidence                 |
"""

from metavib.baselines.dkt import dkt as dkt
from metavib.baselines.dkt import dkt_bn_cosine as dkt_bn_cosine
from metavib.baselines.dkt import dkt_cosine as dkt_cosine
from metavib.baselines.dkt import dkt_linear as dkt_linear
from metavib.baselines.dkt import evidence as evidence
from metavib.baselines.logistic import logistic_regression as logistic_regression
from metavib.baselines.logistic import nearest_centroids as nearest_centroids
from metavib.baselines.matching import FullContext as FullContext
from metavib.baselines.matching import NoContext as NoContext
from metavib.baselines.matching import matching_net as matching_net
from metavib.baselines.proto import proto_net as proto_net
from metavib.baselines.relation import RelationScores as RelationScores
from metavib.baselines.relation import relation_net as relation_net
from metavib.baselines.transfer import SGD as SGD
from metavib.baselines.transfer import AllWay as AllWay
from metavib.baselines.transfer import baseline_pp as baseline_pp
from metavib.baselines.transfer import feature_transfer as feature_transfer
from metavib.baselines.transfer import fine_tuned as fine_tuned
