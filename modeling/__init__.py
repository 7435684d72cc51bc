"""The zoo: models written from their papers, at home in transformers' Auto classes.

`import modeling` registers the zoo's models for the zoo's own configurations and changes nothing else.
`modeling.register()` makes the Auto classes resolve the model types of published checkpoints to the zoo, in this
process; `modeling.unregister()` gives them back to transformers.
"""

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from . import configuration_bert, modeling_bert
from .configuration_bert import ZooBertConfig
from .modeling_bert import *  # noqa: F403 - the models' __all__


# One row a model: its configuration, the map of its classes, the module they are in, its checkpoints' tokenizer.
MODELS = ((ZooBertConfig, configuration_bert.AUTO_MAP, modeling_bert, BertTokenizer),)

for _config, _auto_map, _module, _tokenizer in MODELS:
    AutoTokenizer.register(_config, tokenizer_class=_tokenizer, exist_ok=True)
    for _auto, _reference in _auto_map.items():
        if _auto != "AutoConfig":
            _model = getattr(_module, _reference.split(".")[1])
            getattr(transformers, _auto).register(_config, _model, exist_ok=True)


def register() -> None:
    """Resolve `bert` to the zoo in `AutoConfig`, `AutoModel...` and `pipeline`, in this process.

    For what the encoder does not do the Auto classes then find nothing: to decode with a BERT checkpoint, name
    `transformers.BertLMHeadModel` or `unregister()` first.
    """
    for config, *_ in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)


def unregister() -> None:
    """Undo `register()`: the Auto classes resolve to transformers' own classes again."""
    for config, *_ in MODELS:
        if CONFIG_MAPPING[config.model_type] is config:
            del CONFIG_MAPPING._extra_content[config.model_type]  # the mapping has no public way back


__all__ = ["ZooBertConfig", "register", "unregister", *modeling_bert.__all__]
