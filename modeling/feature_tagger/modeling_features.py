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
"""BERT without fine-tuning: a tagger on the states of a frozen encoder.

Section 5.3 and table 7 of Devlin et al. 2018 (arXiv 1810.04805), whose code was not released. A pre-trained encoder of
any family, with fixed weights, computes the states of each token. A BiLSTM with random weights reads the states of
some of the encoder's layers, and a linear layer scores the tags.

The paper leaves two questions open:

- How is a weighted sum weighted? Here as in ELMo (Peters et al. 2018, equation 1), by a softmax of learned weights and
  a learned factor.
- What does the BiLSTM read? Here every sub-word, and the first one of each word is scored, so that the inputs are
  those of a fine-tuned model. In a window with context, it reads the sentence only; the context acts through the
  encoder.

With `freeze_encoder=False` the encoder is fine-tuned, too: a BiLSTM above a BERT that reads from left to right is the
"+ BiLSTM" of table 5.

Letters: B rows, T tokens of a row, W tokens that the BiLSTM reads, n layers, H hidden size of the encoder, F size of a
token's combined states (n * H, or H for a weighted sum), R cells of one direction, C tags.
"""

import torch
import torch.nn as nn
from transformers import AutoModel
from transformers import initialization as init
from transformers.modeling_outputs import TokenClassifierOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple

from ..hub_code import SavedWithCode
from ..shared.modeling_heads import token_loss
from ..shared.modeling_onednn import needs_static_shapes
from ..shared.modeling_parameters import FreezesParts, is_trained
from ..shared.modeling_recurrence import lacks_lstm, run_padded
from .configuration_features import LAYERS, FeatureTaggerConfig


# A choice of the user, for any checkpoint:
# trf-ignore: TRF041 config.freeze_encoder


class WeightedSum(nn.Module):
    """gamma * sum_j softmax(weights)_j h_j over n layers, with equal weights before training."""

    def __init__(self, layers: int):
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def reset(self):
        init.zeros_(self.weights)
        init.ones_(self.gamma)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.gamma * torch.einsum("btnh,n->bth", states, self.weights.softmax(0))  # (B, T, n, H) -> (B, T, H)


@auto_docstring
class FeatureTaggerPreTrainedModel(SavedWithCode, FreezesParts, PreTrainedModel):
    config: FeatureTaggerConfig
    base_model_prefix = "encoder"
    _supports_sdpa = True  # if the encoder does; it checks this itself
    _supports_flash_attn = True
    _supports_flex_attn = True

    @torch.no_grad()
    def _init_weights(self, module):
        super()._init_weights(module)
        if isinstance(module, WeightedSum):
            module.reset()


