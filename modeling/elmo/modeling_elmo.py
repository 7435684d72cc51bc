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
"""ELMo: Deep contextualized word representations (Peters et al. 2018, arXiv 1802.05365).

Section 3 describes the biLM and the mix of its layers; released code: allenai/bilm-tf, `bilm/model.py` and
`bilm/elmo.py`. The word layer is in modeling_elmo_characters.py, the LSTM in modeling_elmo_lstm.py, the language model
in modeling_elmo_pretraining.py, the task networks in modeling_elmo_tasks.py.

What differs from the released code:

- each sentence starts from zeros or from one stored state (`config.state`), so its vectors do not depend on other
  sentences; with "carry", it starts from the state at the end of the same row of the batch before, as released;
- each distinct word is computed once, and padding is not computed;
- layers without skip connections and LSTMs without projection can be loaded too, since some releases have them.

Letters: B rows, T words of a row, N words of all rows, S sentences, M steps of all sentences, L LSTM layers, H = 2 P
hidden size (both directions), P the size of one direction, C cells, K character ids of a word.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring, logging
from transformers.utils.generic import can_return_tuple

from ..hub_code import SavedWithCode
from ..shared.modeling_onednn import needs_static_shapes
from ..shared.modeling_parameters import FreezesParts, is_trained
from .configuration_elmo import ElmoConfig
from .modeling_elmo_characters import ElmoTokenEncoder, distinct
from .modeling_elmo_lstm import ElmoLSTM, Pair, Sentences, State, run_both, scan_both
from .tokenization_elmo import FEWEST_KNOWN, ElmoTokenizer
from .tokenization_elmo_spelling import boundary_rows


if TYPE_CHECKING:  # from the Hub, transformers brings the files that another one imports
    from .modeling_elmo_pretraining import ElmoForPreTraining
    from .modeling_elmo_tasks import ElmoForTokenClassification


logger = logging.get_logger(__name__)
POOLINGS = {"mean": torch.mean, "max": torch.amax}
ENOUGH_WORDS = 100  # of a text, to judge it by the share that the model has vectors of

# `config.state` is a choice of the user, for any released model:
# trf-ignore: TRF041 config.state


class ElmoLayer(GradientCheckpointingLayer):
    """One layer of the biLSTM. The two directions are independent of each other."""

    def __init__(self, config: ElmoConfig, layer_idx: int):
        super().__init__()
        sizes = (config.projection_size, config.cell_size, config.projection_size)
        self.forward_lstm = ElmoLSTM(*sizes)
        self.backward_lstm = ElmoLSTM(*sizes)
        self.clips = (config.cell_clip, config.proj_clip)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.adds_input = config.use_skip_connections and layer_idx > 0

    def forward(
        self,
        forward_inputs: torch.Tensor,  # (M, P)
        backward_inputs: torch.Tensor,
        state: State,
        sizes: list[int],
        tokens: Pair | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, State]:
        """(M, P) outputs of each direction, and the state after each sentence's last step.

        With `tokens`, the inputs are tables of distinct words, and `tokens` (M,) is the row that each step reads.
        """
        inputs = (forward_inputs, backward_inputs)
        if tokens is not None and self.dropout.training and self.dropout.p > 0:
            # Dropout is drawn anew for each occurrence of a word.
            inputs, tokens = tuple(table[indices] for table, indices in zip(inputs, tokens, strict=True)), None
        inputs = tuple(self.dropout(states) for states in inputs)
        lstms = (self.forward_lstm, self.backward_lstm)
        gates = tuple(lstm.input(states) for lstm, states in zip(lstms, inputs, strict=True))
        if tokens is not None:
            gates = tuple(table[indices] for table, indices in zip(gates, tokens, strict=True))
        *outputs, state = run_both(gates, [lstm.step_weights for lstm in lstms], state, sizes, self.clips)
        if self.adds_input:  # the input after dropout, as in the released code
            outputs = [output + states for output, states in zip(outputs, inputs, strict=True)]
        return outputs[0], outputs[1], state

    def padded(self, inputs: Pair, state: State, mask: torch.Tensor) -> Pair:
        """As `forward`, on (T + 1, S, P) padded inputs with a (T + 1, S, 1) mask, for traced graphs and XLA.

        The first column is a word in every row. A column that is none leaves the state unchanged.
        """
        inputs = tuple(self.dropout(states) for states in inputs)
        lstms = (self.forward_lstm, self.backward_lstm)
        gates = tuple(lstm.input(states) for lstm, states in zip(lstms, inputs, strict=True))
        masks = (mask, torch.cat([mask[:1], mask[1:].flip(0)]))
        *outputs, _ = scan_both(gates, masks, [lstm.step_weights for lstm in lstms], state, self.clips)
        return tuple(
            output + states if self.adds_input else output for output, states in zip(outputs, inputs, strict=True)
        )


class ElmoScalarMix(nn.Module):
    """gamma * sum_j softmax(w)_j h_j (section 3.2, equation 1). Layers may be normalised first (`mix_layer_norm`)."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.top_only = config.mix_top_layer_only
        self.weights = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))  # before the softmax
        self.gamma = nn.Parameter(torch.ones(()))
        self.normalises = config.mix_layer_norm

    def reset(self) -> None:
        init.zeros_(self.weights)
        init.ones_(self.gamma)

    @property
    def layer_weights(self) -> torch.Tensor:
        """(L + 1,) s of equation 1, the share of each layer. `gamma` scales their sum."""
        return self.weights.softmax(0)

    def forward(self, layers: list[torch.Tensor], mask: torch.Tensor | None = None) -> torch.Tensor:
        """L + 1 layers (..., H) -> (..., H). `mask` (..., 1) is False at padding; None if there is none."""
        if self.top_only:
            return self.gamma * layers[-1]
        if self.normalises:
            layers = [self.normalise(layer, mask) for layer in layers]
        weights = self.gamma * self.layer_weights
        mixed = weights[0] * layers[0]
        for weight, layer in zip(weights[1:], layers[1:], strict=True):
            mixed = mixed.addcmul(weight, layer)
        return mixed

    @staticmethod
    def normalise(layer: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Normalises by one mean and one variance over all words of the batch, without the sentence boundaries.

        The sums are too large for float16.
        """
        states = layer.to(torch.promote_types(layer.dtype, torch.float32))
        words = torch.ones_like(states[..., :1]) if mask is None else mask.to(states.dtype)
        count = (words.sum() * states.shape[-1]).clamp(min=1)
        mean = (states * words).sum() / count
        variance = ((states - mean) * words).square().sum() / count
        normalised = (states - mean) * (variance + 1e-12).rsqrt()  # TensorFlow's epsilon; AllenNLP's is 1e-13
        return normalised.to(layer.dtype)


@auto_docstring
class ElmoPreTrainedModel(SavedWithCode, FreezesParts, PreTrainedModel):
    config: ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoTokenEncoder", "ElmoLayer"]
    _keys_to_ignore_on_load_missing = [r"mixes\.\d+\."]  # mixes that the checkpoint lacks are initialised

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        return {"input_ids": self.boundaries(self.device)[None]}

    def boundaries(self, device: torch.device) -> torch.Tensor:
        """(2, K): the rows of the begin and the end of a sentence."""
        config = self.config
        rows = boundary_rows(config.vocab_size, config.max_characters_per_token, config.lexicon_size > 0)
        return torch.tensor(rows, device=device)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """The embeddings of characters. Raises ValueError for another number of them: the ids are a fixed code."""
        if new_num_tokens not in (None, self.config.vocab_size) or pad_to_multiple_of is not None:
            raise ValueError(
                f"the {self.config.vocab_size} ids of characters cannot become {new_num_tokens}: ELMo reads any word "
                "without new tokens, so leave the resizing out"
            )
        return self.get_input_embeddings()

    def wants_layers(self, output_hidden_states: bool | None = None, **kwargs) -> bool:
        """Whether a call with these arguments returns the layers of the biLM."""
        return self.config.output_hidden_states if output_hidden_states is None else output_hidden_states

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot's values for products, vectors of length 1 for embeddings; other modules have a `reset`."""
        super()._init_weights(module)
        if isinstance(module, (nn.Linear, nn.Conv1d)):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.Embedding) and not getattr(module.weight, "_is_hf_initialized", False):
            limit = (3 / module.embedding_dim) ** 0.5  # vectors of length 1
            init.uniform_(module.weight, -limit, limit)
            init.zeros_(module.weight[module.padding_idx])
        if hasattr(module, "reset"):
            module.reset()

    def _initialize_weights(self, module: nn.Module, is_custom_code: bool = False) -> None:
        """Initialises all modules. For code outside transformers, it would skip those without direct parameters."""
        super()._initialize_weights(module)


