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
"""BERT that reads from left to right, the "LTR & No NSP" of the paper's ablation (Devlin et al. 2018, section 5.1).

Attention is causal with `config.is_decoder` (modeling_bert.py); the head here predicts the next token. Names of
parameters, logits and loss are those of transformers' BertLMHeadModel. Left out are its cache, generation and
cross-attention.

Letters: as in modeling_bert.py.
"""

import torch
import transformers
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..hub_code import as_class
from ..shared.modeling_heads import check_shapes, predicts_from_padding, states_to_predict_from
from ..shared.modeling_word_loss import language_loss
from .configuration_bert import NO_DECODER, ZooBertConfig
from .modeling_bert import ZooBertModel, ZooBertPretrainingHeads, ZooBertWordPredictor


@auto_docstring(custom_intro="BERT from left to right, with a head that predicts the next token.")
class ZooBertLMHeadModel(ZooBertWordPredictor):
    def __init__(self, config: ZooBertConfig):
        if not config.is_decoder:
            raise ValueError(
                "is_decoder=False: this BERT is a bidirectional encoder and does not decode, because every token sees "
                "the one that the head predicts. Train it from left to right with is_decoder=True, or load this "
                "checkpoint with transformers.BertLMHeadModel, or call modeling.unregister() first"
            )
        super().__init__(config)
        self.bert = ZooBertModel(self.config, add_pooling_layer=False)
        self.cls = ZooBertPretrainingHeads(config, masked_lm=True, next_sentence=False)
        self.loss_type = "ForCausalLM"  # Trainer reads it
        self.loss_function = language_loss
        self.post_init()

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        unpad: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | CausalLMOutputWithCrossAttentions:
        r"""
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tokens themselves, usually `input_ids`; -100 for tokens that are not to be predicted. The model shifts
            them.
        unpad (`bool`, *optional*, defaults to `config.unpad`):
            Whether to leave padding out if the loss does not need it; see `ZooBertModel.forward`.
        """
        check_shapes(input_ids if input_ids is not None else inputs_embeds, labels=labels)
        needs_padding = predicts_from_padding(labels, attention_mask, **kwargs)
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        outputs = self.bert(*inputs, unpad=False if needs_padding else unpad, return_dict=True, **kwargs)
        logits = self.cls.predictions(states_to_predict_from(outputs.last_hidden_state, logits_to_keep))  # (B, T, V)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
        )

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, *model_args, config=None, **kwargs):
        """As `PreTrainedModel.from_pretrained`; with cross-attention, gives a model of transformers' class.

        So an `EncoderDecoderModel` finds its decoder after `modeling.register()`.
        """
        load = super().from_pretrained
        if getattr(config, "add_cross_attention", False):
            load, config = transformers.BertLMHeadModel.from_pretrained, as_class(config, transformers.BertConfig)
        return load(pretrained_model_name_or_path, *model_args, config=config, **kwargs)

    @classmethod
    def _from_config(cls, config, **kwargs):
        make = super()._from_config
        if config.add_cross_attention:
            make, config = transformers.BertLMHeadModel._from_config, as_class(config, transformers.BertConfig)
        return make(config, **kwargs)

    def generate(self, *args, **kwargs):
        """Raises ValueError: the model has no cache, and is for pre-training and scoring."""
        raise ValueError(f"generate: {NO_DECODER}")


__all__ = ["ZooBertLMHeadModel"]
