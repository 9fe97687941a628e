"""The methods the paper compares with, under the same protocol and, where they are one, as instances of the bound."""

from metavib.baselines.all_way import AllWay as AllWay
from metavib.baselines.constructors import baseline_pp as baseline_pp
from metavib.baselines.constructors import dkt as dkt
from metavib.baselines.constructors import dkt_bn_cosine as dkt_bn_cosine
from metavib.baselines.constructors import dkt_cosine as dkt_cosine
from metavib.baselines.constructors import dkt_linear as dkt_linear
from metavib.baselines.constructors import feature_transfer as feature_transfer
from metavib.baselines.constructors import fine_tuned as fine_tuned
from metavib.baselines.constructors import matching_net as matching_net
from metavib.baselines.constructors import proto_net as proto_net
from metavib.baselines.constructors import relation_net as relation_net
from metavib.baselines.context import FullContext as FullContext
from metavib.baselines.context import NoContext as NoContext
from metavib.baselines.dkt import evidence as evidence
from metavib.baselines.relation import RelationScores as RelationScores
from metavib.baselines.transfer import SGD as SGD
