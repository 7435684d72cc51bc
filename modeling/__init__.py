"""The zoo: models written from their papers, at home in transformers' Auto classes.

`import modeling` registers the zoo's models for the zoo's own configurations and their names where transformers looks
names up; what transformers loads stays as it is. The file of a model is imported when its class is first used.
`modeling.register()` makes the Auto classes resolve the model types of published checkpoints to the zoo, in this
process; `modeling.unregister()` gives them back to transformers. Models that transformers does not have need neither.
"""

from collections import UserDict
from importlib import import_module
from typing import TYPE_CHECKING

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import REGISTERED_TOKENIZER_CLASSES

from .bert import configuration_bert
from .bert.configuration_bert import ZooBertConfig
from .elmo import configuration_elmo
from .elmo.configuration_elmo import ElmoConfig
from .elmo.tokenization_elmo import ElmoTokenizer
from .feature_tagger import configuration_features
from .feature_tagger.configuration_features import FeatureTaggerConfig
from .gpt import configuration_gpt
from .gpt.configuration_gpt import ZooGPTConfig
from .gpt.tokenization_gpt import ZooGPTTokenizer


if TYPE_CHECKING:  # when the program runs, `__getattr__` imports them
    from .bert.modeling_bert import (
        ZooBertForMaskedLM,
        ZooBertForMultipleChoice,
        ZooBertForNextSentencePrediction,
        ZooBertForPreTraining,
        ZooBertForQuestionAnswering,
        ZooBertForSequenceClassification,
        ZooBertForTokenClassification,
        ZooBertModel,
        ZooBertPreTrainedModel,
    )
    from .elmo.modeling_elmo import ElmoModel
    from .elmo.modeling_elmo_bidaf import ElmoForQuestionAnswering
    from .elmo.modeling_elmo_classifier import ElmoForSequenceClassification
    from .elmo.modeling_elmo_esim import ElmoForMultipleChoice
    from .elmo.modeling_elmo_pretraining import ElmoForPreTraining
    from .elmo.modeling_elmo_tagger import ElmoForTokenClassification
    from .elmo.pipeline_elmo import ElmoTokenClassificationPipeline
    from .feature_tagger.modeling_features import FeatureTaggerForTokenClassification
    from .gpt.modeling_gpt import ZooGPTLMHeadModel, ZooGPTModel, ZooGPTPreTrainedModel
    from .gpt.modeling_gpt_tasks import (
        ZooGPTDoubleHeadsModel,
        ZooGPTForMultipleChoice,
        ZooGPTForQuestionAnswering,
        ZooGPTForSequenceClassification,
        ZooGPTForTokenClassification,
    )

# One row a model: its configuration, the map of its classes, its checkpoints' tokenizer; None: its encoder's.
MODELS = (
    (ZooBertConfig, configuration_bert.AUTO_MAP, BertTokenizer),
    (ZooGPTConfig, configuration_gpt.AUTO_MAP, ZooGPTTokenizer),
    (ElmoConfig, configuration_elmo.AUTO_MAP, ElmoTokenizer),
    (FeatureTaggerConfig, configuration_features.AUTO_MAP, None),
)
# The module of each class that waits for its first use; `register_model` adds the models, which stand beside their
# configurations.
MODULES = {
    "ElmoTokenClassificationPipeline": "modeling.elmo.pipeline_elmo",
    "ZooBertPreTrainedModel": "modeling.bert.modeling_bert",
    "ZooGPTDoubleHeadsModel": "modeling.gpt.modeling_gpt_tasks",
    "ZooGPTPreTrainedModel": "modeling.gpt.modeling_gpt",
}
# Tokenizers of transformers that a folder may name, and the zoo's, which do the same and more.
IN_PLACE_OF = {"OpenAIGPTTokenizer": ZooGPTTokenizer}
OURS = {ElmoConfig.model_type, FeatureTaggerConfig.model_type}  # model types that transformers does not have


