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
in modeling_elmo_pretraining.py, the task networks in modeling_elmo_{tagger,classifier,bidaf,esim}.py.

What differs from the released code:

- a sentence starts from zeros or from one stored state (`config.state`), not from where the row of the batch before
  ended, so its vectors depend on nothing else; "carry" is the released way;
- distinct words are computed once, padding never, and a layer's two directions side by side;
- layers without skip connections and LSTMs without projection load too, as some releases have them.

Letters: B rows, T words of a row, N words of all rows, S sentences, M their steps, L LSTM layers, H = 2 P hidden size
(both directions), P one direction's, C cells, K character ids a word.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn as nn
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import PreTrainedModel
from transformers.processing_utils import Unpack
from transformers.utils import ModelOutput, TransformersKwargs, auto_docstring
from transformers.utils.generic import can_return_tuple
from transformers.utils.import_utils import is_tracing

from ..hub_code import SavedWithCode
from ..shared.modeling_onednn import is_transformed
from .configuration_elmo import ElmoConfig
from .modeling_elmo_characters import ElmoKnownWords, ElmoTokenEncoder, distinct
from .modeling_elmo_lstm import ElmoLSTM, Pair, State, run_both
from .modeling_elmo_sentences import Sentences
from .tokenization_elmo import ElmoTokenizer, sentence_boundary_ids, words_to_ids


# Every released model may start its sentences in each of the ways of `config.state`.
# trf-ignore: TRF041 config.state


class ElmoLayer(GradientCheckpointingLayer):
    """One layer of the biLSTM. The directions see nothing of each other."""

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
        """(M, P) of each direction, and the state after the last steps.

        With `tokens`, inputs are a table of distinct words, and `tokens` (M,) says which one each step reads.
        """
        inputs = (forward_inputs, backward_inputs)
        drops = self.dropout.training and self.dropout.p > 0
        if tokens is not None and drops:  # each reading of a word has a dropout of its own
            inputs = tuple(table[which] for table, which in zip(inputs, tokens, strict=True))
        if drops:
            inputs = tuple(self.dropout(states) for states in inputs)
        lstms = (self.forward_lstm, self.backward_lstm)
        gates = tuple(lstm.gates(states) for lstm, states in zip(lstms, inputs, strict=True))
        if tokens is not None and not drops:
            gates = tuple(table[which] for table, which in zip(gates, tokens, strict=True))
        *outputs, state = run_both(gates, lstms, state, sizes, self.clips)
        if self.adds_input:  # what was dropped from the input is missing here too, as released
            outputs = [output + states for output, states in zip(outputs, inputs, strict=True)]
        return outputs[0], outputs[1], state

    def padded(self, inputs: Pair, state: State, mask: torch.Tensor) -> Pair:
        """The same on (T + 1, S, P) padded inputs and (T + 1, S, 1) masks, in plain steps: for traced graphs."""
        lstms = (self.forward_lstm, self.backward_lstm)
        outputs = []
        for direction, (lstm, states) in enumerate(zip(lstms, inputs, strict=True)):
            hidden, cell = (part[direction] for part in state)
            gates, steps = lstm.gates(states), []
            for step in range(len(states)):
                new_hidden, new_cell = lstm.step(gates[step], hidden.to(gates.dtype), cell, self.clips)
                here = mask[step] if direction == 0 else mask[-step if step else 0]
                hidden, cell = torch.where(here, new_hidden, hidden), torch.where(here, new_cell, cell)
                steps.append(new_hidden)
            output = torch.stack(steps)
            outputs.append(output + states if self.adds_input else output)
        return tuple(outputs)


