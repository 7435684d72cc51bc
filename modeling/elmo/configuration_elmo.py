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
"""ELMo's configuration: the fields of the released `options.json`, the biLM's state and mix, the task networks."""

from typing import Literal

from huggingface_hub.dataclasses import strict
from transformers.configuration_utils import PreTrainedConfig
from transformers.utils import auto_docstring

from ..hub_code import SavedWithCode, announce_names, copy_code


# The class that each Auto class finds in a saved folder.
AUTO_MAP = {
    "AutoConfig": "configuration_elmo.ElmoConfig",
    "AutoModel": "modeling_elmo.ElmoModel",
    "AutoModelForPreTraining": "modeling_elmo_pretraining.ElmoForPreTraining",
    "AutoModelForTokenClassification": "modeling_elmo_tasks.ElmoForTokenClassification",
    "AutoModelForSequenceClassification": "modeling_elmo_tasks.ElmoForSequenceClassification",
    "AutoModelForMultipleChoice": "modeling_elmo_tasks.ElmoForMultipleChoice",
    "AutoModelForQuestionAnswering": "modeling_elmo_tasks.ElmoForQuestionAnswering",
}
# What `pipeline(model=...)` finds in a folder of these models, which transformers' own pipelines cannot run.
PIPELINES = {
    "ElmoForTokenClassification": {
        "token-classification": {
            "impl": "pipeline_elmo.ElmoTokenClassificationPipeline",
            "pt": ["AutoModelForTokenClassification"],
            "type": "text",
        }
    },
    "ElmoForPreTraining": {
        "fill-mask": {
            "impl": "pipeline_elmo.ElmoFillMaskPipeline",
            "pt": ["AutoModelForPreTraining"],
            "type": "text",
        }
    },
}
# The smallest value of each field; 0 means none.
LEAST = {
    "vocab_size": 7,  # no word, a letter, and the five marks
    "max_characters_per_token": 3,  # begin, a letter and end
    "lm_vocab_size": 3,  # <S>, </S> and <UNK>
    **dict.fromkeys(("char_embedding_size", "cell_size", "num_hidden_layers", "num_mixes"), 1),
    "lexicon_vector_size": 1,
    **dict.fromkeys(("word_vector_size", "rnn_size", "rnn_layers", "classifier_size"), 1),
    **dict.fromkeys(("task_char_width", "task_char_embedding_size"), 1),
    **dict.fromkeys(("num_highway_layers", "num_sampled", "num_word_vectors", "task_char_filters", "mix_l2"), 0),
}