@auto_docstring(custom_intro="The mixes of the biLM's layers, and the layers themselves.")
@dataclass
class ElmoModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`):
        The first mix; zero at padding.
    mixes (`torch.FloatTensor` of shape `(batch_size, num_mixes, sequence_length, hidden_size)`):
        All mixes.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*, returned when `output_hidden_states=True`):
        The layers before they are mixed, each of shape `(batch_size, sequence_length, hidden_size)`: the word layer
        concatenated with itself, then the forward and backward states of each LSTM layer.
    """

    last_hidden_state: torch.FloatTensor | None = None
    mixes: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None


@auto_docstring(custom_intro="The biLM, with mixes of its layers: contextual vectors of words.")
class ElmoModel(ElmoPreTrainedModel):
    def __init__(self, config: ElmoConfig, trains: bool | None = None):
        r"""
        trains (`bool`, *optional*):
            Whether the biLM itself is trained. By default, `config.freeze_bilm` says whether it is not. After that,
            `requires_grad_` changes it.
        """
        super().__init__(config)
        self.token_encoder = ElmoTokenEncoder(config)
        self.layers = nn.ModuleList([ElmoLayer(config, index) for index in range(config.num_hidden_layers)])
        self.mixes = nn.ModuleList([ElmoScalarMix(config) for _ in range(config.num_mixes)])
        self.dropout = nn.Dropout(config.mix_dropout)
        sizes = (config.num_hidden_layers, 2)
        self.initial_hidden = nn.Buffer(torch.zeros(*sizes, config.projection_size))
        self.initial_cell = nn.Buffer(torch.zeros(*sizes, config.cell_size))
        self._trains = trains
        # Those of adapters come later, with other names.
        self._bilm = {name for name, _ in self.named_parameters() if not name.startswith("mixes.")}
        self.carried: State | None = None  # (L, 2, rows, ...) each, with config.state="carry"
        self.post_init()

    def reset(self) -> None:
        init.zeros_(self.initial_hidden)
        init.zeros_(self.initial_cell)

    def get_input_embeddings(self) -> nn.Module:
        return self.token_encoder.char_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.token_encoder.char_embeddings = value

    def freeze_parts(self) -> None:
        trains = not self.config.freeze_bilm if self._trains is None else self._trains
        if not trains:
            for name, parameter in self.named_parameters():
                if name in self._bilm:
                    parameter.requires_grad_(False)
        for mix in self.mixes:
            if mix.top_only:
                mix.weights.requires_grad_(False)

    def train(self, mode: bool = True) -> "ElmoModel":
        """As `Module.train`, but a biLM of which nothing gets a gradient stays in evaluation mode."""
        super().train(mode)
        if not is_trained(self.token_encoder, self.layers):
            self.token_encoder.eval()
            self.layers.eval()
        return self

    @can_return_tuple
    @auto_docstring
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        layer_states: torch.Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor] | ElmoModelOutput:
        r"""
        input_ids (`torch.LongTensor` of shape `(batch_size, sequence_length, max_characters_per_token)`):
            Character ids of each word, from `ElmoTokenizer`. The model adds <S> and </S>.
        attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            1 for words, 0 for padding; without it, a row of zeros is padding.
        token_type_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 for the words of a row's first sentence, 1 for those of its second. Each sentence is read by itself.
        layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
            The layers of a frozen biLM, computed earlier, as by `embed(layers="all")`. `input_ids` are then only used
            to find padding, and may be left out.
        """
        mask = self.words_of(input_ids, attention_mask, token_type_ids, layer_states)
        if layer_states is not None:
            layers = list(layer_states.to(self.initial_hidden.dtype).unbind(2))
            packed = None
        elif needs_static_shapes(input_ids):
            layers, packed = self.padded_layers(input_ids, mask, token_type_ids), None
        else:
            packed = Sentences.of(mask, token_type_ids, self.boundary_steps)
            layers = packed.layers(*self.read(input_ids[mask], packed))

        def pad(states: torch.Tensor) -> torch.Tensor:
            return packed.pad(states) if packed else states * mask[..., None]

        returns_layers = self.wants_layers(**kwargs)
        if returns_layers:  # the mix reads the tensors that are returned, so that its gradient reaches them
            layers, packed = [pad(layer) for layer in layers], None
        mixes = [mix(layers, None if packed else mask[..., None]) for mix in self.mixes]
        mixes = [pad(self.dropout(mixed)) for mixed in mixes]
        return ElmoModelOutput(
            last_hidden_state=mixes[0],
            mixes=torch.stack(mixes, 1),
            hidden_states=tuple(layers) if returns_layers else None,
        )

    def words_of(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        layer_states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, T) booleans, True at words. Raises ValueError for inputs of a wrong shape."""
        columns = self.config.ids_per_word
        layers = (self.config.num_hidden_layers + 1, self.config.hidden_size)
        inputs = input_ids if layer_states is None else layer_states
        if inputs is None or inputs.dim() != (3 if layer_states is None else 4):
            shape = None if inputs is None else tuple(inputs.shape)
            raise ValueError(
                f"input_ids are {shape}, not (rows, words, {columns}): ElmoTokenizer makes the {columns} character "
                "ids of each word; layer_states would be (rows, words, layers, hidden_size)"
            )
        if layer_states is None and inputs.shape[-1] != columns:
            raise ValueError(
                f"input_ids have {inputs.shape[-1]} character ids a word, but the model is configured for {columns} "
                "(max_characters_per_token, and one more for lexicon_size): use the tokenizer in the model's folder"
            )
        if layer_states is not None and inputs.shape[2:] != layers:
            raise ValueError(
                f"layer_states have {tuple(inputs.shape[2:])} layers and numbers a word, but the model is configured "
                f"for {layers}: use the layers of this model"
            )
        return word_mask(attention_mask, token_type_ids, input_ids=input_ids, layer_states=layer_states)

    def read(self, words: torch.Tensor, packed: Sentences) -> tuple[torch.Tensor, list[Pair]]:
        """Words (N, K) -> their word layer (N, P), and the (M, P) states of both directions of each LSTM layer."""
        vectors, indices = self.encode_words(words)
        tokens, start = tuple(indices[steps] for steps in packed.tokens()), self.first_state(packed.order)
        outputs, end = self.run_layers((vectors, vectors), start, packed.sizes.tolist(), tokens)
        self.carry(end, packed.order)
        return vectors[indices[2:]], outputs

    def encode_words(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The (U, P) vectors of the distinct rows of <S>, </S> and words (N, K), and the index (N + 2,) of each."""
        if len(words) and words.device.type == "cpu":  # elsewhere, reading the values would wait for the device
            self._check_range(words)
        rows = torch.cat([self.boundaries(words.device), words])
        if needs_static_shapes(words):  # the number of distinct words is none
            return self.token_encoder(rows), torch.arange(len(rows), device=rows.device)
        rows, indices = distinct(rows)
        return self.token_encoder(rows), indices

    def _check_range(self, words: torch.Tensor) -> None:
        """Raises ValueError if ids (N, K) are none of the letters, or the last one is no place in the lexicon."""
        letters = self.config.max_characters_per_token
        parts = [("input_ids", words[:, :letters], "vocab_size", self.config.vocab_size)]
        # CODEPATH: only the models of ELMoForManyLangs have vectors of whole words.
        if self.config.lexicon_size:
            last = words[:, letters:]
            parts.append(("the last of each word's input_ids", last, "lexicon_size", self.config.lexicon_size))
        for name, ids, field, size in parts:
            low, high = (int(end) for end in ids.aminmax())
            if low < 0 or high >= size:
                raise ValueError(
                    f"{name} go from {low} to {high}, but {field} is {size}: they come from another model's "
                    "tokenizer. Use the one in this model's folder"
                )

    def run_layers(
        self, inputs: Pair, state: State, sizes: list[int], tokens: Pair | None = None
    ) -> tuple[list[Pair], State]:
        """The (M, P) states of both directions of each layer, and the state (L, 2, S, ...) in which sentences end.

        `state` is that in which they start. In both, the longest sentence is first.
        """
        outputs, ends = [], []
        for index, layer in enumerate(self.layers):
            *inputs, end = layer(*inputs, (state[0][index], state[1][index]), sizes, None if index else tokens)
            outputs.append(tuple(inputs))
            ends.append(end)
        return outputs, tuple(torch.stack(parts).detach() for parts in zip(*ends, strict=True))

    # Where sentences start

    @property
    def boundary_steps(self) -> int:
        """How many steps of a sentence read a boundary: a state that is carried on has read that at its end."""
        return 2 if self.config.state == "carry" else 1

    def first_state(self, order: torch.Tensor) -> State:
        """The (L, 2, S, ...) states in which the sentences of these numbers start."""
        starts = (self.initial_hidden, self.initial_cell)
        if self.config.state == "warm":
            return tuple(start[:, :, None].expand(-1, -1, order.shape[0], -1) for start in starts)
        if self.config.state == "zero":
            return self.zero_state(order.shape[0])
        carried = zip(starts, self.carried_rows(len(order)), strict=True)
        return tuple(rows.to(start)[:, :, order] for start, rows in carried)

    def zero_state(self, sentences: int) -> State:
        """(L, 2, S, ...) zeros."""
        starts = (self.initial_hidden, self.initial_cell)
        return tuple(start.new_zeros(*start.shape[:2], sentences, start.shape[2]) for start in starts)

    def carry(self, state: State, order: torch.Tensor) -> None:
        """With `config.state="carry"`, keeps the last states of this batch's rows for the next batch.

        States of other rows stay as they are.
        Raises ValueError in a copy of `nn.DataParallel`, which is gone after the batch, and its states with it.
        """
        if self.config.state == "carry":
            if getattr(self, "_is_replica", False):
                raise ValueError(
                    'config.state="carry" keeps states in the model, and nn.DataParallel drops its copies: start one '
                    'process for each device, or set it to "warm" or "zero"'
                )
            carried = zip(self.carried_rows(len(order)), state, strict=True)
            self.carried = tuple(rows.to(end).index_copy(2, order, end) for rows, end in carried)

    def carried_rows(self, count: int) -> State:
        """(L, 2, `count` or more, ...): the carried state; zeros for rows that no earlier batch had."""
        carried = self.zero_state(count) if self.carried is None else self.carried
        return tuple(nn.functional.pad(rows, (0, 0, 0, max(0, count - rows.shape[2]))) for rows in carried)

    def reset_state(self) -> None:
        """With `config.state="carry"`, forgets the carried state: the next batch starts from zeros."""
        self.carried = None

    @torch.no_grad()
    def warm_up(
        self,
        sentences: Iterable[list[str] | str | torch.Tensor],
        start: State | None = None,
        tokenizer: ElmoTokenizer | None = None,
    ) -> None:
        """Reads a few sentences one after another, carrying the state, and stores the last state in the model.

        The first sentence starts from zeros, or from `start`: (L, 2, 1, P) hidden states and (L, 2, 1, C) cells.

        A sentence is as for `embed`, as is `tokenizer`, or the ids (words, K) of its words. With
        `config.state="warm"`, the default, every sentence then starts from the stored state. This is close to the
        released code, which carries the state from batch to batch, but vectors do not depend on earlier calls. The
        stored state is saved with the model.
        """
        training, configured = self.training, self.config.state
        self.config.state, self.carried = "carry", start
        self.eval()
        try:
            for sentence in _as_list(sentences, None if tokenizer is None else tokenizer.split_by):
                if isinstance(sentence, torch.Tensor):
                    self(sentence.to(self.device)[None])
                else:
                    self.embed([sentence], tokenizer=tokenizer)
            if self.carried is start:
                raise ValueError("warm_up needs at least one sentence")
            self.initial_hidden.copy_(self.carried[0][:, :, 0])
            self.initial_cell.copy_(self.carried[1][:, :, 0])
        finally:
            self.config.state, self.carried = configured, None
            self.train(training)

    # Traced graphs, the mix penalty, and vectors of texts

    def padded_layers(
        self, input_ids: torch.Tensor, mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """The L + 1 layers (B, T, H), in operations that do not depend on the values of the inputs.

        Every word and every column is computed. A column outside a sentence leaves its state unchanged.
        """
        if self.config.state == "carry":
            raise ValueError(
                'config.state="carry" cannot be traced, transformed by torch.func or compiled for XLA, which keep no '
                'state: set it to "warm" or "zero", and call warm_up before on the CPU'
            )
        second = None if token_type_ids is None else token_type_ids > 0  # (B, T)
        sentence_masks = [mask] if second is None else [mask & ~second, mask & second]
        masks = torch.cat(sentence_masks).T[..., None]  # (T, S, 1), S = B, or 2 B with the second sentences
        masks = torch.cat([torch.ones_like(masks[:1]), masks])
        words = self.token_encoder(input_ids)  # (B, T, P)
        starts = self.token_encoder(self.boundaries(input_ids.device))[:, None, None]
        starts = starts.expand(-1, -1, masks.shape[1], -1)  # (2, 1, S, P)
        columns = words.transpose(0, 1).repeat(1, len(sentence_masks), 1)  # (T, S, P)
        inputs = (torch.cat([starts[0], columns]), torch.cat([starts[1], columns.flip(0)]))
        state = self.first_state(torch.arange(masks.shape[1], device=mask.device))
        layers = [torch.cat([words, words], -1)]
        for index, layer in enumerate(self.layers):
            inputs = layer.padded(inputs, (state[0][index], state[1][index]), masks)
            both = torch.cat([inputs[0][1:], inputs[1][1:].flip(0)], -1).transpose(0, 1)  # (S, T, H)
            if second is not None:
                of_first, of_second = both.unflatten(0, (2, -1))
                both = torch.where(second[..., None], of_second, of_first)
            layers.append(both)
        return layers

    def mix_penalty(self) -> torch.Tensor:
        """`config.mix_l2` times the sum of squares of all mix weights in use. Task networks add it to their loss."""
        squares = (mix.weights.square().sum() for mix in self.mixes if not mix.top_only)
        return self.config.mix_l2 * sum(squares, self.mixes[0].weights.new_zeros(()))

    @torch.no_grad()
    def embed(
        self,
        sentences: Iterable[list[str] | str],
        batch_size: int = 64,
        layers: Literal["mix", "top", "mean", "all"] | int = "mix",
        tokenizer: ElmoTokenizer | None = None,
        boundaries: bool = False,
        pooling: Literal["mean", "max"] | None = None,
    ) -> list[torch.Tensor]:
        """The vectors of each sentence's words, on the CPU: (words, H), or (L + 1, words, H) with `layers="all"`.

        The model runs in evaluation mode. Sentences of similar length share a batch, which saves time and changes no
        result, except with `config.mix_layer_norm`, whose mean is over the batch. With `config.state="carry"`,
        sentences stay in their order.

        Args:
            sentences: each a list of words, or text that the tokenizer splits as its `split_by` says.
            batch_size: the number of sentences that the model reads at once.
            layers: "mix" is the model's first mix (`mixes[0]`), "top" the last layer, "mean" the mean of all layers,
                "all" all of them, and a number one of them: 0 is the word layer, L the last.
            tokenizer: the one in the model's folder, if the model reads the characters or words of a language.
            boundaries: whether the vectors of <S> and </S> stand before and behind those of the words. The model is
                then not called by its `forward`, so its own hooks see nothing.
            pooling: "mean" or "max" gives one vector a sentence, (H,) or (L + 1, H).

        A warning is logged if the model has vectors of words (`lexicon_size`), but of less than 80 % of those of a
        text of 100 words or more, and once for a list of strings that are one word each.

        Raises:
            ValueError: for a list of strings without spaces, if text is split at spaces: they may be texts of one
                word, or the words of one sentence. For a sentence without words, if there is a pooling.
        """
        self._check_choices(layers, batch_size, pooling)
        tokenizer = self.tokenizer_or_default(tokenizer)
        sentences = _as_list(sentences, tokenizer.split_by)
        words = [tokenizer.tokenize(text) if isinstance(text, str) else list(text) for text in sentences]
        if tokenizer.has_lexicon and sum(map(len, words)) >= ENOUGH_WORDS:
            share, line = tokenizer.known_words(chain.from_iterable(words))
            if share < FEWEST_KNOWN:
                logger.warning(line)
        if pooling is not None and not boundaries and not all(words):
            raise ValueError(f"sentence {words.index([])} has no words, so no {pooling}: leave it out")
        order = range(len(words))
        if self.config.state != "carry":
            order = sorted(order, key=lambda number: len(words[number]), reverse=True)
        training, vectors = self.training, [None] * len(words)
        self.eval()
        try:
            for start in range(0, len(order), batch_size):
                numbers = order[start : start + batch_size]
                batch = [words[number] for number in numbers]
                inputs = tokenizer(
                    batch, is_split_into_words=True, padding=True, padding_side="right", return_tensors="pt"
                ).to(self.device)
                states = self._vectors_of(inputs, layers, boundaries).cpu()  # (B, T, H) or (B, L + 1, T, H)
                for number, row in zip(numbers, states, strict=True):
                    row = row[..., : len(words[number]) + 2 * boundaries, :]
                    vectors[number] = row.clone() if pooling is None else POOLINGS[pooling](row, -2)
        finally:
            self.train(training)
        return vectors

    def _check_choices(self, layers: str | int, batch_size: int, pooling: str | None) -> None:
        last = self.config.num_hidden_layers
        is_layer = isinstance(layers, int) and not isinstance(layers, bool) and 0 <= layers <= last
        if not is_layer and layers not in ("mix", "top", "mean", "all"):
            raise ValueError(f'layers={layers!r}: choose "mix", "top", "mean", "all" or a number from 0 to {last}')
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has one sentence or more")
        if pooling is not None and pooling not in POOLINGS:
            raise ValueError(f"pooling={pooling!r}: choose {' or '.join(POOLINGS)}, or None for a vector of each word")

    def _vectors_of(self, inputs: dict, layers: str | int, boundaries: bool) -> torch.Tensor:
        """What `embed` gives for a batch: (B, T, H), or (B, L + 1, T, H) with `layers="all"`."""
        mask = None
        if boundaries:
            words = self.words_of(inputs["input_ids"], inputs["attention_mask"], None)
            if needs_static_shapes(words):
                raise ValueError("boundaries=True needs shapes that depend on the words: move the model to the CPU")
            packed = Sentences.of(words, boundaries=2)
            marks = self.token_encoder(self.boundaries(words.device))
            states = packed.with_boundaries(marks, *self.read(inputs["input_ids"][words], packed))
            mask = nn.functional.pad(words, (1, 1)).unsqueeze(-1)  # a mean of `normalise` is over words
        elif layers == "mix":
            return self(**inputs, return_dict=True).last_hidden_state
        else:
            states = self(**inputs, output_hidden_states=True, return_dict=True).hidden_states
        if layers == "mix":
            return self.mixes[0](states, mask)
        states = torch.stack(states, 1)
        if layers == "mean":
            return states.mean(1)
        return states if layers == "all" else states[:, -1 if layers == "top" else layers]

    def tokenizer_or_default(self, tokenizer: ElmoTokenizer | None) -> ElmoTokenizer:
        """The tokenizer, by default that of bytes. Raises ValueError if the model reads other ids than it makes."""
        config = self.config
        given = tokenizer
        if tokenizer is None:
            tokenizer = ElmoTokenizer(max_characters_per_token=config.max_characters_per_token)
        expected = (config.ids_per_word, config.vocab_size)
        made = (tokenizer.spelling.columns, tokenizer.vocab_size)
        if made != expected:
            name = "the tokenizer of bytes" if given is None else "this tokenizer"
            raise ValueError(
                f"the model reads {expected[0]} ids of a word, the letters below {expected[1]}, but {name} makes "
                f"{made[0]}, below {made[1]}: give the one in the model's folder, "
                "tokenizer=ElmoTokenizer.from_pretrained(folder)"
            )
        return tokenizer


def word_mask(
    attention_mask: torch.Tensor | None, token_type_ids: torch.Tensor | None, **inputs: torch.Tensor | None
) -> torch.Tensor:
    """(B, T) booleans, True at words. Without a mask, these are where the first of the inputs is not zero.

    Raises ValueError if there is nothing to tell words by, or if tensors differ in the numbers of rows or words.
    """
    numbers = {"attention_mask": attention_mask, "token_type_ids": token_type_ids}
    shapes = {name: tuple(tensor.shape[:2]) for name, tensor in inputs.items() if tensor is not None}
    shapes |= {name: tuple(tensor.shape) for name, tensor in numbers.items() if tensor is not None}
    first = next(iter(shapes), None)
    for name, shape in shapes.items():
        if shape != shapes[first]:
            raise ValueError(f"{name} is {shape}, not {shapes[first]} as {first}: give one for each word")
    if attention_mask is not None:
        return attention_mask.bool()
    if first not in inputs:
        raise ValueError("Give input_ids or, if the network reads nothing else, vector_ids or layer_states.")
    return (inputs[first] != 0).unsqueeze(-1).flatten(2).any(-1)


def _as_list(sentences: Iterable, split_by: str | None) -> list:
    if isinstance(sentences, str):
        raise ValueError(f"sentences are {sentences!r:.80}, one text: give a list, [text]")
    sentences = list(sentences)
    words = [text for text in sentences if isinstance(text, str) and len(text.split()) < 2]
    if not 1 < len(sentences) == len(words):
        return sentences
    if split_by == "spaces":
        raise ValueError(
            f"sentences are {sentences!r:.80}, strings without spaces: give a sentence's words as [[word, word]], and "
            "texts of one word as [[word], [word]]"
        )
    logger.warning_once(
        f"sentences are {sentences!r:.80}: each string is read as a sentence of one word. The words of one "
        "sentence are a list inside the list: [[word, word]]"
    )
    return sentences


__all__ = ["ElmoModel", "ElmoModelOutput", "ElmoPreTrainedModel", "ElmoScalarMix"]
