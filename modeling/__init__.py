"""The zoo: ELMo, GPT and BERT, written from their papers, for transformers' Auto classes.

`import modeling` registers the zoo's models for the zoo's configurations, and adds their names to transformers' tables
of names; it does not change which classes transformers loads. After `modeling.register()`, the Auto classes of this
process resolve the model types of published checkpoints to the zoo; `modeling.unregister()` reverts that. Models that
transformers does not have need neither.
"""

import transformers
from transformers import AutoConfig, AutoTokenizer, BertTokenizer
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.tokenization_auto import REGISTERED_TOKENIZER_CLASSES

from .bert import configuration_bert
from .bert.configuration_bert import ZooBertConfig
from .bert.modeling_bert import (
    ZooBertForMaskedLM,
    ZooBertForPreTraining,
    ZooBertLMHeadModel,
    ZooBertModel,
    ZooBertPreTrainedModel,
)
from .bert.modeling_bert_tasks import (
    ZooBertForMultipleChoice,
    ZooBertForNextSentencePrediction,
    ZooBertForQuestionAnswering,
    ZooBertForSequenceClassification,
    ZooBertForTokenClassification,
)
from .elmo import configuration_elmo
from .elmo.configuration_elmo import ElmoConfig
from .elmo.modeling_elmo import ElmoModel
from .elmo.modeling_elmo_pretraining import ElmoForPreTraining
from .elmo.modeling_elmo_tasks import (
    ElmoForMultipleChoice,
    ElmoForQuestionAnswering,
    ElmoForSequenceClassification,
    ElmoForTokenClassification,
)
from .elmo.pipeline_elmo import ElmoFillMaskPipeline, ElmoTokenClassificationPipeline
from .elmo.released_elmo import elmo_from_released
from .elmo.tokenization_elmo import ElmoTokenizer
from .feature_tagger import configuration_features
from .feature_tagger.configuration_features import FeatureTaggerConfig
from .feature_tagger.modeling_features import FeatureTaggerForTokenClassification
from .gpt import configuration_gpt
from .gpt.configuration_gpt import ZooGPTConfig
from .gpt.modeling_gpt import ZooGPTLMHeadModel, ZooGPTModel, ZooGPTPreTrainedModel
from .gpt.modeling_gpt_tasks import (
    ZooGPTForMultipleChoice,
    ZooGPTForQuestionAnswering,
    ZooGPTForSequenceClassification,
    ZooGPTForTokenClassification,
)
from .gpt.tokenization_gpt import ZooGPTTokenizer
from .shared.packing_collator import DataCollatorWithPacking


# One row per model: its configuration, the map of its classes, its tokenizer; None: the tokenizer of its encoder.
MODELS = (
    (ZooBertConfig, configuration_bert.AUTO_MAP, BertTokenizer),
    (ZooGPTConfig, configuration_gpt.AUTO_MAP, ZooGPTTokenizer),
    (ElmoConfig, configuration_elmo.AUTO_MAP, ElmoTokenizer),
    (FeatureTaggerConfig, configuration_features.AUTO_MAP, None),
)
# Tokenizers of transformers that a model folder may name, and the zoo's, which replace them after `register()`.
TOKENIZERS = {"OpenAIGPTTokenizer": ZooGPTTokenizer}
NEW_TYPES = {ElmoConfig.model_type, FeatureTaggerConfig.model_type}  # model types that transformers does not have


for _config, _auto_map, _tokenizer in MODELS:
    if _config.model_type in NEW_TYPES:
        AutoConfig.register(_config.model_type, _config, exist_ok=True)
    if _tokenizer is not None:
        AutoTokenizer.register(_config, tokenizer_class=_tokenizer, exist_ok=True)
    for _auto, _reference in _auto_map.items():
        if _auto.startswith("AutoModel"):
            getattr(transformers, _auto).register(_config, globals()[_reference.split(".")[1]], exist_ok=True)


def register() -> None:
    """Resolves `bert` and `openai-gpt` to the zoo in `AutoConfig`, `AutoModel...` and `pipeline`, in this process.

    `AutoModelForCausalLM` then raises an error for a BERT that does not read from left to right. To decode with a BERT
    checkpoint, use `transformers.BertLMHeadModel`, or call `unregister()` first.
    """
    for config, *_ in MODELS:
        AutoConfig.register(config.model_type, config, exist_ok=True)
    REGISTERED_TOKENIZER_CLASSES.update(TOKENIZERS)


def unregister() -> None:
    """Undoes `register()`: the Auto classes resolve to transformers' own classes again."""
    for config, *_ in MODELS:
        if config.model_type not in NEW_TYPES and CONFIG_MAPPING[config.model_type] is config:
            del CONFIG_MAPPING._extra_content[config.model_type]  # the mapping has no public method for this
    for name, tokenizer in TOKENIZERS.items():
        if REGISTERED_TOKENIZER_CLASSES.get(name) is tokenizer:
            del REGISTERED_TOKENIZER_CLASSES[name]


__all__ = [
    "DataCollatorWithPacking",
    "ElmoConfig",
    "ElmoFillMaskPipeline",
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
    "ZooBertLMHeadModel",
    "ZooBertModel",
    "ZooBertPreTrainedModel",
    "ZooGPTConfig",
    "ZooGPTForMultipleChoice",
    "ZooGPTForQuestionAnswering",
    "ZooGPTForSequenceClassification",
    "ZooGPTForTokenClassification",
    "ZooGPTLMHeadModel",
    "ZooGPTModel",
    "ZooGPTPreTrainedModel",
    "ZooGPTTokenizer",
    "elmo_from_released",
    "register",
    "unregister",
]
