"""The tables, one module each, by name."""

from .ablations import ABLATIONS
from .blimp import BLIMP
from .feature_based import FEATURE_BASED
from .layers import LAYERS
from .pretraining_pays import PRETRAINING_PAYS


TABLES = {table.name: table for table in (PRETRAINING_PAYS, FEATURE_BASED, ABLATIONS, LAYERS, BLIMP)}