class BertDecoder:
    """What `AutoModelForCausalLM` finds for the zoo's BERT: an error that tells the way to a decoder."""

    @classmethod
    def from_pretrained(cls, *args, **kwargs):
        raise ValueError(
            "AutoModelForCausalLM found ZooBertConfig, but ZooBert is the paper's bidirectional encoder and does not "
            "decode: load this checkpoint with transformers.BertLMHeadModel, or call modeling.unregister() first"
        )

    _from_config = from_pretrained


class RegisteredModels(UserDict):
    """Models by configuration, as an Auto class keeps them; the zoo's are names until they are looked up."""

    def __getitem__(self, config: type) -> type:
        model = self.data[config]
        return import_class(model) if isinstance(model, str) else model


def import_class(name: str) -> type:
    return getattr(import_module(MODULES[name]), name)


def register_model(config: type, auto: str, reference: str) -> None:
    """Lets the Auto class find the model of a reference such as "modeling_x.XModel" for the configuration."""
    module, name = reference.split(".")
    MODULES[name] = f"{config.__module__.rpartition('.')[0]}.{module}"
    models = getattr(transformers, auto)._model_mapping
    if not isinstance(models._extra_content, RegisteredModels):  # where an Auto class keeps what is registered
        models._extra_content = RegisteredModels(models._extra_content)
    models._extra_content[config] = name


transformers.AutoModelForCausalLM.register(ZooBertConfig, BertDecoder, exist_ok=True)
for _config, _auto_map, _tokenizer in MODELS:
    if _config.model_type in OURS:
        AutoConfig.register(_config.model_type, _config, exist_ok=True)
    if _tokenizer is not None:
        AutoTokenizer.register(_config, tokenizer_class=_tokenizer, exist_ok=True)
    for _auto, _reference in _auto_map.items():
        if _auto.startswith("AutoModel"):
            register_model(_config, _auto, _reference)


def __getattr__(name: str) -> type:
    """Imports a class when it is first used."""
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = import_class(name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def register() -> None:
    """Resolve `bert` and `openai-gpt` to the zoo in `AutoConfig`, `AutoModel...` and `pipeline`, in this process.

    `AutoModelForCausalLM` then refuses BERT, which is an encoder here: to decode with a BERT checkpoint, name
    `transformers.BertLMHeadModel` or `unregister()` first.
    """
    for config, *_ in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
    REGISTERED_TOKENIZER_CLASSES.update(IN_PLACE_OF)


def unregister() -> None:
    """Undo `register()`: the Auto classes resolve to transformers' own classes again."""
    for config, *_ in MODELS:
        if config.model_type not in OURS and CONFIG_MAPPING[config.model_type] is config:
            del CONFIG_MAPPING._extra_content[config.model_type]  # the mapping has no public way back
    for name, tokenizer in IN_PLACE_OF.items():
        if REGISTERED_TOKENIZER_CLASSES.get(name) is tokenizer:
            del REGISTERED_TOKENIZER_CLASSES[name]


__all__ = [
    "ElmoConfig",
    "ElmoForMultipleChoice",
    "ElmoForPreTraining",
    "ElmoForQuestionAnswering",
    "ElmoForSequenceClassification",
    "ElmoForTokenClassification",
    "ElmoModel",
    "ElmoTokenClassificationPipeline",
    "ElmoTokenizer",
    "FeatureTaggerConfig",
    "FeatureTaggerForTokenClassification",
    "ZooBertConfig",
    "ZooBertForMaskedLM",
    "ZooBertForMultipleChoice",
    "ZooBertForNextSentencePrediction",
    "ZooBertForPreTraining",
    "ZooBertForQuestionAnswering",
    "ZooBertForSequenceClassification",
    "ZooBertForTokenClassification",
    "ZooBertModel",
    "ZooBertPreTrainedModel",
    "ZooGPTConfig",
    "ZooGPTDoubleHeadsModel",
    "ZooGPTForMultipleChoice",
    "ZooGPTForQuestionAnswering",
    "ZooGPTForSequenceClassification",
    "ZooGPTForTokenClassification",
    "ZooGPTLMHeadModel",
    "ZooGPTModel",
    "ZooGPTPreTrainedModel",
    "ZooGPTTokenizer",
    "register",
    "unregister",
]