class ElmoScalarMix(nn.Module):
    """gamma * sum_j softmax(w)_j h_j (section 3.2, equation 1), of layers normalised first if so configured."""

    def __init__(self, config: ElmoConfig):
        super().__init__()
        self.top_only = config.mix_top_layer_only
        self.weights = nn.Parameter(torch.zeros(config.num_hidden_layers + 1))  # before the softmax
        self.gamma = nn.Parameter(torch.ones(()))
        self.normalises = config.mix_layer_norm

    def reset(self) -> None:
        init.zeros_(self.weights)
        init.ones_(self.gamma)

    def forward(self, layers: list[torch.Tensor], mask: torch.Tensor | None = None) -> torch.Tensor:
        """L + 1 layers (..., H) -> (..., H). `mask` (..., 1) tells words from padding where that is among them."""
        if self.top_only:
            return self.gamma * layers[-1]
        if self.normalises:
            layers = [self.normalise(layer, mask) for layer in layers]
        weights = self.gamma * self.weights.softmax(0)
        mixed = weights[0] * layers[0]
        for weight, layer in zip(weights[1:], layers[1:], strict=True):
            mixed = mixed.addcmul(weight, layer)
        return mixed

    @staticmethod
    def normalise(layer: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """One mean and variance over all numbers of all words of the batch, the sentence boundaries left out."""
        kept = torch.ones_like(layer[..., :1]) if mask is None else mask.to(layer.dtype)
        count = (kept.sum() * layer.shape[-1]).clamp(min=1)
        mean = (layer * kept).sum() / count
        variance = ((layer - mean) * kept).square().sum() / count
        return (layer - mean) * (variance + 1e-12).rsqrt()  # TensorFlow's epsilon; AllenNLP's is 1e-13


@auto_docstring
class ElmoPreTrainedModel(SavedWithCode, PreTrainedModel):
    config: ElmoConfig
    base_model_prefix = "elmo"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _no_split_modules = ["ElmoTokenEncoder", "ElmoLayer"]
    _keys_to_ignore_on_load_missing = [r"mixes\.\d+\."]  # a mix more than the checkpoint has begins anew

    @property
    def dummy_inputs(self) -> dict[str, torch.Tensor]:
        rows = sentence_boundary_ids(self.config.max_characters_per_token)
        return {"input_ids": torch.tensor([rows], device=self.device)}

    def wants_layers(self, output_hidden_states: bool | None = None, **kwargs) -> bool:
        """Whether a call with these arguments is to return the layers of the biLM."""
        return self.config.output_hidden_states if output_hidden_states is None else output_hidden_states

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot's for what multiplies, length 1 for what is looked up; parts with other values have a `reset`."""
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
        """For all modules. Of code that is not its own, transformers otherwise skips those without own parameters."""
        super()._initialize_weights(module)


@auto_docstring(custom_intro="The biLM's layers and what a task reads of them.")
@dataclass
class ElmoModelOutput(ModelOutput):
    r"""
    last_hidden_state (`torch.FloatTensor` of shape `(batch_size, sequence_length, hidden_size)`):
        The first mix; zero at padding.
    mixes (`torch.FloatTensor` of shape `(batch_size, num_mixes, sequence_length, hidden_size)`):
        All of them.
    hidden_states (`tuple(torch.FloatTensor)`, *optional*):
        With `output_hidden_states=True`, the layers before they are mixed, of the same shape: the word layer, twice
        side by side, then each LSTM layer's forward and backward states.
    """

    last_hidden_state: torch.FloatTensor | None = None
    mixes: torch.FloatTensor | None = None
    hidden_states: tuple[torch.FloatTensor, ...] | None = None


@auto_docstring(custom_intro="The biLM, with mixes of its layers: contextual vectors of words.")
class ElmoModel(ElmoPreTrainedModel):
    def __init__(self, config: ElmoConfig, trains: bool | None = None):
        r"""
        trains (`bool`, *optional*):
            Whether the biLM itself is to be trained, by default as `config.freeze_bilm` says.
        """
        super().__init__(config)
        self.token_encoder = ElmoTokenEncoder(config)
        self.layers = nn.ModuleList([ElmoLayer(config, index) for index in range(config.num_hidden_layers)])
        self.mixes = nn.ModuleList([ElmoScalarMix(config) for _ in range(config.num_mixes)])
        self.dropout = nn.Dropout(config.mix_dropout)
        sizes = (config.num_hidden_layers, 2)
        self.initial_hidden = nn.Buffer(torch.zeros(*sizes, config.projection_size))
        self.initial_cell = nn.Buffer(torch.zeros(*sizes, config.cell_size))
        self.trains = not config.freeze_bilm if trains is None else trains
        self.known: ElmoKnownWords | None = None
        self.carried: State | None = None  # (L, 2, rows, ...) each, of config.state "carry"
        self.post_init()
        self.train()

    def reset(self) -> None:
        init.zeros_(self.initial_hidden)
        init.zeros_(self.initial_cell)

    def get_input_embeddings(self) -> nn.Module:
        return self.token_encoder.char_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.token_encoder.char_embeddings = value

    def train(self, mode: bool = True) -> "ElmoModel":
        """As for every module, but a frozen biLM takes no part in training: no gradients, no dropout."""
        super().train(mode)
        # Gradients are switched off here, because from_pretrained makes parameters that want them.
        if not self.trains:
            for part in (self.token_encoder, self.layers):
                part.eval().requires_grad_(False)
        for mix in self.mixes:
            if mix.top_only:
                mix.weights.requires_grad_(False)
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
            Character ids of each word, from `ElmoTokenizer`, without <S> and </S>, which are added here.
        attention_mask (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            1 for words, 0 for padding; without it, a row of zeros is padding.
        token_type_ids (`torch.Tensor` of shape `(batch_size, sequence_length)`, *optional*):
            0 and 1: the words of a row's first and second sentence, each of which is read by itself.
        layer_states (`torch.Tensor` of shape `(batch_size, sequence_length, layers, hidden_size)`, *optional*):
            The layers of a frozen biLM, computed before, as `embed` does; `input_ids` are then read only for padding,
            and may be left out.
        """
        mask = self.words_of(input_ids, attention_mask, token_type_ids, layer_states)
        if layer_states is not None:
            layers = list(layer_states.to(self.dtype).unbind(2))
            packed = None
        elif is_tracing(input_ids) or is_transformed():
            layers, packed = self.padded_layers(input_ids, mask, token_type_ids), None
        else:
            packed = Sentences.of(mask, token_type_ids, closes=self.config.state == "carry")
            layers = packed.layers(*self.read(input_ids[mask], packed))

        def pad(states: torch.Tensor) -> torch.Tensor:
            return packed.pad(states) if packed else states * mask[..., None]

        wanted = self.wants_layers(**kwargs)
        if wanted:  # mixed as they are returned, so that the gradient of the mix reaches them
            layers, packed = [pad(layer) for layer in layers], None
        mixes = [mix(layers, None if packed else mask[..., None]) for mix in self.mixes]
        mixes = [pad(self.dropout(mixed)) for mixed in mixes]
        return ElmoModelOutput(
            last_hidden_state=mixes[0],
            mixes=torch.stack(mixes, 1),
            hidden_states=tuple(layers) if wanted else None,
        )

    def words_of(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None,
        token_type_ids: torch.Tensor | None,
        layer_states: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, T), True where a word is. Raises ValueError for inputs of another shape."""
        columns = self.config.max_characters_per_token
        layers = (self.config.num_hidden_layers + 1, self.config.hidden_size)
        given = input_ids if layer_states is None else layer_states
        if given is None or given.dim() != (3 if layer_states is None else 4):
            found = None if given is None else tuple(given.shape)
            raise ValueError(
                f"input_ids are {found}, not (rows, words, {columns}): ElmoTokenizer makes the {columns} character "
                "ids of each word; layer_states would be (rows, words, layers, hidden_size)"
            )
        if layer_states is None and given.shape[-1] != columns:
            raise ValueError(
                f"input_ids have {given.shape[-1]} character ids a word, the model was configured for {columns} "
                "(max_characters_per_token)"
            )
        if layer_states is not None and given.shape[2:] != layers:
            raise ValueError(
                f"layer_states have {tuple(given.shape[2:])} layers and numbers a word, the model was configured for "
                f"{layers}: take those of this model"
            )
        for name, numbers in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if numbers is not None and numbers.shape != given.shape[:2]:
                raise ValueError(f"{name} is {tuple(numbers.shape)}, not {tuple(given.shape[:2])}: a number a word")
        if attention_mask is not None:
            return attention_mask.bool()
        words = given if input_ids is None else input_ids
        return (words != 0).flatten(2).any(-1)

    def read(self, words: torch.Tensor, packed: Sentences) -> tuple[torch.Tensor, list[Pair]]:
        """The word layer (N, P) of the words (N, K), and of each LSTM layer what its directions say (M, P)."""
        vectors, which = self.encode_words(words)
        tokens = tuple(which[steps] for steps in packed.tokens)
        outputs = self.run_layers((vectors, vectors), packed.steps.order, packed.steps.sizes.tolist(), tokens)
        return vectors[which[2:]], outputs

    def encode_words(self, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Vectors (U, P) of the distinct among <S>, </S> and the words (N, K), and which of them each is (N + 2,)."""
        boundaries = torch.tensor(sentence_boundary_ids(self.config.max_characters_per_token), device=words.device)
        if len(words) and words.device.type == "cpu":  # elsewhere, to look would be to wait
            low, high = (int(end) for end in words.aminmax())
            if low < 0 or high >= self.config.vocab_size:
                raise ValueError(
                    f"input_ids go from {low} to {high}, but vocab_size is {self.config.vocab_size}: ElmoTokenizer "
                    "makes ids from 0 to 261"
                )
        found, which = distinct(torch.cat([boundaries, words]))
        learns = torch.is_grad_enabled() and any(weight.requires_grad for weight in self.token_encoder.parameters())
        if self.known is None or learns:
            return self.token_encoder(found), which
        return self.known.look_up(self.token_encoder, found), which

    def know_words(self, words: Iterable[str]) -> None:
        """Computes the word layer of a vocabulary now, once, instead of in each batch that has its words.

        Nothing else changes: words that it lacks are computed from their characters as ever, all are while the word
        layer learns, and where its weights have changed, the vocabulary is computed again. Not saved; no words end it.
        """
        if isinstance(words, str):
            raise ValueError(f"words are {words!r:.80}, one text: give a list of words")
        rows = torch.from_numpy(words_to_ids(list(words), self.config.max_characters_per_token))
        self.known = ElmoKnownWords(rows) if len(rows) else None
        if self.known is not None:
            self.known.update(self.token_encoder)

    def run_layers(
        self, inputs: Pair, order: torch.Tensor, sizes: list[int], tokens: Pair | None = None
    ) -> list[Pair]:
        """Both directions' states (M, P) of each layer, for the sentences of these numbers."""
        state, outputs, ends = self.first_state(order), [], []
        for index, layer in enumerate(self.layers):
            *inputs, end = layer(*inputs, (state[0][index], state[1][index]), sizes, None if index else tokens)
            outputs.append(tuple(inputs))
            ends.append(end)
        if self.config.state == "carry":
            self.carry(tuple(torch.stack(parts) for parts in zip(*ends, strict=True)), order)
        return outputs

    # Where sentences start

    def first_state(self, order: torch.Tensor) -> State:
        """(L, 2, S, ...) for the sentences in this order."""
        starts = (self.initial_hidden, self.initial_cell)
        if self.config.state == "warm":
            return tuple(start[:, :, None].expand(-1, -1, order.shape[0], -1) for start in starts)
        zeros = tuple(start.new_zeros(*start.shape[:2], order.shape[0], start.shape[2]) for start in starts)
        if self.config.state == "zero" or self.carried is None:
            return zeros
        for rows, carried in zip(zeros, self.carried, strict=True):
            known = order < carried.shape[2]  # a row that no batch so far has had starts from zeros
            rows[:, :, known] = carried.to(rows)[:, :, order[known]]
        return zeros

    def carry(self, state: State, order: torch.Tensor) -> None:
        """Keeps the states of this batch's rows for the next one, and those of rows that it did not have."""
        rows = len(order) if self.carried is None else max(len(order), self.carried[0].shape[2])
        kept = []
        for number, end in enumerate(state):
            whole = end.new_zeros(*end.shape[:2], rows, end.shape[3])
            if self.carried is not None:
                whole[:, :, : self.carried[number].shape[2]] = self.carried[number].to(whole)
            whole[:, :, order] = end.detach()
            kept.append(whole)
        self.carried = tuple(kept)

    def reset_state(self) -> None:
        """Lets the next batch start as the first one did, with `config.state` "carry"."""
        self.carried = None

    @torch.no_grad()
    def warm_up(self, sentences: Iterable[list[str] | str]) -> None:
        """Runs a few sentences one after another, carrying the state, and stores where it ended.

        With `config.state` "warm", the default, every sentence then starts there: close to the released behaviour,
        where the state never ended, but the same vectors whatever was computed before. Saved with the model.
        """
        configured, self.config.state, self.carried = self.config.state, "carry", None
        try:
            for _ in self.embed(sentences, batch_size=1):
                pass
            if self.carried is None:
                raise ValueError("warm_up needs at least one sentence")
            self.initial_hidden.copy_(self.carried[0][:, :, 0])
            self.initial_cell.copy_(self.carried[1][:, :, 0])
        finally:
            self.config.state, self.carried = configured, None

    # Other ways through the biLM

    def padded_layers(
        self, input_ids: torch.Tensor, mask: torch.Tensor, token_type_ids: torch.Tensor | None
    ) -> list[torch.Tensor]:
        """As `read`, but of all columns, (B, T, H), in operations that do not depend on what the input holds.

        Every word and every column is computed; a column that is not a sentence's leaves its state as it is.
        """
        if self.config.state == "carry":
            raise ValueError(
                'config.state="carry" cannot be traced or transformed by torch.func, since neither keeps a state. Use '
                '"warm" or "zero"'
            )
        second = None if token_type_ids is None else token_type_ids > 0  # (B, T)
        kinds = [mask] if second is None else [mask & ~second, mask & second]
        masks = torch.cat(kinds).T[..., None]  # (T, S, 1), S = B, or 2 B with the second sentences
        masks = torch.cat([torch.ones_like(masks[:1]), masks])
        words = self.token_encoder(input_ids)  # (B, T, P)
        boundaries = torch.tensor(sentence_boundary_ids(input_ids.shape[-1]), device=input_ids.device)
        starts = self.token_encoder(boundaries)[:, None, None].expand(-1, -1, masks.shape[1], -1)  # (2, 1, S, P)
        columns = words.transpose(0, 1).repeat(1, len(kinds), 1)  # (T, S, P)
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
        """`config.mix_l2` times the sum of the squares of all mix weights in use; a task adds it to its loss."""
        squares = (mix.weights.square().sum() for mix in self.mixes if not mix.top_only)
        return self.config.mix_l2 * sum(squares, self.mixes[0].weights.new_zeros(()))

    @torch.no_grad()
    def embed(
        self, sentences: Iterable[list[str] | str], batch_size: int = 64, layers: str = "mix"
    ) -> list[torch.Tensor]:
        """The vectors of each sentence's words, on the CPU: (words, H), or (L + 1, words, H) with `layers="all"`.

        A sentence is a list of words, or text that `ElmoTokenizer` splits. The model computes as in evaluation.
        Sentences of similar length share a batch, which changes nothing but the time it takes; with `config.state`
        "carry" they stay in order.
        """
        if layers not in ("mix", "all"):
            raise ValueError(f'layers={layers!r}: choose "mix" or "all"')
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}: a batch has one sentence or more")
        if isinstance(sentences, str):
            raise ValueError(f"sentences are {sentences!r:.80}, one text: give a list, [text]")
        tokenizer = ElmoTokenizer(max_characters_per_token=self.config.max_characters_per_token)
        words = [tokenizer.tokenize(given) if isinstance(given, str) else list(given) for given in sentences]
        order = range(len(words))
        if self.config.state != "carry":
            order = sorted(order, key=lambda number: len(words[number]), reverse=True)
        training, found = self.training, [None] * len(words)
        self.eval()
        try:
            for start in range(0, len(order), batch_size):
                chosen = order[start : start + batch_size]
                batch = [words[number] for number in chosen]
                inputs = tokenizer(batch, is_split_into_words=True, padding=True, return_tensors="pt").to(self.device)
                outputs = self(**inputs, output_hidden_states=layers == "all")
                states = torch.stack(outputs.hidden_states, 1) if layers == "all" else outputs.last_hidden_state
                for number, row in zip(chosen, states.cpu(), strict=True):
                    found[number] = row[..., : len(words[number]), :].clone()
        finally:
            self.train(training)
        return found


__all__ = ["ElmoModel", "ElmoModelOutput", "ElmoPreTrainedModel", "ElmoScalarMix"]
