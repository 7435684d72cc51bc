# Copyright 2026 the authors of this model zoo.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""BERT's configuration: the fields of every published `config.json` with `"model_type": "bert"`."""

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import auto_docstring

from ..hub_code import SavedWithCode, announce_names, copy_code


# The class that each Auto class finds in a saved folder.
AUTO_MAP = {
    "AutoConfig": "configuration_bert.ZooBertConfig",
    "AutoModel": "modeling_bert.ZooBertModel",
    "AutoModelForPreTraining": "modeling_bert.ZooBertForPreTraining",
    "AutoModelForMaskedLM": "modeling_bert.ZooBertForMaskedLM",
    "AutoModelForCausalLM": "modeling_bert.ZooBertLMHeadModel",
    "AutoModelForNextSentencePrediction": "modeling_bert_tasks.ZooBertForNextSentencePrediction",
    "AutoModelForSequenceClassification": "modeling_bert_tasks.ZooBertForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_bert_tasks.ZooBertForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_bert_tasks.ZooBertForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_bert_tasks.ZooBertForMultipleChoice",
    "AutoModelForTextEncoding": "modeling_bert.ZooBertModel",
}
# The class of transformers that `architectures` names for each class here; it reads the same folder.
STOCK = {
    "ZooBertModel": "BertModel",
    "ZooBertForPreTraining": "BertForPreTraining",
    "ZooBertForMaskedLM": "BertForMaskedLM",
    "ZooBertLMHeadModel": "BertLMHeadModel",
    "ZooBertForNextSentencePrediction": "BertForNextSentencePrediction",
    "ZooBertForSequenceClassification": "BertForSequenceClassification",
    "ZooBertForTokenClassification": "BertForTokenClassification",
    "ZooBertForQuestionAnswering": "BertForQuestionAnswering",
    "ZooBertForMultipleChoice": "BertForMultipleChoice",
}
# The end of errors about a cache, generation and cross-attention.
NO_DECODER = (
    "ZooBert has no cache for generation and no cross-attention. Use transformers.BertLMHeadModel to decode with a "
    "BERT checkpoint. The Auto classes give that one after modeling.unregister()."
)


@auto_docstring(
    custom_intro="""
    The configuration of BERT. The defaults are BERT-base (Devlin et al. 2018, section 3), uncased:
    [google-bert/bert-base-uncased](https://huggingface.co/google-bert/bert-base-uncased). BERT-large has 24 layers of
    1024 with 16 heads and an `intermediate_size` of 4096.

    The model type is `bert` on purpose: transformers' own BERT classes and those of this zoo read the same folder.
    So no field may change what transformers' class computes from it. There is one exception, see `is_decoder`.

    Raises `ValueError` if `hidden_size` is not a multiple of `num_attention_heads`, and for relative positions. The
    models refuse `add_cross_attention`.
    """
)
@strict
class ZooBertConfig(SavedWithCode, PreTrainedConfig):
    r"""
    is_decoder (`bool`, *optional*, defaults to `False`):
        Whether each token attends only to itself and the tokens before it: the left-to-right model of the paper's
        ablation (section 5.1), which `ZooBertLMHeadModel` pre-trains. Its classifiers read the last token instead of
        [CLS], which sees no other. transformers' classifiers read [CLS] all the same, and so predict a constant.
    position_embedding_type (`str`, *optional*, defaults to `"absolute"`):
        Only `"absolute"`, the paper's learned positions. Older files have this field.
    unpad (`bool`, *optional*, defaults to `True`):
        Whether padding is left out of the computation where possible. With `False`, every module sees states of shape
        `(batch_size, sequence_length, ...)`, and the states of padding are returned. The argument `unpad` of `forward`
        takes precedence; with `False` there, the last layer of a classifier still computes only the token it reads.

    Example:

    ```python
    >>> from modeling import ZooBertConfig, ZooBertModel

    >>> model = ZooBertModel(ZooBertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4))
    ```"""

    model_type = "bert"
    base_model_tp_plan = {
        "embeddings.word_embeddings": "embedding_rowwise",
        "encoder.layer.*.attention.self.query": "colwise",
        "encoder.layer.*.attention.self.key": "colwise",
        "encoder.layer.*.attention.self.value": "colwise",
        "encoder.layer.*.attention.output.dense": "rowwise",
        "encoder.layer.*.intermediate.dense": "colwise",
        "encoder.layer.*.output.dense": "rowwise",
    }
    base_model_fsdp_plan = {
        "embeddings": "free_full_weight",
        "encoder.layer.*": "free_full_weight",
        "pooler": "keep_full_weight",
    }

    vocab_size: int = 30522
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 512
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    classifier_dropout: float | int | None = None
    is_decoder: bool = False
    add_cross_attention: bool = False
    tie_word_embeddings: bool = True
    position_embedding_type: str = "absolute"
    unpad: bool = True

    def validate_head_size(self):
        """Checks that every head has the same number of dimensions."""
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size={self.hidden_size} is not a multiple of num_attention_heads={self.num_attention_heads}; "
                "choose them so that each head has hidden_size / num_attention_heads dimensions."
            )

    def validate_encoder(self):
        """Raises ValueError for settings that the paper's encoder does not have, rather than ignoring them."""
        if self.position_embedding_type != "absolute":
            raise ValueError(
                f"position_embedding_type={self.position_embedding_type!r}: ZooBert has the paper's absolute "
                "positions only. Load this checkpoint with transformers 4, which still computes relative ones."
            )

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and also copies the zoo's code into the folder.

        With `trust_remote_code=True`, the folder then offers all BERT classes of the zoo, whichever of them was saved.
        Without it, transformers' own classes read the folder; `architectures` names them, for servers and converters.

        In a process that runs on code from such a folder, some files may be missing; then `auto_map` names only the
        classes whose files are there.
        """
        self.auto_map = copy_code(__file__, AUTO_MAP, save_directory)
        if self.architectures:
            self.architectures = [STOCK.get(name, name) for name in self.architectures]
        super().save_pretrained(save_directory, **kwargs)


announce_names(AUTO_MAP)

__all__ = ["AUTO_MAP", "NO_DECODER", "ZooBertConfig"]