@auto_docstring(
    custom_intro="""
    The configuration of ELMo's biLM and of the task networks on it. The defaults are the published model (Peters
    et al. 2018, arXiv 1802.05365, section 3.4; its options.json).

    Raises `ValueError` for sizes that do not fit together.
    """
)
@strict
class ElmoConfig(SavedWithCode, PreTrainedConfig):
    r"""
    vocab_size (`int`, *optional*, defaults to 262):
        Number of ids of letters: 0 for no word, the letters (256 bytes), and the five marks: begin and end of a
        sentence, begin and end of a word, padding in a word. Models of a language (ELMoForManyLangs) have characters
        in place of bytes.
    max_characters_per_token (`int`, *optional*, defaults to 50):
        Number of letters of a word, with its begin and end marks.
    char_embedding_size (`int`, *optional*, defaults to 16):
        Size of a character's embedding.
    lexicon_size (`int`, *optional*, defaults to 0):
        Number of the biLM's vectors of whole words, which ELMoForManyLangs has; 0 for none. With them, each row of
        `input_ids` has one more number, the word's place among the vectors: 0 for padding, 1 for unknown words, 2 and
        3 for a sentence's begin and end. The word layer always has a projection then.
    lexicon_vector_size (`int`, *optional*, defaults to 100):
        Size of such a vector.
    filters (`list[list[int]]`, *optional*):
        [width in characters, number of filters] of each convolution over the characters.
    char_activation (`str`, *optional*, defaults to `"relu"`):
        The activation after the maximum over a word's positions: `"relu"` or `"tanh"`.
    num_highway_layers (`int`, *optional*, defaults to 2):
        Number of highway layers after the convolutions.
    hidden_size (`int`, *optional*, defaults to 1024):
        Size of a layer's states. Each of the two directions has half of it, the size of its projection.
    cell_size (`int`, *optional*, defaults to 4096):
        Number of LSTM cells of one direction of one layer.
    num_hidden_layers (`int`, *optional*, defaults to 2):
        Number of layers of the biLSTM, without the word layer.
    use_skip_connections (`bool`, *optional*, defaults to `True`):
        Whether each layer from the second on adds its input to its output.
    cell_clip (`float`, *optional*, defaults to 3.0):
        Cells are clipped to [-cell_clip, cell_clip] at each step. `None` clips nothing.
    proj_clip (`float`, *optional*, defaults to 3.0):
        As `cell_clip`, for the projected outputs.
    hidden_dropout_prob (`float`, *optional*, defaults to 0.1):
        The dropout on the input of each LSTM layer and of the softmax, while the biLM itself is trained.
    freeze_bilm (`bool`, *optional*, defaults to `True`):
        Whether the biLM's weights get no gradients when the model is made or loaded, so that only the mix of its
        layers is learned. `requires_grad_(True)` trains them after all. A biLM of which nothing is trained has no
        dropout. `ElmoForPreTraining` trains the biLM in any case.
    state (`str`, *optional*, defaults to `"warm"`):
        The state in which sentences start. `"zero"`: zeros. `"warm"`: the state that `ElmoModel.warm_up` has stored in
        the model, the same for every sentence (zeros without a call of it). `"carry"`: the last state of the same row
        of the batch before, as in the released code; results then depend on earlier calls.
    num_mixes (`int`, *optional*, defaults to 1):
        Number of scalar mixes of the layers.
    mix_top_layer_only (`bool`, *optional*, defaults to `False`):
        Whether a mix is the top layer only instead of all layers.
    mix_layer_norm (`bool`, *optional*, defaults to `False`):
        Whether layers are normalised before they are mixed.
    mix_dropout (`float`, *optional*, defaults to 0.5):
        The dropout on the mixes.
    mix_l2 (`float`, *optional*, defaults to 0.0):
        The weight of a penalty in the loss of the task networks: the sum of squares of the mix weights before their
        softmax.
    lm_vocab_size (`int`, *optional*, defaults to 793471):
        Number of words that `ElmoForPreTraining` predicts; the first three are <S>, </S> and <UNK>.
    num_sampled (`int`, *optional*, defaults to 8192):
        Number of sampled words in the softmax in training; 0 for the full softmax.
    use_elmo (`bool`, *optional*, defaults to `True`):
        Whether a task network reads the biLM. With `False`, it is the baseline of its paper.
    elmo_placement (`str`, *optional*, defaults to `"input"`):
        Where a task network reads the biLM: at the `"input"` of its first RNN, at the `"output"` of the RNN, at
        `"both"` (with two mixes), or `"after_first_rnn"`, as TagLM does.
    num_word_vectors (`int`, *optional*, defaults to 0):
        Number of a task network's word vectors; 0 for none. Row 0 is for padding, row 1 for unknown words.
    word_vector_size (`int`, *optional*, defaults to 100):
        Size of a word vector.
    freeze_word_vectors (`bool`, *optional*, defaults to `False`):
        Whether the word vectors get no gradients when the model is made or loaded.
    task_char_filters (`int`, *optional*, defaults to 0):
        Number of filters of a task network's character CNN; 0 for no such CNN.
    task_char_width (`int`, *optional*, defaults to 3):
        The width of these filters in characters.
    task_char_embedding_size (`int`, *optional*, defaults to 16):
        Size of a character's embedding in this CNN.
    rnn_size (`int`, *optional*, defaults to 200):
        Number of cells of one direction of a task network's RNNs.
    rnn_layers (`int`, *optional*, defaults to 2):
        Number of LSTM layers of the tagger and the classifier.
    task_dropout (`float`, *optional*, defaults to 0.5):
        The dropout of a task network, on its inputs and between its layers.
    classifier_size (`int`, *optional*, defaults to 512):
        Size of the hidden layer between a task network's pooling and its scores.
    use_crf (`bool`, *optional*, defaults to `True`):
        Whether the tagger scores sequences of tags by a CRF. With `False`, it scores each tag by itself.
    constrain_tags (`bool`, *optional*, defaults to `True`):
        Whether the CRF forbids sequences that break the scheme of the tag names (IOB2 or BIOES). It reads the names
        from `id2label` at each call.

    Example:

    ```python
    >>> from modeling import ElmoConfig, ElmoModel

    >>> model = ElmoModel(ElmoConfig(hidden_size=256, cell_size=1024, num_highway_layers=1))  # the released small one
    ```"""

    model_type = "elmo"
    keys_to_ignore_at_inference = ["mixes"]

    vocab_size: int = 262
    max_characters_per_token: int = 50
    char_embedding_size: int = 16
    lexicon_size: int = 0
    lexicon_vector_size: int = 100
    filters: list | tuple = ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024))
    char_activation: Literal["relu", "tanh"] = "relu"
    num_highway_layers: int = 2
    hidden_size: int = 1024
    cell_size: int = 4096
    num_hidden_layers: int = 2
    use_skip_connections: bool = True
    cell_clip: float | int | None = 3.0
    proj_clip: float | int | None = 3.0
    hidden_dropout_prob: float | int = 0.1
    freeze_bilm: bool = True
    state: Literal["zero", "warm", "carry"] = "warm"
    num_mixes: int = 1
    mix_top_layer_only: bool = False
    mix_layer_norm: bool = False
    mix_dropout: float | int = 0.5
    mix_l2: float | int = 0.0
    lm_vocab_size: int = 793471
    num_sampled: int = 8192
    use_elmo: bool = True
    elmo_placement: Literal["input", "output", "both", "after_first_rnn"] = "input"
    num_word_vectors: int = 0
    word_vector_size: int = 100
    freeze_word_vectors: bool = False
    task_char_filters: int = 0
    task_char_width: int = 3
    task_char_embedding_size: int = 16
    rnn_size: int = 200
    rnn_layers: int = 2
    task_dropout: float | int = 0.5
    classifier_size: int = 512
    use_crf: bool = True
    constrain_tags: bool = True
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False

    @property
    def projection_size(self) -> int:
        """The size of one direction's states."""
        return self.hidden_size // 2

    @property
    def ids_per_word(self) -> int:
        """Number of columns of `input_ids`."""
        return self.max_characters_per_token + (self.lexicon_size > 0)

    def validate_sizes(self):
        """Checks the sizes and probabilities: no filter is wider than a word, and the hidden size is even."""
        for name, least in LEAST.items():
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}: it must be {least} or more.")
        if self.lexicon_size < 0 or 0 < self.lexicon_size < 4:
            raise ValueError(
                f"lexicon_size={self.lexicon_size}: it must be 0, or 4 or more, for padding, unknown words, and a "
                "sentence's begin and end."
            )
        for name in ("hidden_dropout_prob", "mix_dropout", "task_dropout"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}={getattr(self, name)}: a probability is from 0 to 1.")
        for name in ("cell_clip", "proj_clip"):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                raise ValueError(f"{name}={getattr(self, name)}: it must be above 0; None clips nothing.")
        if self.hidden_size % 2:
            raise ValueError(f"hidden_size={self.hidden_size} is odd, but its halves are the two directions' states.")
        if not self.filters or not all(map(self.is_filter, self.filters)):
            raise ValueError(
                f"filters={self.filters!r:.200}: each must be (width, count), whole numbers and no wider than "
                f"max_characters_per_token={self.max_characters_per_token}, and there must be one or more."
            )
        if self.use_elmo and self.elmo_placement == "both" and self.num_mixes < 2:
            raise ValueError(
                f'elmo_placement="both" reads two mixes, but num_mixes={self.num_mixes}; set num_mixes=2.'
            )

    def is_filter(self, pair) -> bool:
        """Whether it is the width and the number of filters that words have room for."""
        is_pair = isinstance(pair, (list, tuple)) and [type(number) for number in pair] == [int, int]
        return is_pair and min(pair) > 0 and pair[0] <= self.max_characters_per_token

    def save_pretrained(self, save_directory, **kwargs):
        """As `PreTrainedConfig.save_pretrained`, and also copies the code of all ELMo classes into the folder.

        `trust_remote_code=True` then loads them from the folder where this package is not installed.
        """
        self.auto_map = copy_code(__file__, AUTO_MAP, save_directory, others=["pipeline_elmo.ElmoFillMaskPipeline"])
        vars(self).pop("custom_pipelines", None)  # of the model whose weights this one started from
        if (architecture := next(iter(self.architectures or ()), None)) in PIPELINES:
            self.custom_pipelines = PIPELINES[architecture]
        super().save_pretrained(save_directory, **kwargs)


announce_names(AUTO_MAP)

__all__ = ["AUTO_MAP", "ElmoConfig"]