@auto_docstring(custom_intro="An encoder, usually frozen, a BiLSTM on its states and a classifier on every token.")
class FeatureTaggerForTokenClassification(FeatureTaggerPreTrainedModel):
    def __init__(self, config: FeatureTaggerConfig):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = AutoModel.from_config(config.encoder)
        self.layers, _, weighted = LAYERS[config.features]
        layers = len(range(config.encoder.num_hidden_layers + 1)[self.layers])
        self.combine = WeightedSum(layers) if weighted else nn.Flatten(2)
        self.dropout = nn.Dropout(config.dropout)
        self.rnn = nn.LSTM(
            config.encoder.hidden_size * (1 if weighted else layers),
            config.rnn_size,
            config.rnn_layers,
            batch_first=True,
            bidirectional=True,
        )
        self.classifier = nn.Linear(2 * config.rnn_size, config.num_labels)
        self.loss_function = token_loss
        self.post_init()

    @classmethod
    def from_encoder(cls, encoder: PreTrainedModel, **config) -> "FeatureTaggerForTokenClassification":
        """A tagger on `encoder`; BiLSTM and classifier have random weights.

        `config` are the other fields of `FeatureTaggerConfig`.
        """
        model = cls(FeatureTaggerConfig(encoder=encoder.config, **config))
        model.encoder = encoder
        model.freeze_parts()
        return model.train()

    def freeze_parts(self) -> None:
        if self.config.freeze_encoder:
            self.encoder.requires_grad_(False)
        elif getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler.requires_grad_(False)  # no state depends on it

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As in transformers, which changes the size in the configuration of the tagger alone."""
        embeddings = super().resize_token_embeddings(*args, **kwargs)
        self.config.encoder.vocab_size = self.encoder.config.vocab_size = embeddings.weight.shape[0]
        return embeddings

    def train(self, mode: bool = True) -> "FeatureTaggerForTokenClassification":
        """As `Module.train`, but a frozen encoder has no dropout either. Its states are the same in every epoch."""
        super().train(mode)
        if not is_trained(self.encoder):
            self.encoder.eval()
        return self

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        sentence_mask: torch.Tensor | None = None,
        layer_states: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | TokenClassifierOutput:
        r"""
        sentence_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            1 for the tokens that the BiLSTM reads, 0 for context and padding. Defaults to `attention_mask`.
        layer_states (`torch.FloatTensor` of shape `(batch_size, sequence_length, layers + 1, hidden)`, *optional*):
            The states of all layers of the encoder, computed earlier; the encoder is then not run.
        labels (`torch.LongTensor` of shape `(batch_size, sequence_length)`, *optional*):
            The tag of each token; -100 for tokens that do not count.
        """
        items = kwargs.pop("num_items_in_batch", None)
        hidden_states = attentions = None
        if layer_states is None:
            returns_layers = kwargs.pop("output_hidden_states", None) or self.config.output_hidden_states
            outputs = self.encode(input_ids, attention_mask, token_type_ids, **kwargs)
            states = torch.stack(outputs.hidden_states[self.layers], dim=-2)
            hidden_states, attentions = outputs.hidden_states if returns_layers else None, outputs.get("attentions")
        else:
            states = layer_states[:, :, self.layers]
        states = self.combine(states.to(self.classifier.weight.dtype))  # (B, T, n, H) -> (B, T, F)
        mask = attention_mask if sentence_mask is None else sentence_mask
        mask = states.new_ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool()
        logits = self.score(states, mask)  # (B, T, C)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits, labels=labels, config=self.config, num_items_in_batch=items)
        return TokenClassifierOutput(loss=loss, logits=logits, hidden_states=hidden_states, attentions=attentions)

    def encode(self, input_ids, attention_mask, token_type_ids, **kwargs) -> ModelOutput:
        """The output of the encoder, with the states of all its layers."""
        optional = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}  # some families lack them
        kwargs |= {name: value for name, value in optional.items() if value is not None}
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained(self.encoder)):
            return self.encoder(input_ids, **kwargs, output_hidden_states=True, return_dict=True)

    def score(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(B, T, F) -> the scores (B, T, C) of the tokens in `mask` (B, T), and zeros elsewhere.

        Only the tokens in the mask are computed, at most W in a row, as if there were no others between them. So other
        tokens do not even change the random numbers of dropout.
        """
        if needs_static_shapes(states) or lacks_lstm(states):
            return self.score_padded(states, mask)
        lengths = mask.sum(1).clamp(min=1)  # no row may be empty
        order = mask.int().argsort(dim=1, descending=True, stable=True)[:, : int(lengths.max())]  # (B, W)
        states = states.gather(1, order.unsqueeze(-1).expand(-1, -1, states.shape[-1]))  # (B, W, F)
        self.rnn.dropout = self.dropout.p  # between its layers, where torch takes a number, not a module
        packed = nn.utils.rnn.pack_padded_sequence(
            self.dropout(states), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        states, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)  # (B, W, 2 R)
        scores = self.classifier(self.dropout(states))  # (B, W, C)
        scores = scores.new_zeros(*mask.shape, scores.shape[-1]).scatter(
            1, order.unsqueeze(-1).expand_as(scores), scores
        )
        return scores.masked_fill(~mask.unsqueeze(-1), 0)

    def score_padded(self, states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """As `score`, in operations of static shapes; only dropout draws other numbers."""
        for layer in range(self.rnn.num_layers):
            states = run_padded(self.rnn, self.dropout(states), mask, layer=layer)  # (B, T, 2 R)
        return self.classifier(self.dropout(states)).masked_fill(~mask.unsqueeze(-1), 0)


__all__ = ["FeatureTaggerForTokenClassification", "FeatureTaggerPreTrainedModel"]
