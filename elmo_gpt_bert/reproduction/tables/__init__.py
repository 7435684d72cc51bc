"""The tables, one module each, by name and budget."""

from ..rows import Budget, Table
from .ablations import ABLATIONS_PAPER, ABLATIONS_SMALL
from .blimp import BLIMP_SMALL
from .checkpoints import CHECKPOINTS
from .conll2003 import CONLL2003
from .elmo_layers import ELMO_LAYERS
from .feature_based import FEATURE_BASED_PAPER, FEATURE_BASED_SMALL
from .glue import GLUE
from .gpt_ablations import GPT_ABLATIONS
from .gpt_tasks import GPT_TASKS
from .layers import LAYERS_PAPER, LAYERS_SMALL
from .masking import MASKING
from .model_sizes import MODEL_SIZES
from .perplexity import PERPLEXITY
from .pretraining_pays import PRETRAINING_PAYS_PAPER, PRETRAINING_PAYS_SMALL
from .squad import SQUAD
from .swag import SWAG


_SMALL = (PRETRAINING_PAYS_SMALL, FEATURE_BASED_SMALL, ABLATIONS_SMALL, LAYERS_SMALL, BLIMP_SMALL, CHECKPOINTS)
_OF_THE_PAPERS = (PRETRAINING_PAYS_PAPER, FEATURE_BASED_PAPER, ABLATIONS_PAPER, LAYERS_PAPER, GLUE, SQUAD, SWAG)
_OF_THE_PAPERS += (CONLL2003, MODEL_SIZES, MASKING, GPT_TASKS, GPT_ABLATIONS, ELMO_LAYERS, PERPLEXITY)

TABLES: dict[str, dict[Budget, Table]] = {}
for _table in (*_SMALL, *_OF_THE_PAPERS):
    TABLES.setdefault(_table.name, {})[_table.budget] = _table
